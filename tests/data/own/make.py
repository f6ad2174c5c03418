"""One small federation, written in every format that Coterie reads."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Client = tuple[NDArray[Any], NDArray[Any]]
NAMES = ("height", "weight", "age")


def clients(labels: Any = int) -> dict[str, Client]:
    """Return three clients with different classes and sizes. No format rounds their features."""
    rng = np.random.default_rng(7)
    classes = {"anna": (1, 5), "ben": (2, 3, 5), "carl": (1, 2)}
    sizes = {"anna": 17, "ben": 24, "carl": 9}
    return {
        name: (
            np.round(rng.normal(size=(sizes[name], len(NAMES))), 3),
            np.array([labels(own[i % len(own)]) for i in range(sizes[name])]),
        )
        for name, own in classes.items()
    }


def rows(who: dict[str, Client], **columns: Any) -> list[dict[str, Any]]:
    """Return the rows of one table in which the clients alternate."""
    each = [
        [{"site": name, "y": y[i].item(), **dict(zip(NAMES, x[i].tolist(), strict=True))} for i in range(len(y))]
        for name, (x, y) in who.items()
    ]
    longest = max(map(len, each))
    return [mine[i] | columns for i in range(longest) for mine in reversed(each) if i < len(mine)]


def write_csv(path: Path, table: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    return path


def write_images(folder: Path, images: NDArray[np.uint8], kinds: list[str], suffix: str = ".png") -> None:
    from PIL import Image

    for i, (pixels, kind) in enumerate(zip(images, kinds, strict=True)):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / kind / f"{i:03}{suffix}")
