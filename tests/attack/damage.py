"""Every single bit of a file, samples of other damage such as cuts and lost lines, and files of another run."""

import shutil
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from random import Random
from typing import NamedTuple

EVERY_BIT = 6_000
"""Size in bytes up to which every bit of a file is flipped. Of larger files, a sample is."""
SAMPLE = 2_000
"""Number of bits of a larger file that are flipped."""
OTHER = 40
"""Number of other damages to each file."""


class Damage(NamedTuple):
    """A change of one file."""

    file: str
    kind: str
    place: int

    def __str__(self) -> str:
        return f"{self.kind} {self.place} of {self.file}"

    def to(self, folder: Path) -> bool:
        """Damage the file in a folder. Returns whether that changed it."""
        path = folder / self.file
        before = path.read_bytes()
        if self.kind == "lost":
            path.unlink()
            return True
        after = self._applied(before)
        path.write_bytes(after)
        return after != before

    def _applied(self, raw: bytes) -> bytes:
        if self.kind == "bit":
            place, bit = divmod(self.place, 8)
            return raw[:place] + bytes([raw[place] ^ 1 << bit]) + raw[place + 1 :]
        rng = Random(self.place)
        start, length = rng.randrange(max(1, len(raw))), rng.choice((1, 2, 8, 64, 512, 4096))
        lines = raw.splitlines(keepends=True) or [b""]
        line = rng.randrange(len(lines))
        match self.kind:
            case "cut":
                return raw[:start]
            case "zeros":
                return raw[:start] + bytes(len(raw[start : start + length])) + raw[start + length :]
            case "noise":
                return raw[:start] + rng.randbytes(len(raw[start : start + length])) + raw[start + length :]
            case "more":
                return raw + rng.randbytes(length)
            case "lost line":
                return b"".join(lines[:line] + lines[line + 1 :])
            case "repeated line":
                return b"".join(lines[: line + 1] + lines[line:])
            case "swapped lines":
                other = rng.randrange(len(lines))
                lines[line], lines[other] = lines[other], lines[line]
                return b"".join(lines)
        raise AssertionError(self.kind)


class Swap(NamedTuple):
    """Whole files or folders that are replaced by those of another run."""

    names: tuple[str, ...]
    other: Path

    def __str__(self) -> str:
        return f"{', '.join(self.names)} of another run"

    def to(self, folder: Path) -> bool:
        """Replace them in a folder."""
        for name in self.names:
            source, target = self.other / name, folder / name
            if source.is_dir():
                shutil.rmtree(target, ignore_errors=True)
                shutil.copytree(source, target)
            else:
                shutil.copy(source, target)
        return True


PARTS = (
    ("rounds.jsonl",),
    ("summary.json", "clients.csv"),
    ("announcement.json", "initial.safetensors", "clients.safetensors"),
    ("checkpoint",),
)
"""Files that agree with each other, besides the recipe."""


def swaps(other: Path) -> Iterator[Swap]:
    """Yield swaps of the recipe, of each checkpoint, and of all combinations of the other parts."""
    yield Swap(("recipe.toml",), other)
    for path in sorted(other.glob("checkpoint/round-*")):
        yield Swap((f"checkpoint/{path.name}",), other)
    for size in range(1, len(PARTS) + 1):
        for parts in combinations(PARTS, size):
            yield Swap(tuple(name for part in parts for name in part), other)


BYTES = ("cut", "zeros", "noise", "more")
LINES = ("lost line", "repeated line", "swapped lines")


def damages(folder: Path, files: list[str]) -> Iterator[Damage]:
    """Yield the damages to the files of a folder. They are the same in every run."""
    for file in files:
        size = (folder / file).stat().st_size
        places = range(8 * size) if size <= EVERY_BIT else sorted(Random(size).sample(range(8 * size), SAMPLE))
        yield from (Damage(file, "bit", place) for place in places)
        kinds = BYTES + LINES if file.endswith(("l", "n", "v")) else BYTES  # toml, jsonl, json and csv
        yield from (Damage(file, kinds[number % len(kinds)], number) for number in range(OTHER))
        yield Damage(file, "lost", 0)
