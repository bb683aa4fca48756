"""From texts to arrays of token ids: words, a vocabulary of the training texts, padding, cutting.

Ids: 0 padding, 1 any word outside the vocabulary, then the words of the training texts, the most frequent first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import record
from stepscope.core.errors import DataError
from stepscope.datasets import _files
from stepscope.datasets._common import (
    LABELLED,
    Arrays,
    Dataset,
    NoOptions,
    Prepared,
    Split,
    files_dataset,
    labelled,
    misfit,
    prepared_arrays,
)
from stepscope.records.plan import InputNeeds

PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2
TOKENIZER_VERSION = 1
"""Part of the cache's key: raise it when the same text gives other ids."""

# letters and digits of any script; an apostrophe inside a word belongs to it
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


@record
class Texts:
    """Texts of one split and their classes, counted from 0."""

    texts: Sequence[str]
    labels: Sequence[int]


def words(text: str) -> list[str]:
    """Lower-case words in order."""
    return _WORD.findall(text.lower())


def build_vocabulary(documents: Iterable[Sequence[str]], vocab_size: int) -> dict[str, int]:
    """Word -> id for the ``vocab_size - 2`` most frequent words; equally frequent ones in alphabetical order."""
    counts: Counter[str] = Counter()
    for document in documents:
        counts.update(document)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {word: i for i, (word, _) in enumerate(ranked[: max(vocab_size - FIRST_WORD, 0)], start=FIRST_WORD)}


def padded(documents: Sequence[Sequence[str]], vocabulary: dict[str, int], seq_len: int) -> NDArray[np.int32]:
    """Ids [n, seq_len]: the first ``seq_len`` words of each document, padded at the end."""
    ids = np.zeros((len(documents), seq_len), dtype=np.int32)
    for row, document in zip(ids, documents, strict=True):
        head = [vocabulary.get(word, UNKNOWN) for word in document[:seq_len]]
        row[: len(head)] = head
    return ids


def blocks(documents: Iterable[Sequence[str]], vocabulary: dict[str, int], seq_len: int) -> NDArray[np.int32]:
    """Ids [n, seq_len + 1]: all documents as one stream, cut into blocks that share their border token.

    Padding (id 0) marks the end of a document. What is left over at the end of the stream is dropped.
    """
    stream: list[int] = []
    for document in documents:
        stream += [vocabulary.get(word, UNKNOWN) for word in document]
        stream.append(PADDING)
    count = max(len(stream) - 1, 0) // seq_len
    starts = np.arange(count)[:, None] * seq_len
    ids: NDArray[np.int32] = np.asarray(stream, dtype=np.int32)[starts + np.arange(seq_len + 1)]
    return ids


def text_dataset(
    key: str,
    *,
    version: int,
    summary: str,
    num_classes: int,
    locate: Callable[[Path | None], dict[str, Path]],
    read: Callable[[dict[str, Path]], tuple[Texts, Texts]],
    sources: Sequence[_files.PublicFile],
) -> Dataset:
    """A data set of labelled texts, or of their running text. read(files): train and test.

    version: of the reader, a part of the digest: raise it when the same files give other arrays.
    """

    def resolve(options: NoOptions, needs: InputNeeds) -> InputNeeds:  # noqa: ARG001
        if needs.kind == "lm":
            return needs
        if needs.kind != "tokens":
            raise misfit(key, needs.kind, "use a workload that reads text, such as text_classifier")
        return replace(needs, num_classes=num_classes)

    def prepare(needs: InputNeeds, files: dict[str, Path], content: str, cache_dir: Path) -> Prepared:
        """Arrays for ``tokens`` or ``lm`` needs."""
        seq_len, vocab_size = needs.seq_len, needs.vocab_size
        if seq_len is None or vocab_size is None:
            raise ValueError(f"needs are not resolved: {needs}")

        def build() -> Arrays:
            """Return the arrays of both splits, words as numbers of the training split's vocabulary."""
            train, test = read(files)
            train_words, test_words = [words(t) for t in train.texts], [words(t) for t in test.texts]
            vocabulary = build_vocabulary(train_words, vocab_size)
            if needs.kind == "lm":
                return {
                    "train": blocks(train_words, vocabulary, seq_len),
                    "test": blocks(test_words, vocabulary, seq_len),
                }
            return {
                "train_x": padded(train_words, vocabulary, seq_len),
                "train_y": np.asarray(train.labels, dtype=np.int64),
                "test_x": padded(test_words, vocabulary, seq_len),
                "test_y": np.asarray(test.labels, dtype=np.int64),
            }

        arrays = prepared_arrays(
            cache_dir,
            name=key,
            identity=(content, sorted(asdict(needs).items(), key=str), TOKENIZER_VERSION, version),
            names=("train", "test") if needs.kind == "lm" else LABELLED,
            build=build,
        )
        if needs.kind == "lm":
            if not len(arrays["train"]):
                raise DataError(
                    f"the training texts of {key} are too short",
                    why=f"expected more than {seq_len} words for one block of max_seq_len; found fewer",
                    fix="use more text or a smaller max_seq_len",
                )
            return Prepared(train=_shifted_split(arrays["train"]), test=_shifted_split(arrays["test"]))
        return labelled(arrays)

    return files_dataset(
        key, version=version, summary=summary, resolve=resolve, locate=locate, prepare=prepare, sources=sources
    )


def _shifted_split(ids: NDArray[Any]) -> Split:
    """Blocks of seq_len + 1 ids as inputs and next ids: two views of the same memory."""
    return Split(x=ids[:, :-1], y=ids[:, 1:])
