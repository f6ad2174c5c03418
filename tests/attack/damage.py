"""Every single bit of a file, and samples of other damage: cuts, overwritten ranges, lost and repeated lines."""

from collections.abc import Iterator
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
