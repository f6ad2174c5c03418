"""The recipe: one typed tree with everything about a run, read from TOML and from `--set key=value`."""

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import Field

from coterie import registry, streams
from coterie.aggregate.rule import Rule
from coterie.core.method import Method
from coterie.data.examples import Examples
from coterie.data.federation import Federation
from coterie.data.partition.partition import Partition
from coterie.data.sets.dataset import Dataset
from coterie.errors import UserError
from coterie.models.model import Model
from coterie.server.participation import (
    Crowd,
    Fixed,
    Independent,
    Participation,
    Probability,
    Unequal,
    Uniform,
    by_name,
    by_size,
)
from coterie.server.population import PopulationSettings
from coterie.server.stopping import StopSettings
from coterie.settings import Count, Gigabytes, Length, Size, check_values, settings, user_path

T = TypeVar("T")


@settings
class RunSettings:
    """The section [run] of a recipe."""

    rounds: Annotated[int, Field(ge=0)] = 200
    """Number of rounds."""
    clients_per_round: Count | None = None
    """Number of clients per round if participation is "fixed"; all clients by default."""
    participation: Literal["fixed", "independent", "uniform", "unequal"] = "fixed"
    """How cohorts are sampled: a "fixed" number of clients, each client on its own ("independent", with `probability`),
    a number drawn from `clients_range` ("uniform"), or each client with a probability of its own ("unequal", with
    `chances`)."""
    probability: Probability | None = None
    """Probability that a client takes part, if participation is "independent", or "unequal" and it is not in `chances`.
    """
    chances: dict[str, Probability] | Literal["sizes"] | None = None
    """Probabilities if participation is "unequal": in proportion to "sizes", so that `clients_per_round` clients take
    part on average, or by client, such as { anna = 0.5 }."""
    clients_range: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = None
    """Smallest and largest number of clients per round, if participation is "uniform"."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of all random draws of the run."""
    eval_every: Count = 10
    """Number of rounds between evaluations of all clients."""
    eval_last: Count = 1
    """Number of rounds at the end that are always evaluated, whatever `eval_every` is."""
    checkpoint_every: Count = 10
    """Number of rounds between checkpoints."""

    def cohorts(self, clients: Crowd) -> Participation:
        """Return the process that draws the cohorts."""
        for key, value, *belongs in (
            ("probability", self.probability, "independent", "unequal"),
            ("clients_range", self.clients_range, "uniform"),
            ("chances", self.chances, "unequal"),
        ):
            if value is not None and self.participation not in belongs:
                raise UserError(f'run.{key} is for run.participation = "{belongs[0]}", not for "{self.participation}"')
        if self.participation == "independent":
            return Independent(_needed("probability", self.probability, self.participation))
        if self.participation == "uniform":
            return Uniform(*_needed("clients_range", self.clients_range, self.participation))
        if self.participation == "unequal":
            return self._unequal(clients)
        return Fixed(self.clients_per_round or int((~clients.is_new).sum()))

    def _unequal(self, clients: Crowd) -> Unequal:
        _needed("chances", self.chances, self.participation)
        existing, pi = np.flatnonzero(~clients.is_new), np.zeros(len(clients.ids))
        if isinstance(self.chances, dict):
            pi[existing] = by_name([clients.ids[i] for i in existing.tolist()], self.chances, self.probability)
        else:
            r = _needed("clients_per_round", self.clients_per_round, self.participation)
            pi[existing] = by_size(clients.sizes()[existing], r)
        return Unequal(pi)


@settings
class EvalSettings:
    """The section [eval] of a recipe."""

    adapt_steps: Length | Literal[0] = 50
    """Number of local steps by which clients adapt before they are scored, or "2 epochs" of their examples."""
    clients: Count | None = None
    """Number of existing and of new clients to evaluate, the same random sample throughout the run; all by default."""


@settings
class EngineSettings:
    """The section [engine] of a recipe."""

    kind: str = "auto"
    """Engine that computes the clients: "loop", "vmap", "fused", "ray", or "auto" to choose one."""
    dtype: Literal["float32", "float64"] = "float32"
    """Number type of models and data."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device to compute on; "auto" uses CUDA if there is a GPU."""
    deterministic: bool = True
    """On CUDA: the same bits in every run, without TF32; false is faster, but rounds differently each time."""
    threads: Size = 0
    """Number of CPU threads in total; 0 leaves it to PyTorch. On a busy machine 1 is often fastest."""
    memory: Gigabytes = 2.0
    """Memory, in gigabytes, for the clients that are computed at once; the others wait for their turn."""
    address: str = ""
    """Address of the Ray cluster: "auto" is the one that runs on this machine, "" starts one on this machine."""
    workers: Size = 0
    """Number of Ray workers, each with its own `threads` (at least one) and `memory`; 0 uses all CPUs."""


Tables = dict[str, dict[str, Any]]
"""Some sections of a recipe, each with some of its keys."""
_LONGEST = 1_000_000
"""Maximum number of bytes of a recipe. The longest that comes with Coterie has 3,000."""
ABSENT = object()
"""A value that means that the key is omitted."""

PLAIN = {
    "run": RunSettings,
    "population": PopulationSettings,
    "eval": EvalSettings,
    "stop": StopSettings,
    "engine": EngineSettings,
}
NAMED = ("data", "partition", "model", "method", "aggregate")
NO_PART_OF_A_RUN = ("experiment", "sweep")
OF_DATA = ("partition", "model")
USUAL = {"partition": "classes", "model": "mlp", "method": "pflego", "aggregate": "mean"}


@dataclass(frozen=True)
class Recipe:
    """A checked recipe. `data` and `partition` are None if a federation was given from Python."""

    model: Model
    method: Method
    aggregate: Rule
    run: RunSettings
    population: PopulationSettings
    eval: EvalSettings
    stop: StopSettings
    engine: EngineSettings
    data: Dataset | None = None
    partition: Partition | None = None

    @classmethod
    def parse(cls, tree: Mapping[str, Any]) -> "Recipe":
        """Create a recipe from nested tables, and check every key."""
        check_values(tree)
        for section, table in tree.items():
            sections = [*NAMED, *PLAIN, *NO_PART_OF_A_RUN]
            if section not in sections:
                close = registry.nearest(section, sections)
                raise UserError(f"unknown section [{section}]{close}; available: {', '.join(sections)}")
            if not isinstance(table, dict):
                raise UserError(f"{section} = {table!r:.200} must be a section with keys, such as {section}.name")
        parts: dict[str, Any] = {name: make(kind, name, tree.get(name, {})) for name, kind in PLAIN.items()}
        for section in NAMED:
            if section not in tree and (section == "data" or (section == "partition" and "data" not in tree)):
                continue
            options = dict(tree.get(section, {}))
            if section == "partition" and options.get("new_users", ABSENT) is ABSENT:
                options |= _usual_new_users(parts.get("data"), options)
            usual = getattr(parts.get("data"), f"usual_{section}", USUAL.get(section))
            name = usual if (given := options.pop("name", ABSENT)) is ABSENT else given
            if not isinstance(name, str):
                raise UserError(f"{section}.name must be one of: {', '.join(registry.names(section))}")
            parts[section] = make(registry.load(section, name), section, options)
        if (kind := parts["engine"].kind) not in (kinds := ["auto", *registry.names("engine")]):
            close = registry.nearest(kind, kinds)
            raise UserError(f"unknown engine.kind {kind!r}{close}; available: {', '.join(kinds)}")
        return cls(**parts)

    def federation(self) -> Federation:
        """Load the data and divide it among clients."""
        return self.deal(self.dataset().load())

    def dataset(self) -> Dataset:
        """Return the data set that the recipe names."""
        if self.data is None:
            raise UserError(
                "the recipe has no [data]: name a data set (see `coterie datasets`), or pass a federation from Python"
            )
        return self.data

    def deal(self, examples: Examples) -> Federation:
        """Divide a data set among clients."""
        assert self.partition is not None  # where there is [data]
        rng = streams.generator(self.run.seed, "partition")
        return Federation.assemble(examples, self.partition.assign(examples, rng))

    def as_dict(self) -> dict[str, Any]:
        """Return nested tables with every default filled in, as in a run's recipe.toml."""
        tree = {}
        for section in [*NAMED, *PLAIN]:
            if (part := getattr(self, section)) is not None:
                name = {"name": registry.name_of(section, part)} if section in NAMED else {}
                options = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
                tree[section] = name | {key: value for key, value in options.items() if _in_toml(value)}
        return tree


def read(source: str | Path | Mapping[str, Any], changes: Sequence[str] = ()) -> Recipe:
    """Read a recipe from a TOML file, from the name of a recipe that comes with Coterie, or from nested tables.

    `changes` are of the form `section.key=value`; without a value, the key is omitted.
    """
    tree = dict(source) if isinstance(source, Mapping) else load(source)
    tables: Tables = {}
    for change in changes:
        path, equals, text = change.partition("=")
        section, dot, key = path.strip().partition(".")
        if not (equals and dot and key):
            raise UserError(f"--set {change!r} is not of the form section.key=value")
        if section in NO_PART_OF_A_RUN:
            raise UserError(f"--set {change!r}: [{section}] is not part of a run; omit it")
        tables.setdefault(section, {})[key] = _value(path.strip(), text.strip())
    tree = changed(tree, tables)
    data = tree.get("data")
    if isinstance(data, dict) and isinstance(data.get("path"), str):
        absolute = str(user_path(data["path"]).absolute())  # a run may be resumed from elsewhere
        tree["data"] = {**data, "path": absolute}
    return Recipe.parse(tree)


def changed(tree: Mapping[str, Any], tables: Tables) -> dict[str, Any]:
    """Return a recipe's nested tables with some keys replaced."""
    after = dict(tree)
    before = tree.get("data")
    if isinstance(before, dict) and tables.get("data", {}).get("name", before.get("name")) != before.get("name"):
        # Other data have other default partitions and models, so settings of the previous defaults do not apply.
        of_before = [name for name in OF_DATA if isinstance(after.get(name), dict) and "name" not in after[name]]
        after = {name: table for name, table in after.items() if name not in of_before}
    for section, table in tables.items():
        base = after.get(section, {})
        if not isinstance(base, dict):
            continue  # `parse` reports what is wrong with it
        # Another name has other options, so those of the recipe do not carry over.
        own_name = base.get("name", USUAL.get(section))
        kept = base if table.get("name", own_name) == own_name else {}
        after[section] = {**kept, **table}
    return after


available = registry.recipes


def load(source: str | Path) -> dict[str, Any]:
    """Return the nested tables of a recipe file, or of a recipe that comes with Coterie."""
    path = available().get(str(source)) or user_path(source)
    try:
        with path.open("rb") as file:
            text = file.read(_LONGEST + 1)
        if len(text) > _LONGEST:
            raise UserError(f"{path} is refused: a recipe has at most {_LONGEST:,} bytes")
        return tomllib.loads(text.decode())
    except UserError:
        raise
    except FileNotFoundError:
        names = available()
        close = registry.nearest(str(source), names)
        raise UserError(f"no recipe file {source}{close}; available by name: {', '.join(names)}") from None
    except RecursionError:
        raise UserError(f"{path} is not a recipe: its values are nested too deeply") from None
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        raise UserError(f"{path} is not TOML: {error}") from None
    except OSError as error:
        raise UserError(f"cannot read the recipe {path}: {error.strerror}") from None


def make(cls: type[T], section: str, options: Mapping[str, Any]) -> T:
    """Create settings from the keys of their section."""
    known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for key in options:
        if key not in known:
            takes = f"[{section}] takes: {', '.join(known)}" if known else f"[{section}] takes no key except name"
            raise UserError(f"unknown key {section}.{key}{registry.nearest(key, known)}; {takes}")
    try:
        return cls(**{key: value for key, value in options.items() if value is not ABSENT})
    except UserError as error:
        raise UserError(f"{section}.{error}") from None


def _value(key: str, text: str) -> Any:
    if not text:
        return ABSENT
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    except (ValueError, RecursionError):
        raise UserError(f"--set {key}: the number has too many digits, or the value is nested too deeply") from None


def _usual_new_users(data: Dataset | None, options: Mapping[str, Any]) -> dict[str, float]:
    """Return the setting that holds out no client at random, if the data are the user's own or clients are named."""
    share = 0.0 if options.get("new_clients", ABSENT) not in (ABSENT, []) else getattr(data, "usual_new_users", None)
    return {} if share is None else {"new_users": share}


def _needed(key: str, value: T | None, participation: str) -> T:
    if value is None:
        raise UserError(f'run.participation = "{participation}" needs run.{key}')
    return value


def _in_toml(value: Any) -> bool:
    return isinstance(value, str | int | float | list | dict)
