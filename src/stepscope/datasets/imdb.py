"""IMDB Large Movie Review Dataset: reviews, positive or negative; the folder ``aclImdb`` or its tar.gz, unopened.

Layout: ``aclImdb/{train,test}/{pos,neg}/ID_RATING.txt``. Anything else in it (``unsup``) is left alone.
"""

from __future__ import annotations

import gzip
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from stepscope.core.errors import DataError
from stepscope.datasets import _files
from stepscope.datasets._text import Texts, text_dataset

KEY = "imdb"
CLASSES = ("neg", "pos")
SPLITS = ("train", "test")

_ARCHIVE_PATTERN = "aclImdb*.tar.gz"
_MEMBER = re.compile(r"(?:.*/)?(train|test)/(neg|pos)/(\d+)_(\d+)\.txt")
_TAG = re.compile(r"<[^<>]*>")
_SOURCES = [
    _files.PublicFile(
        name="aclImdb_v1.tar.gz",
        url="https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
        md5="7c2ac02c03563afcf9b574c7e56c153a",
    )
]

Review = tuple[str, str, int, bytes]
"""Split, class, number within them, text."""


def _located_reviews(data_dir: Path | None) -> dict[str, Path]:
    """Find either the four folders, by role, or the archive."""
    for folder in _files.folders(KEY, data_dir):
        for root in (folder / "aclImdb", folder):
            parts = {f"{split}_{name}": root / split / name for split in SPLITS for name in CLASSES}
            there = [role for role, path in parts.items() if path.is_dir()]
            if len(there) == len(parts):
                return parts
            if there:
                missing = ", ".join(str(path.relative_to(root)) for r, path in parts.items() if r not in there)
                raise DataError(
                    f"{root} lacks a part of the dataset {KEY}",
                    why=f"expected also the folder {missing}; found {', '.join(there)}",
                    fix="unpack the archive again",
                )
        archive = _files.only_file(folder, [_ARCHIVE_PATTERN])
        if archive is not None:
            return {"archive": archive}
    raise _files.not_there(KEY, data_dir, f"a folder aclImdb or {_ARCHIVE_PATTERN}")


def _read_reviews(files: dict[str, Path]) -> tuple[Texts, Texts]:
    """Return the texts of both splits, from an archive or from its folders."""
    archive = files.get("archive")
    reviews = _archive_reviews(archive) if archive else _folder_reviews(files)
    # sorted by content-independent keys: archives list their members in any order
    ordered = sorted(reviews, key=lambda review: review[:3])
    counts = Counter(review[:2] for review in ordered)
    place = archive or files["train_pos"].parent.parent
    for split in SPLITS:
        for name in CLASSES:
            if not counts[split, name]:
                raise _files.damaged(
                    place, expected=f"reviews {split}/{name}/ID_RATING.txt", actual=f"none among {len(ordered)} reviews"
                )
    return _split_texts(ordered, "train", place), _split_texts(ordered, "test", place)


def _split_texts(reviews: list[Review], split: str, place: Path) -> Texts:
    """Return the texts of one split. Raises DataError where one is no UTF-8."""
    texts: list[str] = []
    labels: list[int] = []
    for of_split, name, number, content in reviews:
        if of_split == split:
            try:
                texts.append(_TAG.sub(" ", content.decode("utf-8")))
            except UnicodeDecodeError as error:
                raise _files.damaged(
                    place, expected="UTF-8 text", actual=f"byte {error.start} of {split}/{name}/{number}_* is not"
                ) from error
            labels.append(CLASSES.index(name))
    return Texts(texts=texts, labels=labels)


def _folder_reviews(files: dict[str, Path]) -> Iterator[Review]:
    """Yield the reviews of the folders."""
    for folder in files.values():
        for path in folder.iterdir():
            match = _MEMBER.fullmatch(path.as_posix())
            if match:
                try:
                    yield match[1], match[2], int(match[3]), path.read_bytes()
                except OSError as error:
                    raise _files.unreadable(path, error) from error


def _archive_reviews(path: Path) -> Iterator[Review]:
    """Yield the reviews of the archive. Raises DataError for a damaged one."""
    try:
        with gzip.open(path) as content:
            with tarfile.open(fileobj=content, mode="r|") as archive:
                for member in archive:
                    match = _MEMBER.fullmatch(member.name)
                    if match and member.isfile():
                        file = cast(BinaryIO, archive.extractfile(member))
                        yield match[1], match[2], int(match[3]), file.read()
            # tar may stop at its end mark; the checksum of the gzip stream comes after it
            while content.read(1 << 20):
                pass
    except tarfile.TarError as error:
        raise _files.damaged(path, expected="a complete tar archive", actual=str(error)) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _files.broken_gzip(path, error) from error
    except OSError as error:
        raise _files.unreadable(path, error) from error


DATASET = text_dataset(
    KEY,
    version=1,
    summary="film reviews, positive or negative, mean 233 words (folder or tar.gz)",
    num_classes=len(CLASSES),
    locate=_located_reviews,
    read=_read_reviews,
    sources=_SOURCES,
)
