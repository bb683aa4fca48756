"""The numbers of every command over examples, generated jobs and real data are those that are kept (tests/corpus/expected).

Outside pytest, quicker: ``python -m tests.corpus [--fast] [PATTERN]``. entries.py is the list, figures.py says what of a
document is compared and what is not.

To renew: ``STEPSCOPE_RENEW_CORPUS=1 pytest tests/corpus -m ""`` (or the same before ``python -m tests.corpus PATTERN``),
then read the difference of expected/. A renewed number needs a row in the table of CHANGELOG.md.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.corpus.checking import EXPECTED, Workplace, load_everything
from tests.corpus.entries import ENTRIES, FAST
from tests.corpus.figures import TEXT, condensed, differences, leaves


@pytest.fixture(scope="module")
def place() -> Iterator[Workplace]:
    load_everything()
    with Workplace() as made:
        yield made


def _parameters() -> Iterator[object]:
    for entry in ENTRIES:
        marks = [pytest.mark.long] if entry.speed != FAST else []
        if any(each.startswith("shared/") for each in entry.inputs):
            marks.append(pytest.mark.shared_data)
        yield pytest.param(entry.name, marks=marks, id=entry.name)


BY_NAME = {entry.name: entry for entry in ENTRIES}


@pytest.mark.parametrize("name", list(_parameters()))
def test_every_number_is_the_one_that_is_kept(name: str, place: Workplace) -> None:
    entry = BY_NAME[name]
    place.prepare([entry])
    outcome = place.check(entry)
    if outcome.missing:
        pytest.skip(outcome.missing)
    assert not outcome.wrong, f"stepscope {' '.join(entry.words)}\n{outcome.wrong}"


def test_every_name_is_of_one_entry_and_every_file_of_a_name() -> None:
    assert len(BY_NAME) == len(ENTRIES)
    assert {path.stem if path.suffix == ".txt" else path.name for path in EXPECTED.iterdir()} <= BY_NAME.keys()


def test_a_number_a_key_and_an_order_are_compared_and_words_are_not() -> None:
    document = {
        "a_ns": 3,
        "title": "one",
        "findings": [{"rule": "x", "stake_fraction": 0.5, "title": "t"}, {"rule": "y"}],
    }
    found = leaves(document)
    assert found["findings[x#0].stake_fraction"] == 0.5
    assert found["title"] == TEXT
    assert not differences(found, leaves({**document, "title": "two", "a_ns": 3 * (1 + 1e-12)}))
    assert [path for path, _, _ in differences(found, leaves({**document, "a_ns": 3.00001}))] == ["a_ns"]
    turned = leaves({**document, "findings": document["findings"][::-1]})  # type: ignore[index]
    assert differences(found, turned) == [("findings.order", "x,y", "y,x")]


def test_many_leaves_are_told_by_their_sum_and_their_order() -> None:
    values = [float(n) for n in range(100)]
    told = condensed(leaves({"steps": [{"ns": n} for n in values]}))
    assert told["steps[*].ns#count"] == 100
    other = condensed(leaves({"steps": [{"ns": n} for n in [1.0, 0.0, *values[2:]]]}))
    assert [path for path, _, _ in differences(told, other)] == ["steps[*].ns#digest"]
