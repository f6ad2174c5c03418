"""Coverage-guided fuzzing of the parsers with the most code of their own: recipe values, LIBSVM and pickles.

    python tests/attack/fuzz.py recipe|libsvm|pickles --seconds 600

It needs Atheris: pip install 'coterie[attack]'. An input that escapes is written to crash-* in the current folder.
"""

import argparse
import contextlib
import pickle
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

try:
    import atheris
except ImportError:
    sys.exit("fuzzing needs Atheris, which is not installed: pip install 'coterie[attack]'")

with atheris.instrument_imports(
    include=["coterie.recipe", "coterie.settings", "coterie.data", "tomllib", "pickletools"]
):
    from coterie import recipe
    from coterie.data.files import pickles
    from coterie.data.sets import cifar, libsvm, pubmed
    from coterie.errors import UserError

FOLDER = Path(tempfile.mkdtemp())


def read_recipe(raw: bytes) -> None:
    """Read a change of a recipe: the first line is the key, the rest is the value."""
    key, _, text = raw.decode(errors="replace").partition("\n")
    recipe.read({"data": {"name": "digits"}}, [f"{key}={text}"])


def read_recipe_file(raw: bytes) -> None:
    """Read a recipe file."""
    (FOLDER / "a.toml").write_bytes(raw)
    recipe.read(FOLDER / "a.toml")


def read_libsvm(raw: bytes) -> None:
    """Read a LIBSVM file."""
    (FOLDER / "a").write_bytes(raw)
    libsvm.examples([FOLDER / "a"])


def read_pickles(raw: bytes) -> None:
    """Read a pickle in all the ways that data sets do."""
    (FOLDER / "a").write_bytes(raw)
    for read in (
        lambda path: pickles.load(path, pubmed._MORE),
        lambda path: cifar.read_python(path, "labels", 10),
        lambda path: pubmed._features(path),
        lambda path: pubmed._edges(path, 10),
    ):
        quiet(read, FOLDER / "a")


def quiet(read: Callable[..., object], given: object) -> None:
    """Call a reader. A UserError is the right answer to bad input."""
    with contextlib.suppress(UserError):
        read(given)


def corpus() -> dict[str, list[bytes]]:
    """Return valid inputs to start from."""
    arrays = {"data": np.zeros((1, 3072), np.uint8), "labels": [1], "n": np.int64(3)}
    changes = [b"run.seed\n3", b"method.tau\n[1, {a = 2.5}]", b'data.path\n"x"', b'partition.new_clients\n["a"]']
    return {
        "recipe": [*changes, b'[data]\nname = "digits"\n[run]\nrounds = 3\n', b"eval.adapt_steps\n2 epochs"],
        "libsvm": [b"1 1:0.5 3:-2\n-1 2:1e1 # x\n", b"0\n1 1:1\n"],
        "pickles": [pickle.dumps(tree, protocol) for protocol in (0, 2, 4) for tree in (arrays, [1, "a", {2: (3.5,)}])],
    }


def main() -> None:
    """Fuzz one of the parsers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parser", choices=["recipe", "libsvm", "pickles"])
    parser.add_argument("--seconds", type=int, default=600)
    chosen = parser.parse_args()
    readers = {"recipe": (read_recipe, read_recipe_file), "libsvm": (read_libsvm,), "pickles": (read_pickles,)}
    start = FOLDER / "corpus"
    start.mkdir()
    for number, raw in enumerate(corpus()[chosen.parser]):
        (start / str(number)).write_bytes(raw)

    def attempt(raw: bytes) -> None:
        for read in readers[chosen.parser]:
            quiet(read, raw)

    limits = [f"-max_total_time={chosen.seconds}", "-rss_limit_mb=4096", "-timeout=30", "-max_len=8192"]
    atheris.Setup([sys.argv[0], *limits, str(start)], attempt)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
