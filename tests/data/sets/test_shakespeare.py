import gzip
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from coterie.data.sets.shakespeare import BOS, CHARACTERS, EOS, OOV, PAD, VOCABULARY, Shakespeare
from coterie.errors import UserError
from data.sets.published import need

LINES = {"A_BOTTOM": [b"Ay", b"", b"No {!"], "A_SNUG": [b"Roar"]}


def write(folder: Path, train=None, test=None, dtype: str = "S") -> Path:
    """Write snippets as TFF does: bytes of fixed width, or of any width with h5py's own type."""
    for part, roles in (("train", train or LINES), ("test", test or {"A_BOTTOM": [b"Ay"], "A_SNUG": [b"O"]})):
        with h5py.File(folder / f"shakespeare_{part}.h5", "w") as file:
            for role, snippets in roles.items():
                kind = dtype or h5py.string_dtype("ascii")
                file[f"examples/{role}/snippets"] = np.array(snippets, dtype=dtype or object).astype(kind)
    return folder


def tokens(text: str) -> list[int]:
    return [VOCABULARY.index(character) for character in text]


def said(row) -> str:
    return "".join(VOCABULARY[token] for token in row if token >= 0)


def test_the_vocabulary() -> None:
    assert len(CHARACTERS) == len(set(CHARACTERS)) == 86
    assert (len(VOCABULARY), PAD, BOS, EOS, OOV) == (90, 0, 1, 2, 89)
    assert "".join(sorted(CHARACTERS)) == CHARACTERS
    # The printable ASCII characters that are not in the vocabulary.
    assert {chr(code) for code in range(32, 127)} - set(CHARACTERS) == set("+<=>\\^`{|}~")


@pytest.mark.parametrize("dtype", ["S", ""])
def test_snippets_are_cut_and_shifted(tmp_path: Path, dtype: str) -> None:
    data = Shakespeare(path=str(write(tmp_path, dtype=dtype)), sequence_length=4).load()
    n, o, space, mark = tokens("No !")
    a, y = tokens("Ay")
    r, *oar = tokens("Roar")
    assert data.x_train.tolist() == [
        [BOS, a, y, PAD],
        [BOS, PAD, PAD, PAD],
        [BOS, n, o, space],
        [OOV, mark, PAD, PAD],
        [BOS, r, *oar[:2]],
        [oar[2], PAD, PAD, PAD],
    ]
    assert data.y_train.tolist() == [
        [a, y, EOS, -1],
        [EOS, -1, -1, -1],
        [n, o, space, OOV],
        [mark, EOS, -1, -1],
        [r, *oar],
        [EOS, -1, -1, -1],
    ]
    assert data.groups is not None
    assert data.groups.names == ("A_BOTTOM", "A_SNUG")
    assert data.groups.train.tolist() == [0, 0, 0, 0, 1, 1]
    assert data.groups.test.tolist() == [0, 1]
    assert (data.x_train.dtype, data.y_train.dtype, data.labels) == (np.int64, np.int64, VOCABULARY)


def test_joined_snippets_run_on(tmp_path: Path) -> None:
    """Cut ABCD and E into pieces of three, the example in FedJAX's documentation."""
    write(tmp_path, {"R": [b"ABCD", b"E"], "S": [b"A"]}, {"Q": [b"E"], "R": [b"A", b""]})
    data = Shakespeare(path=str(tmp_path), sequence_length=3, joined=True).load()
    a, b, c, d, e = tokens("ABCDE")
    assert data.x_train.tolist() == [[BOS, a, b], [c, d, EOS], [BOS, e, PAD], [BOS, a, PAD]]
    assert data.y_train.tolist() == [[a, b, c], [d, EOS, BOS], [e, EOS, -1], [a, EOS, -1]]
    assert data.x_test.tolist() == [[BOS, e, PAD], [BOS, a, EOS], [BOS, PAD, PAD]]
    assert data.groups is not None
    assert (data.groups.names, data.groups.test.tolist()) == (("R", "S", "Q"), [2, 0, 0])


@pytest.mark.parametrize(
    ("length", "sequences", "last"), [(0, 1, 1), (79, 1, 80), (80, 2, 1), (81, 2, 2), (159, 2, 80)]
)
def test_lengths_around_a_full_sequence(tmp_path: Path, length: int, sequences: int, last: int) -> None:
    data = Shakespeare(path=str(write(tmp_path, {"R": [b"o" * length]}))).load()
    assert data.x_train.shape == (sequences, 80)
    assert (data.y_train >= 0).sum(axis=1).tolist() == [80] * (sequences - 1) + [last]
    assert data.y_train[-1, last - 1] == EOS


def test_files_may_be_gzipped(tmp_path: Path) -> None:
    for path in sorted(write(tmp_path).iterdir()):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert said(Shakespeare(path=str(tmp_path)).load().y_train[0]) == "Ay<eos>"


def test_any_byte_outside_the_vocabulary_is_oov(tmp_path: Path) -> None:
    data = Shakespeare(path=str(write(tmp_path, {"R": [b"\xe9\t"]}))).load()
    assert data.y_train[0, :4].tolist() == [OOV, OOV, EOS, -1]


def test_damage_is_told_with_its_file(tmp_path: Path) -> None:
    folder = write(tmp_path)
    path = folder / "shakespeare_train.h5"

    def refused(reason: str) -> None:
        with pytest.raises(UserError, match=reason) as caught:
            Shakespeare(path=str(folder)).load()
        assert str(path) in str(caught.value)

    whole = path.read_bytes()
    for content in (b"no HDF5", whole[: len(whole) // 2], gzip.compress(whole)[:-9]):
        path.write_bytes(content)
        refused("is damaged: it")
    for name, value in (("other/R/snippets", [b"a"]), ("examples/R/lines", [b"a"]), ("examples/R/snippets", [1, 2])):
        with h5py.File(path, "w") as file:
            file[name] = value
        refused("not an HDF5 file with bytes in examples/<PLAY_ROLE>/snippets")
    with h5py.File(path, "w") as file:
        file.create_group("examples")
    refused("it has no snippets")


def test_missing_files_and_packages_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"missing shakespeare_train\.h5, shakespeare_test\.h5 ") as caught:
        Shakespeare(path=str(tmp_path)).load()
    assert "https://storage.googleapis.com/tff-datasets-public/shakespeare.tar.bz2" in str(caught.value)
    write(tmp_path)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UserError, match=r"pip install 'coterie\[text\]'"):
        Shakespeare(path=str(tmp_path)).load()


def test_published_facts() -> None:
    need("shakespeare")
    data = Shakespeare().load()
    assert data.groups is not None
    assert len(data.groups.names) == len(np.unique(data.groups.train)) == len(np.unique(data.groups.test)) == 715
    for x, y, sequences, targets, snippets, others in (
        (data.x_train, data.y_train, 38001, 2375383, 16068, 2),
        (data.x_test, data.y_test, 5517, 342108, 2356, 0),
    ):
        assert x.shape == y.shape == (sequences, 80)
        assert (x == BOS).sum() == (y == EOS).sum() == snippets
        assert ((y >= 0).sum(), (y == OOV).sum()) == (targets, others)
        assert ((y == BOS) | (y == PAD)).sum() == 0
        assert ((x == PAD) == (y == -1)).all()
        inside = y[:, 1:] >= 0
        assert (x[:, 1:][inside] == y[:, :-1][inside]).all()
        # If a snippet has several pieces, each starts with the last target of the piece before it.
        on = x[1:, 0] != BOS
        assert (x[1:, 0][on] == y[:-1, -1][on]).all()
    assert said(data.y_train[0]) == "Yonder comes my master, your brother.<eos>"
    macbeth = data.groups.names.index("THE_TRAGEDY_OF_KING_LEAR_MACBETH")
    spoken = "".join(said(row) for row in data.y_train[data.groups.train == macbeth])
    (speech,) = [snippet for snippet in spoken.split("<eos>") if "Creeps in" in snippet]
    assert len(speech) == 542
    assert "time for such a word.\nTomorrow, and tomorrow, and tomorrow\nCreeps in this petty pace" in speech
    assert speech.endswith("thy story quickly.\nWell, say, sir.")


def test_joined_as_in_fedjax() -> None:
    need("shakespeare")
    data = Shakespeare(joined=True).load()
    assert (len(data.x_train), len(data.x_test)) == (30249, 4657)
    assert ((data.y_train == BOS).sum(), (data.y_test == BOS).sum()) == (16068 - 715, 2356 - 715)
