"""The strict YAML loader."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.core.errors import UsageError
from stepscope.store.yaml_loader import Document, parse_value, parse_yaml, read_yaml


def parse(text: str) -> Document:
    return parse_yaml(text, source="m.yaml")


def complaints(text: str) -> list[str]:
    return [str(problem) for problem in parse(text).problems]


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("yes", "write true"), ("on", "write true"), ("No", "write false"), ("OFF", "write false"),
        ("012", "write 12"), ("0x1f", "decimal"), ("0o17", "decimal"), ("0b11", "decimal"), ("1:30", "base-60"),
        ("1_000", "write 1000"), (".inf", "not a finite number"), ("-.inf", "not a finite"), (".nan", "not a finite"),
        ("1e999", "too large"),
    ],
)  # fmt: skip
def test_scalars_that_yaml_readers_disagree_about_are_refused_with_the_right_spelling(text: str, advice: str) -> None:
    (complaint,) = complaints(f"version: 1\na: {text}")
    assert complaint.startswith("m.yaml:2:4: a: ")
    assert advice in complaint


def test_a_key_given_twice_names_both_lines() -> None:
    (complaint,) = complaints("a: 1\nb: {c: 1}\na: 2")
    assert complaint == "m.yaml:3:1: a: given twice; the first is in line 1"


def test_all_complaints_of_a_file_are_collected() -> None:
    assert len(complaints("a: on\nb: [010, 1:30]\na: 3\nc: !!int '3'\n<<: {d: 1}")) == 6


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a:\n\t- b", "m.yaml:2:1"),
        ("a: [1, 2", "m.yaml:1:9"),
        ("- x: 1\n y: 2", "m.yaml:2:2"),
        ("a: 1\n---\nb: 2", "m.yaml:2:1"),
        ("a: *nowhere", "m.yaml:1:4"),
        ("a: '", "m.yaml:1:5"),
    ],
)
def test_syntax_errors_carry_file_line_and_column(text: str, where: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert caught.value.what.startswith(f"{where}: ")


def test_a_tab_is_told_to_become_spaces() -> None:
    with pytest.raises(UsageError, match="spaces, not tabs"):
        parse("a:\n\t- b")


@pytest.mark.parametrize("text", ["[" * 5000, "a: \x00"])
def test_hostile_text_is_a_users_mistake_and_not_a_crash(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)


def test_aliases_that_multiply_are_stopped() -> None:
    bomb = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 8))
    with pytest.raises(UsageError, match="more than 100000 values"):
        parse(bomb)


def test_an_alias_of_itself_is_refused() -> None:
    assert "contains itself" in complaints("a: &a [*a]")[0]


def test_every_path_has_a_position() -> None:
    document = parse("base:\n  lr: 1\naxes:\n  world_size: [1,\n    2]")
    assert str(document.mark(("base", "lr"))) == "m.yaml:2:3"
    assert str(document.mark(("axes", "world_size", 1))) == "m.yaml:5:5"
    assert str(document.mark(("axes", "world_size", 7))) == "m.yaml:4:3"  # the nearest container


def test_files_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").write_text("version: 1\n")
    with pytest.raises(UsageError, match=r"matrix\.yml does not exist") as missing:
        read_yaml(tmp_path / "matrix.yml")
    assert missing.value.fix == f"did you mean {tmp_path / 'matrix.yaml'}?"
    with pytest.raises(UsageError, match="is a folder"):
        read_yaml(tmp_path)
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"a: 1\nb: caf\xe9\n")
    with pytest.raises(UsageError, match=r"latin\.yaml:2: not UTF-8"):
        read_yaml(latin)


def test_values_of_the_command_line_follow_the_same_rules() -> None:
    assert parse_value("[1, 1e-3, ddp]", source="--set x") == [1, 1e-3, "ddp"]
    with pytest.raises(UsageError, match="write true"):
        parse_value("on", source="--set x=on")
