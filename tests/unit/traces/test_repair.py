"""Repair: each known defect is mended and counted; what is right is never touched."""

from __future__ import annotations

import json

import pytest

from stepscope.traces.source import is_valid, repaired, why_invalid

EVENT = '{"ph": "X", "cat": "cpu_op", "name": "%s", "pid": 1, "tid": 1, "ts": 1, "dur": 2}'


def names(text: bytes) -> list[str]:
    return [e["name"] for e in json.loads(b"[" + text + b"]")]


@pytest.mark.parametrize(
    ("broken", "name", "kind"),
    [
        ('say "hi" now', 'say "hi" now', "unescaped quotes in names"),
        ("C:\\Users\\me", "C:\\Users\\me", "invalid backslash escapes"),
        ("a\x01b", "a b", "control characters"),
        ("a\nb\tc", "a b c", "line breaks in names"),
        ("lost \\udc80 half", "lost � half", "incomplete characters"),
        ("lost \\ud83d half", "lost � half", "incomplete characters"),
        ('lambda []("x") { return \\"y\\"; }', 'lambda []("x") { return "y"; }', "unescaped quotes in names"),
    ],
)
def test_each_defect_of_a_name_is_mended_and_counted(broken: str, name: str, kind: str) -> None:
    text = (EVENT % broken).encode()
    assert not is_valid(text)
    mended = repaired(text)
    assert names(mended.text) == [name]
    assert list(mended.kinds) == [kind]


def test_bytes_that_are_not_utf8_are_replaced() -> None:
    mended = repaired((EVENT % "kern").encode().replace(b"kern", b"k\xff\xc3n"))
    assert names(mended.text) == ["k��n"]
    assert mended.kinds["bytes that are not UTF-8"] == 1


@pytest.mark.parametrize("number", ["NaN", "nan", "-nan", "inf", "-inf", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_know_become_null(number: str) -> None:
    mended = repaired(f'{{"a": {number}, "b": [1, {number}], "c":{number}}}'.encode())
    assert json.loads(mended.text) == {"a": None, "b": [1, None], "c": None}


@pytest.mark.parametrize(
    "right",
    [
        "C:\\\\Users",
        'a \\" b',
        "end\\\\",
        '\\\\\\"',
        "\\u00e9\\n\\t",
        "\\ud83d\\ude00",
        "\\\\ud800",
        "漢 ü",
        "\\\\ and",
    ],
)
def test_what_is_right_is_not_touched(right: str) -> None:
    text = (EVENT % right).encode()
    assert is_valid(text)
    mended = repaired(text)
    assert mended.text == text
    assert not mended.kinds


def test_one_defect_leaves_the_other_events_as_they_are() -> None:
    good, bad = EVENT % 'D:\\\\x \\"q\\"', EVENT % "C:\\x"
    mended = repaired(f"{good},\n  {bad}".encode())
    assert names(mended.text) == ['D:\\x "q"', "C:\\x"]


def test_the_first_problem_is_told_with_its_place() -> None:
    problem = why_invalid(b'{"a": 1}, {"b": !}')
    assert problem is not None
    assert (problem.position, problem.cut_short) == (16, False)
    assert why_invalid(b'{"a": 1}, {"b": [2]}') is None
    assert why_invalid(b"") is None
    deep = why_invalid(b"[" * 100_000 + b"]" * 100_000)
    assert deep is not None
    assert not deep.cut_short


def test_a_text_cut_anywhere_is_told_from_a_damaged_one() -> None:
    text = b'{"s": "a\\u12ab\\\\ \\"}", "t": true, "f": false, "n": null, "x": -1.5e+10, "l": [{"a": {}}, []]}'
    for end in range(1, len(text)):
        problem = why_invalid(text[:end])
        assert problem is not None
        assert problem.cut_short, text[:end]
