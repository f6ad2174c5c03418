"""The policy of a site: which runs it takes part in, and what may leave it.

The policy is a file of the site's own, which the server never sees. If it says "ask", each new run waits until a person
at the site accepts or refuses it. A policy that cannot be read is an error, so that nothing is sent by mistake.
"""

import dataclasses
import os
import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from coterie.errors import UserError
from coterie.registry import nearest
from coterie.settings import Count, check_values, settings
from coterie.sites.files import changing, timestamp
from coterie.sites.terms import Terms
from coterie.storage.files import PRIVATE, make_private, write_atomically
from coterie.storage.seal import BrokenSealError, read_json, sealed_json

FILE, REQUESTS = "policy.toml", "requests"
"""Names of the policy and of the folder with requests, in the site's folder of state."""
_LONGEST = 1_000_000
"""Maximum number of bytes of a policy."""
_MOST = 100
"""Maximum number of requests that wait for a decision. A server cannot fill the disk of a site with them."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


def _digest(text: str) -> str:
    if not _DIGEST.fullmatch(text):
        raise PydanticCustomError("digest", "must be the digest of a run, which has 64 hexadecimal digits")
    return text


Limit = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@settings
class Policy:
    """What a site agrees to. The limits hold in every mode, also for runs that were accepted."""

    mode: Literal["ask", "accept-listed", "accept-all"] = "ask"
    """What happens with a run within the limits: "ask" waits for the decision of a person unless the run is in
    `accept`, "accept-listed" refuses all runs that are not in `accept`, "accept-all" accepts it."""
    accept: list[Annotated[str, AfterValidator(_digest)]] = dataclasses.field(default_factory=list)
    """Digests of accepted runs."""
    methods: list[str] | Literal["all"] = "all"
    """Names of the methods that a run may use."""
    max_rounds: Count | None = None
    """Maximum number of rounds of a run; any number by default."""
    send: list[str] | Literal["all"] = "all"
    """Patterns for the names of tensors that may leave the site, such as "body.*". Names of tensors in letters begin
    with "letter:"."""
    scores: bool = True
    """Whether the scores of the site's model may leave it. If not, runs that ask for scores are refused."""
    max_norm: Limit | None = None
    """Refuse runs unless replies are clipped to this norm or a smaller one. No run clips yet."""
    min_noise: Limit | None = None
    """Refuse runs unless at least this much noise is added to replies. No run adds noise yet."""

    def judge(self, terms: Terms) -> str | None:
        """Return why the limits of the policy do not allow a run, or None if they allow it."""
        return next(self._objections(terms), None)

    def _objections(self, terms: Terms) -> Iterator[str]:
        if self.methods != "all" and terms.method not in self.methods:
            yield f"the policy allows the methods {_listed(self.methods)}, and the run uses {terms.method}"
        if self.max_rounds is not None and terms.rounds > self.max_rounds:
            yield f"the policy allows {self.max_rounds:,} rounds, and the run has {terms.rounds:,}"
        for name, *_ in terms.tensors:
            if self.send != "all" and not any(fnmatchcase(name, pattern) for pattern in self.send):
                yield f"the policy does not allow that the tensor {name} is sent"
        if terms.scores and not self.scores:
            yield "the policy does not allow that scores are sent, and the run asks for them"
        norm, noise = terms.privacy.get("norm"), terms.privacy.get("noise", 0.0)
        if self.max_norm is not None and (norm is None or norm > self.max_norm):
            there = "does not clip them" if norm is None else f"clips them to {norm:g}"
            yield f"the policy asks that replies are clipped to a norm of {self.max_norm:g}, and the run {there}"
        if self.min_noise is not None and noise < self.min_noise:
            there = "adds none" if noise == 0 else f"adds {noise:g}"
            yield f"the policy asks for noise of at least {self.min_noise:g}, and the run {there}"
        if self.mode == "accept-listed" and terms.digest() not in self.accept:
            yield "the policy accepts only the runs that it lists, and this run is not one of them"


class Verdict(NamedTuple):
    """What a site answers to the announcement of a run."""

    kind: Literal["accepted", "refused", "waiting"]
    reason: str = ""


class Request(NamedTuple):
    """A run that a person at the site was asked about."""

    digest: str
    terms: Terms
    asked: str
    """Time in UTC."""
    accepted: bool | None = None
    """The decision; None as long as the request waits for one."""
    decided: str | None = None
    """Time in UTC."""


def read(file: Path) -> Policy:
    """Read a policy. Raises UserError if the file cannot be read, or has a key or value that no policy has."""
    try:
        with file.open("rb") as opened:
            content = opened.read(_LONGEST + 1)
        if len(content) > _LONGEST:
            raise UserError(f"{file} is refused: a policy has at most {_LONGEST:,} bytes")
        tree = tomllib.loads(content.decode())
    except OSError as error:
        raise UserError(f"cannot read the policy {file}: {error.strerror}; nothing is sent without it") from None
    except RecursionError:
        raise UserError(f"{file} is not a policy: its values are nested too deeply") from None
    except UserError:
        raise
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        raise UserError(f"{file} is not TOML: {error}; nothing is sent until it is corrected") from None
    known = [field.name for field in dataclasses.fields(Policy)]
    for key in tree:
        if key not in known:
            raise UserError(f"{file}: unknown key {key}{nearest(key, known)}; a policy takes: {', '.join(known)}")
    try:
        check_values(tree)
        policy = Policy(**tree)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    if policy.accept and policy.mode == "accept-all":
        raise UserError(f'{file}: mode = "accept-all" accepts also runs that are not in accept; remove one of the two')
    return policy


def of_state(state: Path) -> Policy:
    """Return the policy in a site's folder of state. Without a file, a person is asked about each run."""
    file = state / FILE
    return read(file) if os.path.lexists(file) else Policy()  # a broken link is an error, not a missing policy


def consult(policy: Policy, terms: Terms, state: Path) -> Verdict:
    """Return whether a site takes part in a run. If a person has to decide, write a request for the first time."""
    if reason := policy.judge(terms):
        return Verdict("refused", reason)
    digest, folder = terms.digest(), state / REQUESTS
    made = _read(folder / f"{digest}.json")
    if made is not None and made.accepted is False:
        return Verdict("refused", "a person at the site has refused this run")
    if policy.mode != "ask" or digest in policy.accept or (made is not None and made.accepted):
        return Verdict("accepted")
    if made is None:
        make_private(folder)
        with changing(folder):
            if len(pending(state)) >= _MOST:
                return Verdict("refused", f"{_MOST} other runs wait for a decision at the site")
            _write(folder, Request(digest, terms, timestamp()))
    return Verdict("waiting", f"the run {digest} waits for a decision at the site")


def requests(state: Path) -> list[Request]:
    """Return all runs that a person at the site was asked about, with the decisions, the oldest first."""
    files = (state / REQUESTS).glob("[!.]*.json")
    made = [request for file in files if (request := _read(file)) is not None]
    return sorted(made, key=lambda request: (request.asked, request.digest))


def pending(state: Path) -> list[Request]:
    """Return the runs that wait for a decision, the oldest first."""
    return [request for request in requests(state) if request.accepted is None]


def decide(state: Path, digest: str, accept: bool) -> Request:
    """Accept or refuse a run. The first digits of its digest are enough. A decision can be changed later."""
    folder = state / REQUESTS
    if not folder.is_dir():
        raise UserError(f"no run has asked to be accepted at {state}; check --state")
    with changing(folder):
        made = requests(state)
        found = [request for request in made if digest and request.digest.startswith(digest.lower())]
        if len(found) != 1:
            what = "several runs have a digest that begins" if found else "no run has a digest that begins"
            known = ", ".join(request.digest for request in found or made) or "none"
            raise UserError(f"{what} with {digest[:64]!r}; runs that have asked at {state}: {known}")
        decided = found[0]._replace(accepted=accept, decided=timestamp())
        _write(folder, decided)
    return decided


def _read(file: Path) -> Request | None:
    """Return the request in a file, or None if there is no such file."""
    try:
        tree: dict[str, Any] = read_json(file.read_bytes())
        request = Request(**{**tree, "terms": Terms.from_json(tree["terms"])})
        if request.digest != request.terms.digest() or file.stem != request.digest:
            raise BrokenSealError
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from None
    except (BrokenSealError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{file} is damaged, or it was not written by Coterie; delete it, and the run will be asked about again"
        ) from None
    return request


def _write(folder: Path, request: Request) -> None:
    tree = {**request._asdict(), "terms": request.terms.to_json()}
    write_atomically(folder / f"{request.digest}.json", sealed_json(tree), PRIVATE)


def _listed(names: list[str] | str) -> str:
    return ", ".join(names) if names else "(none)"
