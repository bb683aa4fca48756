"""``stepscope hardware NAME``: what is said of a name that is no entry."""

from __future__ import annotations

import pytest
from tests.commands import Ran

pytestmark = pytest.mark.usefixtures("fresh_consoles")


@pytest.mark.parametrize(
    ("name", "said", "guess"),
    [("h1oo", "'h1oo' is not in the accelerator table", "h100"), ("H100", "'H100' can be 'h100-sxm'", None)],
)
def test_a_guess_is_another_name(name: str, said: str, guess: str | None, ran: Ran) -> None:
    code, _, err = ran("hardware", name)
    assert code == 2
    assert said in err
    assert ("did you mean" in err) == (guess is not None)
    assert guess is None or f"did you mean {guess!r}?" in err
