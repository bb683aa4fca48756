"""AG News: headlines and first sentences of news in 4 classes, CSV without a header: "class 1-4","title","text".

A subset of the training rows under a name like ``train_30k.csv.gz`` is taken too.
"""

from __future__ import annotations

import csv
import html
import io
import re
from dataclasses import replace
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.datasets import _files
from stepscope.datasets._common import Dataset, NoOptions, Prepared, misfit
from stepscope.datasets._text import Texts, prepare_texts
from stepscope.records.plan import InputNeeds

KEY = "ag_news"
VERSION = 1
"""Part of the digest: raise it when the same files give other arrays."""

NUM_CLASSES = 4
COLUMNS = 3

_ROLES = {
    "train": ["train.csv", "train.csv.gz", "train_*.csv", "train_*.csv.gz"],
    "test": ["test.csv", "test.csv.gz"],
}
_URL = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/"
_SOURCES = [
    _files.Source(name="train.csv", url=_URL + "train.csv", md5="b1a00f826fdfbd249f79597b59e1dc12"),
    _files.Source(name="test.csv", url=_URL + "test.csv", md5="d52ea96a97a2d943681189a97654912d"),
]

# the rows lost the ampersands of their HTML entities: " #39;" stands for an apostrophe, "lt;" for "<"
_APOSTROPHE = re.compile(r"\s?&?#39;")
_ENTITY = re.compile(r"&?(?:#\d+|\b(?:quot|amp|nbsp));")
_TAG = re.compile(r"<[^<>]*>")


def resolve(options: NoOptions, needs: InputNeeds) -> InputNeeds:  # noqa: ARG001
    if needs.kind == "lm":
        return needs
    if needs.kind != "tokens":
        raise misfit(KEY, needs.kind, "use a workload that reads text, such as text_classifier")
    return replace(needs, num_classes=NUM_CLASSES)


def locate(options: NoOptions, data_dir: Path | None) -> dict[str, Path]:  # noqa: ARG001
    return _files.locate(KEY, data_dir, _ROLES)


def digest(options: NoOptions, files: dict[str, Path]) -> str:  # noqa: ARG001
    return _files.content_digest(files, version=f"{KEY}/{VERSION}")


def prepare(options: NoOptions, needs: InputNeeds, files: dict[str, Path], cache_dir: Path) -> Prepared:
    return prepare_texts(
        KEY,
        needs,
        content=digest(options, files),
        read=lambda: (_read(files["train"]), _read(files["test"])),
        cache_dir=cache_dir,
        version=VERSION,
    )


def download(options: NoOptions, data_dir: Path) -> None:
    try:
        locate(options, data_dir)
    except DataError:
        _files.fetch(_SOURCES, data_dir / KEY)


def _read(path: Path) -> Texts:
    try:
        content = _files.read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise _files.damaged(path, expected="UTF-8 text", found=f"byte {error.start} is not") from error
    texts: list[str] = []
    labels: list[int] = []
    rows = csv.reader(io.StringIO(content, newline=""), strict=True)
    try:
        for row in rows:
            if len(row) != COLUMNS:
                raise _files.damaged(
                    path,
                    expected=f"{COLUMNS} columns in every row",
                    found=f"{len(row)} in line {rows.line_num}",
                )
            if row[0] not in _CLASSES:
                raise _files.damaged(
                    path, expected="a class from 1 to 4", found=f"{row[0][:20]!r} in line {rows.line_num}"
                )
            labels.append(int(row[0]) - 1)
            texts.append(_clean(f"{row[1]} {row[2]}"))
    except csv.Error as error:
        raise _files.damaged(path, expected="whole CSV rows", found=f"{error} in line {rows.line_num}") from error
    if not texts:
        raise _files.damaged(path, expected="at least one row", found="an empty file")
    return Texts(texts=texts, labels=labels)


def _clean(text: str) -> str:
    text = _ENTITY.sub(" ", _APOSTROPHE.sub("'", text))
    return _TAG.sub(" ", html.unescape(text)).replace("\\", " ")


_CLASSES = frozenset(str(i + 1) for i in range(NUM_CLASSES))

DATASET = Dataset(
    key=KEY,
    summary="news topics, 4 classes, mean 38 words (CSV)",
    options=NoOptions,
    resolve=resolve,
    locate=locate,
    digest=digest,
    prepare=prepare,
    download=download,
)
