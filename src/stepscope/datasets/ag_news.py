"""AG News: headlines and first sentences of news in 4 classes, CSV without a header: "class 1-4","title","text".

A subset of the training rows under a name like ``train_30k.csv.gz`` is taken too.
"""

from __future__ import annotations

import csv
import html
import io
import re
from pathlib import Path

from stepscope.datasets import _files
from stepscope.datasets._text import Texts, text_dataset

KEY = "ag_news"
NUM_CLASSES = 4
COLUMNS = 3

_ROLES = {"train": ["train.csv", "train.csv.gz", "train_*.csv", "train_*.csv.gz"], "test": ["test.csv", "test.csv.gz"]}
_URL = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/"
_SOURCES = [
    _files.PublicFile(name="train.csv", url=_URL + "train.csv", md5="b1a00f826fdfbd249f79597b59e1dc12"),
    _files.PublicFile(name="test.csv", url=_URL + "test.csv", md5="d52ea96a97a2d943681189a97654912d"),
]

# the rows lost the ampersands of their HTML entities: " #39;" stands for an apostrophe, "lt;" for "<"
_APOSTROPHE = re.compile(r"\s?&?#39;")
_ENTITY = re.compile(r"&?(?:#\d+|\b(?:quot|amp|nbsp));")
_TAG = re.compile(r"<[^<>]*>")


def _read_articles(path: Path) -> Texts:
    """Return the texts of one file. Raises DataError for a damaged one."""
    try:
        content = _files.read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise _files.damaged(path, expected="UTF-8 text", actual=f"byte {error.start} is not") from error
    texts: list[str] = []
    labels: list[int] = []
    rows = csv.reader(io.StringIO(content, newline=""), strict=True)
    try:
        for row in rows:
            if len(row) != COLUMNS:
                raise _files.damaged(
                    path, expected=f"{COLUMNS} columns in every row", actual=f"{len(row)} in line {rows.line_num}"
                )
            if row[0] not in _CLASSES:
                raise _files.damaged(
                    path, expected="a class from 1 to 4", actual=f"{row[0][:20]!r} in line {rows.line_num}"
                )
            labels.append(int(row[0]) - 1)
            texts.append(_cleaned_text(f"{row[1]} {row[2]}"))
    except csv.Error as error:
        raise _files.damaged(path, expected="whole CSV rows", actual=f"{error} in line {rows.line_num}") from error
    if not texts:
        raise _files.damaged(path, expected="at least one row", actual="an empty file")
    return Texts(texts=texts, labels=labels)


def _cleaned_text(text: str) -> str:
    text = _ENTITY.sub(" ", _APOSTROPHE.sub("'", text))
    return _TAG.sub(" ", html.unescape(text)).replace("\\", " ")


_CLASSES = frozenset(str(i + 1) for i in range(NUM_CLASSES))

DATASET = text_dataset(
    KEY,
    version=1,
    summary="news topics, 4 classes, mean 38 words (CSV)",
    num_classes=NUM_CLASSES,
    locate=lambda data_dir: _files.locate(KEY, data_dir, _ROLES),
    read=lambda files: (_read_articles(files["train"]), _read_articles(files["test"])),
    sources=_SOURCES,
)
