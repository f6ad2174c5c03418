"""SST-2: R. Socher et al., "Recursive deep models for semantic compositionality over a sentiment treebank", 2013, as in
GLUE, arXiv:1804.07461.

GLUE's train.tsv is used for training and its dev.tsv for testing. Its test.tsv has no labels and is not read. FedDecay
does the same, and keeps the first fifth of train.tsv for validation; here the partition decides what is kept.

A sentence is [CLS] tokens [SEP], padded with zeros to the longest sentence. If a BERT vocabulary is given, tokens are
its WordPieces. Otherwise tokens are words. The 14,816 words of train.tsv are numbered from 1000 by frequency, and
alphabetically if they are equally frequent. Other words are [UNK]. [UNK], [CLS] and [SEP] are 100, 101 and 102, as in
BERT.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from coterie.core.data import Index
from coterie.data.examples import Examples
from coterie.data.files import limits
from coterie.data.files.fetch import File
from coterie.data.files.locate import locate
from coterie.data.files.unpack import content, damaged
from coterie.data.sets.dataset import Dataset
from coterie.errors import UserError
from coterie.settings import settings, user_path

_ARCHIVE = "https://dl.fbaipublicfiles.com/glue/data/SST-2.zip"
_CHECKSUM = "md5:9f81648d4199384278b86e315dac217c"
_FILES = tuple(File(name, (_ARCHIVE,), _CHECKSUM, member=f"SST-2/{name}") for name in ("train.tsv", "dev.tsv"))

PAD = 0
UNK = 100
CLS = 101
SEP = 102
FIRST_WORD = 1000
MOST_TOKENS = 30522
"""Number of tokens in the embedding of BERT."""


@settings
class SST2(Dataset):
    """Sentences of film reviews, positive or negative, tokens for bert-tiny: 67,349 for training, 872 for testing."""

    usual_partition: ClassVar[str] = "dirichlet"
    usual_model: ClassVar[str] = "bert-tiny"

    path: str | None = None
    """Folder with train.tsv and dev.tsv. Default: search $COTERIE_DATA/sst2 and the user's cache, then download."""
    vocabulary: str | None = None
    """Path of the vocab.txt that comes with pretrained BERT weights. Default: one token for each word of train.tsv."""
    max_length: Annotated[int, Field(ge=3)] = 64
    """Maximum number of tokens of a sentence, with [CLS] and [SEP]. Longer sentences are cut. If tokens are words, 54
    is enough."""

    def files(self) -> list[Path]:
        return locate("sst2", _FILES, "https://gluebenchmark.com/tasks", self.path)

    def load(self) -> Examples:
        train_file, dev_file = self.files()
        (train, y_train), (test, y_test) = _read(train_file), _read(dev_file)
        files = (train_file, dev_file)
        rows = self._word_pieces(train + test) if self.vocabulary else self._words(train, train + test)
        longest = max(map(len, rows))
        limits.check(8 * longest * len(rows), f"{len(rows):,} sentences of up to {longest:,} tokens", *files)
        x = np.full((len(rows), longest), PAD)
        for place, row in zip(x, rows, strict=True):
            place[: len(row)] = row
        return Examples(x[: len(train)], y_train, x[len(train) :], y_test, ("negative", "positive"))

    def _words(self, train: list[str], sentences: list[str]) -> list[list[int]]:
        counts = Counter(word for sentence in train for word in sentence.split())
        ordered = sorted(counts, key=lambda word: (-counts[word], word))[: MOST_TOKENS - FIRST_WORD]
        number = {word: n for n, word in enumerate(ordered, FIRST_WORD)}
        most = self.max_length - 2
        return [[CLS, *(number.get(word, UNK) for word in line.split()[:most]), SEP] for line in sentences]

    def _word_pieces(self, sentences: list[str]) -> Sequence[list[int]]:
        try:
            from tokenizers import BertWordPieceTokenizer
        except ImportError:
            raise UserError("data.vocabulary needs the package tokenizers: pip install 'coterie[text]'") from None
        path = user_path(self.vocabulary or "")
        words = _lines(path)
        number = {word: n for n, word in enumerate(words)}
        if number.get("[PAD]") != PAD or not {"[UNK]", "[CLS]", "[SEP]"} <= number.keys():
            raise UserError(
                f"{path} is not a vocab.txt of BERT: it must start with [PAD] and contain [UNK], [CLS] and [SEP]"
            )
        tokenizer = BertWordPieceTokenizer(number)
        tokenizer.enable_truncation(self.max_length)
        return [encoding.ids for encoding in tokenizer.encode_batch(sentences)]


def _read(path: Path) -> tuple[list[str], Index]:
    """Read sentences and labels from a GLUE tsv file, which has a header and no quoting."""
    header, *rows = [line.split("\t") for line in _lines(path)]
    if header != ["sentence", "label"]:
        raise UserError(f"{path} must have the columns sentence and label; found: {', '.join(header)}")
    for line, row in enumerate(rows, 2):
        if len(row) != 2 or row[1] not in ("0", "1"):
            raise damaged(path, f"line {line} is not a sentence, a tab, and a label 0 or 1")
    if not rows:
        raise damaged(path, "it has no rows")
    return [sentence for sentence, _ in rows], np.array([int(label) for _, label in rows])


def _lines(path: Path) -> list[str]:
    try:
        raw = content(path, cost=4)
        limits.check(60 * len(raw) + 300 * raw.count(b"\n"), f"a text of {len(raw):,} bytes", path)
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise damaged(path, f"it is not UTF-8 ({error})") from error
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")
