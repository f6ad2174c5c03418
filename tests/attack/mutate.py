"""Random damage to files and random values, reproducible by seed."""

from random import Random
from typing import Any

import numpy as np

EXTREMES = (
    0,
    1,
    -1,
    127,
    128,
    255,
    256,
    65535,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**53,
    2**53 + 1,
    2**63 - 1,
    2**63,
    10**30,
)
TEXTS = ("", " ", "a", "A" * 300, "\0", "a\0", "1", "1.0", "01", "1_0", "nan", "NaN", "inf", "-inf", "1e400", "None")
ODD_TEXTS = (
    *TEXTS,
    "true",
    "ä",
    "\u202e",
    "\U0001f600",
    "\ud800",
    "../../x",
    "~nobody/x",
    "=1+1",
    '"',
    "'",
    "\r\n",
    "9" * 30,
)


def damaged(rng: Random, raw: bytes) -> bytes:
    """Return a file with a few random changes. Small files often get changes that keep their structure."""
    content = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        place = rng.randrange(len(content) + 1)
        length = rng.choice((1, 1, 2, 4, 8, 64))
        match rng.randrange(7):
            case 0 if content:
                content[place % len(content)] ^= 1 << rng.randrange(8)
            case 1:
                content[place : place + length] = rng.randbytes(length)
            case 2:
                del content[place : place + length]
            case 3:
                del content[place:]
            case 4:
                content[place:place] = content[place : place + length] * rng.choice((1, 2, 50))
            case 5:
                width, order = rng.choice((1, 2, 4, 8)), rng.choice(("little", "big"))
                number = rng.choice(EXTREMES) % 256**width
                content[place : place + width] = number.to_bytes(width, order)
            case _:
                content[place:place] = rng.choice(ODD_TEXTS).encode(errors="surrogatepass")
    return bytes(content)


def value(rng: Random, depth: int = 2) -> Any:
    """Return any Python value that a user, a frame or a parser might pass."""
    kind = rng.randrange(12 if depth else 9)
    if kind < 2:
        return rng.choice(EXTREMES) * rng.choice((1, -1))
    if kind < 4:
        return rng.choice(ODD_TEXTS)
    if kind < 6:
        return rng.choice((0.0, -0.0, 0.5, 1.0, 1e19, 2e19, 1e300, float("nan"), float("inf"), -1.5))
    if kind < 9:
        odd = (None, True, False, b"", b"\xff", 1j, np.float32(1.5), np.int8(3), np.uint64(2**63), np.datetime64("NaT"))
        return rng.choice((*odd, np.str_("a"), np.array(3), np.longdouble(1.5), object(), Ellipsis))
    inside = [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return rng.choice((inside, tuple(inside), {str(i): each for i, each in enumerate(inside)}))


def column(rng: Random, rows: int) -> Any:
    """Return a column of a table: usually of the right length and of one type."""
    length = rows if rng.random() < 0.95 else rng.randrange(rows + 2)
    if rng.random() < 0.4:
        mixed = [value(rng, 1) if rng.random() < 0.3 else rng.choice((0, 1, "a")) for _ in range(length)]
        if rng.random() < 0.5:
            return mixed
        objects = np.empty(length, dtype=object)
        objects[:] = mixed
        return objects
    dtypes = ("f2", "f4", "f8", "i1", "i8", "u8", "?", "U3", "S3", "M8[D]", "m8[s]", "c16", "g", ">f8", "O")
    numbers = np.array([rng.choice((0, 1, 2, 3, 100)) for _ in range(length)])
    made = numbers.astype(rng.choice(dtypes))
    if rng.random() < 0.1:
        made = np.ma.array(made, mask=[rng.random() < 0.2 for _ in range(length)])
    return made if rng.random() < 0.9 else np.stack([made, made], axis=-1)
