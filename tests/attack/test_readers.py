"""A short sample of the malformed inputs of `readers.py` and `edits.py`, the same in every run."""

from pathlib import Path

import pytest

from attack.edits import read, search, sources
from attack.readers import attempts
from coterie.errors import UserError

SEEDS = 20
EXAMPLES = 20


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")  # of zipfile, when an attempt writes its file
@pytest.mark.parametrize("name", attempts())
def test_a_malformed_input_is_read_or_refused(name: str, tmp_path: Path) -> None:
    read, refused = attempts()[name], 0
    for seed in range(SEEDS):
        (tmp_path / str(seed)).mkdir()
        try:
            read(seed, tmp_path / str(seed))
        except UserError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"{name}, seed {seed}: {error!r}") from error
    assert refused > 0, "the inputs are not malformed enough"


@pytest.mark.parametrize("name", sources())
def test_an_edited_file_is_read_or_refused(name: str) -> None:
    assert read(sources()[name], {}) == "read"
    search(name, EXAMPLES)
