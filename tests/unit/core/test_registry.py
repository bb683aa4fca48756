"""What a registry says of a key that it does not have."""

from pathlib import Path

import pytest

from stepscope.core.errors import UsageError
from stepscope.core.registry import Registry


@pytest.fixture
def halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """A package of specs and one of implementations; the spec ``lonely`` has no implementation."""
    for package, stems in (("fake_specs", ("whole", "lonely")), ("fake_implementations", ("whole",))):
        folder = tmp_path / package
        folder.mkdir()
        for stem in ("__init__", *stems):
            (folder / f"{stem}.py").write_text("open = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "fake_implementations", tmp_path / "fake_implementations"


def test_a_spec_without_an_implementation_says_which_file_is_missing(halves: tuple[str, Path]) -> None:
    package, folder = halves
    implementations = Registry(package, "open", "strategy", "fake_specs")
    assert implementations.load("whole") == 7
    with pytest.raises(UsageError) as caught:
        implementations.load("lonely")
    assert str(folder / "lonely.py") in str(caught.value)
    assert "unknown" not in str(caught.value)


def test_a_key_with_neither_half_is_unknown(halves: tuple[str, Path]) -> None:
    with pytest.raises(UsageError, match="unknown strategy 'lonly'"):
        Registry(halves[0], "open", "strategy", "fake_specs").load("lonly")
