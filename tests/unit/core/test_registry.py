"""What a registry says of a key that it does not have."""

from pathlib import Path

import pytest

from stepscope.core.errors import UsageError
from stepscope.core.registry import Registry


@pytest.fixture
def halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """A package of promises and one of deeds; the promise ``lonely`` has no deed."""
    for package, stems in (("fake_promises", ("whole", "lonely")), ("fake_deeds", ("whole",))):
        folder = tmp_path / package
        folder.mkdir()
        for stem in ("__init__", *stems):
            (folder / f"{stem}.py").write_text("open = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "fake_deeds", tmp_path / "fake_deeds"


def test_a_promise_without_a_deed_says_which_file_is_missing(halves: tuple[str, Path]) -> None:
    package, folder = halves
    deeds = Registry(package, "open", "strategy", "fake_promises")
    assert deeds.load("whole") == 7
    with pytest.raises(UsageError) as caught:
        deeds.load("lonely")
    assert str(folder / "lonely.py") in str(caught.value)
    assert "unknown" not in str(caught.value)


def test_a_key_with_neither_half_is_unknown(halves: tuple[str, Path]) -> None:
    with pytest.raises(UsageError, match="unknown strategy 'lonly'"):
        Registry(halves[0], "open", "strategy", "fake_promises").load("lonly")
