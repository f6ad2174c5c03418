"""The sites with which a run begins: waiting for them, and going on later without those that are gone.

What each site said before the first round is kept in the folder of the server, in facts.json. It is sealed, and has the
identity of the run. A resumed run reads from it what missing sites cannot say.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, NamedTuple

from coterie.clients.transport import Transport
from coterie.errors import StoppedError, UserError
from coterie.sites.facts import Known, known_from
from coterie.storage.artifact import read_artifact
from coterie.storage.files import PRIVATE, make_private, write_atomically
from coterie.storage.folder import SERVER
from coterie.storage.origin import RUN, read_origin
from coterie.storage.seal import BrokenSealError, read_json, sealed_json

logger = logging.getLogger("coterie")
FILE = "facts.json"
PAUSE = 0.5
"""Seconds between two looks at who is connected."""


class Beginning(NamedTuple):
    """What the sites with which a run began said before its first round."""

    known: Mapping[str, Known] = {}
    measured: Mapping[str, Any] = {}
    """Numbers for a method whose hyper-parameters depend on all clients' data."""

    def write(self, folder: Path, run: str) -> None:
        """Write the file, with the identity of the run."""
        make_private(folder)
        sites = {name: each.to_json() for name, each in self.known.items()}
        write_atomically(folder / FILE, sealed_json({RUN: run, "sites": sites, "measured": self.measured}), PRIVATE)

    def check_same(self, told: Mapping[str, Known]) -> None:
        """Raise UserError if a site has other data than when the run began."""
        for name, now in told.items():
            then = self.known.get(name, now)
            if now.facts != then.facts:
                raise UserError(
                    f"{name} has other data than when this run began: it had {then.told()}, and now has {now.told()}. "
                    "Start `coterie client` there with the data it had, or start a new run"
                )


def read_beginning(folder: Path, run: str) -> Beginning:
    """Read the file. Raises UserError if it is missing, damaged or of another run."""
    file = folder / FILE
    try:
        tree = read_json(file.read_bytes())
        began = Beginning({name: known_from(told) for name, told in tree["sites"].items()}, tree["measured"])
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from None
    except (BrokenSealError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{file} is damaged: {error}") from None
    if tree.get(RUN) != run:
        raise UserError(f"{file} belongs to another run than recipe.toml")
    return began


def sites_to_begin(
    transport: Transport,
    listed: Callable[[], Iterable[str]],
    number: int | None,
    seconds: float,
    stopped: Callable[[], bool],
) -> list[str]:
    """Wait until the sites are connected with which a run begins, and return their names.

    Args:
        transport: the way to the sites.
        listed: returns the names of the sites that may connect.
        number: number of sites that are enough; None for all.
        seconds: time to wait.
        stopped: returns whether to stop waiting, by raising KeyboardInterrupt.
    """

    def enough(there: set[str], over: bool) -> bool:
        if (len(there) >= number) if number else there >= set(listed()):
            return True
        if over:
            raise StoppedError(
                f"{_waiting(there, set(listed()), number)}, but they did not connect within {seconds:.0f} s. Start "
                "`coterie client` there"
            )
        return False

    return sorted(_wait(transport, lambda: set(listed()), number, enough, seconds, stopped))


class Left(NamedTuple):
    """What is left of the beginning of a run that is resumed."""

    training: frozenset[str]
    """Names of the sites with which the run began and that train."""
    new: frozenset[str]
    """Names of those that are held out of training."""
    began: Beginning
    unreadable: str = ""
    """The reason why it is not known what missing sites have said, so that all sites are needed."""

    @classmethod
    def of(cls, run: Path) -> "Left":
        """Read it from the folder of a run."""
        members = read_artifact(run).members
        new = frozenset(name for name, is_new in zip(members.ids, members.is_new, strict=True) if is_new)
        training = frozenset(members.ids) - new
        try:
            return cls(training, new, read_beginning(run / SERVER, read_origin(run).run))
        except UserError as error:
            return cls(training, new, Beginning(), str(error))


def sites_to_resume(
    transport: Transport,
    listed: Callable[[], Iterable[str]],
    left: Left,
    minimum: int,
    seconds: float,
    stopped: Callable[[], bool],
) -> list[str]:
    """Wait until enough of the sites are connected with which a run began, and return the names of those.

    The run goes on as soon as all of them are there that are still listed. When the time is over, it goes on if at
    least `minimum` of those that train are there.

    Args:
        transport: the way to the sites.
        listed: returns the names of the sites that may connect.
        left: the sites with which the run began.
        minimum: number of sites that are needed to train.
        seconds: time to wait.
        stopped: returns whether to stop waiting, by raising KeyboardInterrupt.
    """
    everyone = left.training | left.new

    def expected() -> AbstractSet[str]:
        return everyone & set(listed())

    def enough(there: set[str], over: bool) -> bool:
        here = expected()
        removed = ", ".join(sorted(everyone - here))
        if removed and left.unreadable:
            raise StoppedError(
                f"{removed} cannot connect any more, because the list of sites does not have them, and "
                f"{left.unreadable}. A run can only be resumed without a site if this file tells what the site had. "
                "Restore it from a backup, or start a new run"
            )
        if not here & left.training:
            raise StoppedError(
                f"none of the sites that trained in this run can connect any more: the list of sites has no {removed}. "
                "Start a new run with other sites"
            )
        if there >= here:
            return True
        training = there & here & left.training
        if over and (left.unreadable or len(training) < minimum):
            why = f"only {len(training)} of the sites that train are there, and {minimum} are needed"
            if left.unreadable:
                why = f"without them the run cannot be resumed, because {left.unreadable}"
            raise StoppedError(
                f"{_waiting(there, here)}, but they did not connect within {seconds:.0f} s, and {why}. Nothing "
                "has changed. Start `coterie client` there, and resume the run again"
            )
        return over

    if left.unreadable:
        logger.warning("%s, so the run can only be resumed with all sites with which it began", left.unreadable)
    there = _wait(transport, expected, None, enough, seconds, stopped) & expected()
    if missing := sorted(everyone - there):
        removed = sorted(everyone - set(listed()))
        logger.warning(
            "the run goes on without %s: %s absent from its rounds until connected again%s",
            ", ".join(missing),
            "it is" if len(missing) == 1 else "they are",
            f" ({', '.join(removed)} cannot connect, because the list of sites does not have them)" if removed else "",
        )
    return sorted(there)


def _wait(
    transport: Transport,
    expected: Callable[[], AbstractSet[str]],
    number: int | None,
    enough: Callable[[set[str], bool], bool],
    seconds: float,
    stopped: Callable[[], bool],
) -> set[str]:
    """Wait until the connected sites are enough, which also depends on whether the time is over."""
    end, shown = time.monotonic() + seconds, ""
    while True:
        there = transport.connected()
        if enough(there, time.monotonic() > end):
            return there
        if (told := _waiting(there, expected(), number)) != shown:
            logger.info(told)
            shown = told
        if stopped():
            raise KeyboardInterrupt
        time.sleep(PAUSE)


def _waiting(there: AbstractSet[str], expected: AbstractSet[str], number: int | None = None) -> str:
    missing = ", ".join(sorted(expected - there))
    return f"{len(there & expected)} of {number or len(expected)} sites are connected; waiting for {missing}"
