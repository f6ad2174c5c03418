"""Declarations of claims: what a paper says, where, and which stored figures or tests decide about it.

`folders.toml` lists the folders of `results/` with the command that measured each. The other TOML files list the claims
of one paper each. No measured figure is written there.
"""

import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from coterie import registry
from coterie.errors import UserError
from coterie.lab.papers.campaign import Campaign
from coterie.lab.papers.laboratory import Laboratory
from coterie.recipe import make
from coterie.settings import settings

PAPERS = ("pflego", "feddecay", "scafflix")
"""Names of the files with claims, in the order of the page."""
Where = dict[str, str | list[str]]
"""Value, or possible values, by axis of an experiment or by column of a table."""


@settings
class Reproduce:
    """Arguments of `coterie reproduce`."""

    experiment: str
    scale: Literal["small", "full"] = "full"
    seeds: int = 1
    data: str = ""
    degree: str = ""
    methods: str = ""
    changes: list[str] = field(default_factory=list)

    def wanted(self) -> dict[str, list[str]]:
        """Return the chosen values by axis of the experiment."""
        given = {"data": self.data, "degree": self.degree, "method": self.methods}
        return {axis: values.split(",") for axis, values in given.items() if values}

    def command(self, out: str = "") -> str:
        """Return the command, with the folder of `results/` that it continues, if any."""
        options = {"data": self.data, "degree": self.degree, "methods": self.methods, "scale": self.scale}
        parts = [f"--{option} {value}" for option, value in options.items() if value]
        parts += [f"--seeds {self.seeds}"] * (self.seeds > 1)
        parts += [f"--set {shlex.quote(change)}" for change in self.changes]
        parts += [f"--out results/{out}"] * bool(out)
        return f"coterie reproduce {self.experiment} {' '.join(parts)}"

    def campaign(self, out: Path) -> Campaign | Laboratory:
        """Return the experiment with these arguments, stored under `out`."""
        kind = registry.load("experiment", self.experiment)
        arguments = (self.experiment, self.wanted(), self.scale, self.seeds, out, self.changes)
        return kind(*arguments) if issubclass(kind, Laboratory) else Campaign(*arguments)


@settings
class Folder(Reproduce):
    """A folder of `results/`, and the arguments that measured it."""

    page: str = ""
    """Page and section that show its tables, relative to docs/results."""
    tables: bool = False
    """Whether only the tables are stored, because the single measurements are too large."""


@settings
class Compare:
    """A comparison of stored figures."""

    folder: str
    """Name of a folder of `results/`."""
    figure: str
    """Figure that is compared: a field of `Measured`, such as "figure.mean" or "picked.after.mean", or a column."""
    of: Where = field(default_factory=dict)
    """Lines that the claim is about."""
    over: Where = field(default_factory=dict)
    """Lines that they are compared with. If empty, each line is compared with itself, by `other`."""
    match: list[str] = field(default_factory=list)
    """Axes on which both lines of a pair have the same value."""
    other: str = ""
    """Figure of the other line, if it is not the same one. "printed..." is what the paper prints."""
    form: Literal["difference", "percent less", "ratio"] = "difference"
    """How the two figures are compared."""
    per: str = ""
    """Column that the effect is divided by."""
    unit: str = " points"
    at_least: float | None = None
    """The claim is that the effect is larger than this."""
    within: float | None = None
    """The claim is that the effect is at most this far from `about`."""
    about: float = 0.0
    best_rate: bool = False
    """Whether lines that differ only in their rate are replaced by the one with the best validation score."""
    pool: str = ""
    """Name of what is averaged over, if the pairs themselves are the sample, such as "splits"."""
    counted: str = ""
    """Why the figures are not random, if they are not, such as "operations are counted"."""


@settings
class Cost:
    """What some of the missing runs cost."""

    where: Where = field(default_factory=dict)
    """Runs that it is about: values on the axes of the experiment. The first part of the cost that fits applies."""
    folder: str = ""
    """Folder of a stored run that takes as long per round. Otherwise `flops` or `seconds` is given."""
    row: str = ""
    """Name of this run in runs.json, without its seed."""
    flops: float = 0.0
    """Operations of a round, if no similar run is stored."""
    seconds: float = 0.0
    """Seconds of a measurement."""
    times: float = 1.0
    """Factor between the rounds."""
    once: bool = False
    """Whether it is added once for all runs, instead of for each of their rounds."""
    why: str = ""
    """Derivation of the numbers."""


@settings
class Missing(Reproduce):
    """The command that tests a claim, or tests it at the scale of the paper, and its cost."""

    out: str = ""
    """Folder of `results/` that the command continues."""
    cost: list[dict[str, Any]] = field(default_factory=list)

    def parts(self) -> list[Cost]:
        """Return the parts of the cost."""
        return [make(Cost, "cost", part) for part in self.cost]


@settings
class Claim:
    """A claim of a paper."""

    name: str
    says: str
    """The claim in our words."""
    place: str
    """Section, theorem, table or figure of the paper."""
    compare: dict[str, Any] = field(default_factory=dict)
    tests: list[str] = field(default_factory=list)
    """Tests that check it, as file below tests/ and function."""
    refuted_by: list[str] = field(default_factory=list)
    """Tests that show that it does not hold as printed."""
    smaller: str = ""
    """How the measurement is smaller than that of the paper. If empty, it has the paper's scale."""
    note: str = ""
    missing: dict[str, Any] = field(default_factory=dict)
    short: str = ""
    """A few words for the summary at the head of the page. If empty, the claim is not in the summary."""

    def comparison(self) -> Compare | None:
        """Return how the claim is measured, or None if it is not."""
        return make(Compare, f"{self.name}.compare", self.compare) if self.compare else None

    def lacking(self) -> Missing | None:
        """Return what is missing, or None if nothing is."""
        return make(Missing, f"{self.name}.missing", self.missing) if self.missing else None


@settings
class Paper:
    """A paper and its claims."""

    name: str
    about: str
    page: str
    """Page with the results, relative to docs/results."""
    claim: list[dict[str, Any]]

    def claims(self) -> list[Claim]:
        """Return the claims in their order."""
        return [make(Claim, "claim", each) for each in self.claim]


@cache
def papers() -> list[Paper]:
    """Return all papers."""
    return [make(Paper, name, _read(name)) for name in PAPERS]


@cache
def folders() -> Mapping[str, Folder]:
    """Return the folders of `results/` by name."""
    return {name: make(Folder, name, options) for name, options in _read("folders").items()}


def folder(name: str) -> Folder:
    """Return the declaration of a folder of `results/`."""
    if name not in folders():
        raise UserError(f"folders.toml does not list results/{name}; available: {', '.join(folders())}")
    return folders()[name]


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((files("coterie.lab.claims") / f"{name}.toml").read_text(encoding="utf-8"))
