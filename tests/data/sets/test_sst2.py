import gzip
from pathlib import Path

import numpy as np
import pytest

from coterie.data.sets.sst2 import CLS, FIRST_WORD, SEP, SST2, UNK
from coterie.errors import UserError
from data.sets.published import need

TRAIN = "sentence\tlabel\na c b b \t1\nc \t0\nb c a d \t1\n"
DEV = "sentence\tlabel\nd e a \t0\n"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "##b", "##bc", "é", "e", "un", "##fun", "##ny"]


def write(folder: Path, train: str = TRAIN, dev: str = DEV) -> Path:
    for name, text in (("train.tsv", train), ("dev.tsv", dev)):
        (folder / name).write_bytes(text.encode())
    return folder


def test_words_are_numbered_by_frequency_then_by_the_alphabet(tmp_path: Path) -> None:
    data = SST2(path=str(write(tmp_path))).load()
    b, c, a, d = range(FIRST_WORD, FIRST_WORD + 4)  # three times, three times, twice, once
    assert data.x_train.tolist() == [[CLS, a, c, b, b, SEP], [CLS, c, SEP, 0, 0, 0], [CLS, b, c, a, d, SEP]]
    assert data.x_test.tolist() == [[CLS, d, UNK, a, SEP, 0]]
    assert (data.y_train.tolist(), data.y_test.tolist()) == ([1, 0, 1], [0])
    assert (data.labels, data.groups, data.validation) == (("negative", "positive"), None, None)
    assert (data.x_train.dtype, data.y_train.dtype) == (np.int64, np.int64)


def test_long_sentences_are_cut_before_the_end_mark(tmp_path: Path) -> None:
    data = SST2(path=str(write(tmp_path)), max_length=4).load()
    b, c, a, d = range(FIRST_WORD, FIRST_WORD + 4)
    assert data.x_train.tolist() == [[CLS, a, c, SEP], [CLS, c, SEP, 0], [CLS, b, c, SEP]]
    assert data.x_test.tolist() == [[CLS, d, UNK, SEP]]


def test_there_are_no_more_words_than_bert_has_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.data.sets.sst2.MOST_TOKENS", FIRST_WORD + 3)
    data = SST2(path=str(write(tmp_path))).load()
    assert data.x_train.max() == FIRST_WORD + 2
    assert data.x_train[2].tolist() == [CLS, FIRST_WORD, FIRST_WORD + 1, FIRST_WORD + 2, UNK, SEP]


def test_gzipped_files_and_windows_line_ends(tmp_path: Path) -> None:
    write(tmp_path, TRAIN.replace("\n", "\r\n"))
    (tmp_path / "dev.tsv").unlink()
    (tmp_path / "dev.tsv.gz").write_bytes(gzip.compress(DEV.encode()))
    data = SST2(path=str(tmp_path)).load()
    assert (data.x_train.shape, data.y_train.tolist(), data.y_test.tolist()) == ((3, 6), [1, 0, 1], [0])


def test_word_pieces(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    write(tmp_path, "sentence\tlabel\nABB é \t1\nUnfunny xyz abc \t0\n", "sentence\tlabel\na ab a a a a \t0\n")
    data = SST2(path=str(tmp_path), vocabulary=str(tmp_path / "vocab.txt"), max_length=7).load()
    # Lower case, no accents, the longest piece first; a word with a part that is not in the vocabulary is [UNK].
    expected = ["a ##b ##b e", "un ##fun ##ny [UNK] a", "a a ##b a a"]
    rows = [["[CLS]", *pieces.split(), "[SEP]"] for pieces in expected]
    numbers = [[PIECES.index(piece) for piece in row] + [0] * (7 - len(row)) for row in rows]
    assert [*data.x_train.tolist(), *data.x_test.tolist()] == numbers


def test_a_vocabulary_that_is_none(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "vocab.txt"
    for text in ("[UNK]\n[PAD]\n[CLS]\n[SEP]\n", "[PAD]\n[UNK]\n[CLS]\n", "a\n"):
        path.write_text(text)
        with pytest.raises(UserError, match=r"vocab\.txt is not a vocab\.txt of BERT: it must start with \[PAD\]"):
            SST2(path=str(tmp_path), vocabulary=str(path)).load()
    with pytest.raises(UserError, match="nowhere cannot be read: No such file"):
        SST2(path=str(tmp_path), vocabulary=str(tmp_path / "nowhere")).load()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("index\tsentence\n0\tgood\n", "must have the columns sentence and label; found: index, sentence"),
        ("good \t1\nbad \t0\n", "must have the columns sentence and label; found: good , 1"),
        ("sentence\tlabel\ngood \t1\nbad \t2\n", "damaged: line 3 is not a sentence, a tab, and a label 0 or 1"),
        ("sentence\tlabel\ngood \t1\nso\tso \t0\n", "damaged: line 3 "),
        ("sentence\tlabel\ngood\n", "damaged: line 2 "),
        ("sentence\tlabel\ngood \t1\n\nbad \t0\n", "damaged: line 3 "),
        ("sentence\tlabel\n", "it has no rows"),
        ("", "must have the columns"),
    ],
)
def test_a_bad_file_is_told_with_its_line(tmp_path: Path, text: str, reason: str) -> None:
    write(tmp_path, dev=text)
    with pytest.raises(UserError, match=reason) as caught:
        SST2(path=str(tmp_path)).load()
    assert str(tmp_path / "dev.tsv") in str(caught.value)


def test_other_encodings_and_missing_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing train\.tsv, dev\.tsv .*\n.*gluebenchmark\.com"):
        SST2(path=str(tmp_path)).load()
    write(tmp_path)
    (tmp_path / "train.tsv").write_bytes("sentence\tlabel\ncliché \t0\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"train\.tsv is damaged: it is not UTF-8"):
        SST2(path=str(tmp_path)).load()


def test_published_facts() -> None:
    need("sst2")
    data = SST2().load()
    assert (data.x_train.shape, data.x_test.shape) == ((67349, 54), (872, 54))
    assert np.bincount(data.y_train).tolist() == [29780, 37569]
    assert np.bincount(data.y_test).tolist() == [428, 444]
    assert data.x_train.max() == FIRST_WORD + 14816 - 1
    assert (data.x_train == UNK).sum() == 0
    assert (data.x_train[:, 0] == CLS).all()
    assert ((data.x_train == SEP).sum(axis=1) == 1).all()
    words = np.bincount(data.x_train[data.x_train >= FIRST_WORD])[FIRST_WORD:]
    assert (np.diff(words) <= 0).all()
