"""Words, vocabulary, padding."""

from __future__ import annotations

import numpy as np

from stepscope.datasets._text import PADDING, UNKNOWN, blocks, build_vocabulary, padded, words


def test_words_are_lower_case_runs_of_letters_and_digits() -> None:
    assert words("Don't PANIC: it's 42_000 naïve café—ok!") == [
        "don't",
        "panic",
        "it's",
        "42",
        "000",
        "naïve",
        "café",
        "ok",
    ]
    assert words("...  --") == []


def test_frequent_words_come_first_and_ties_in_alphabetical_order() -> None:
    vocabulary = build_vocabulary([["b", "a"], ["c", "b", "a", "c", "c"]], 100)
    assert vocabulary == {"c": 2, "a": 3, "b": 4}


def test_a_vocabulary_has_room_for_padding_and_unknown() -> None:
    assert build_vocabulary([["b", "a", "a", "c"]], 4) == {"a": 2, "b": 3}
    assert build_vocabulary([["b"]], 2) == {}


def test_documents_are_cut_and_padded_at_the_end() -> None:
    ids = padded([["a", "x", "a", "a"], [], ["a"]], {"a": 2}, 3)
    assert ids.tolist() == [[2, UNKNOWN, 2], [PADDING] * 3, [2, PADDING, PADDING]]


def test_blocks_share_their_border_and_mark_the_end_of_documents() -> None:
    ids = blocks([["a", "b"], ["c"]], {"a": 2, "b": 3, "c": 4}, 2)
    assert ids.tolist() == [[2, 3, PADDING], [PADDING, 4, PADDING]]
    assert blocks([["a"]], {"a": 2}, 2).shape == (0, 3)
    assert ids.dtype == np.int32
