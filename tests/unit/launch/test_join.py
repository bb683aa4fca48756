"""Whether this process is a rank of a world that a launcher started."""

import pytest

from stepscope.core.errors import UsageError
from stepscope.launch.join import joined_world

WHOLE = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}


def test_a_whole_world_is_joined_and_none_is_none() -> None:
    assert joined_world(WHOLE) == (1, 2)
    assert joined_world({"LOCAL_RANK": "1", "MASTER_ADDR": "n1"}) is None
    assert joined_world({"RANK": "", "WORLD_SIZE": ""}) is None


@pytest.mark.parametrize("missing", [["LOCAL_RANK"], ["MASTER_ADDR"], ["LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"]])
def test_leftovers_of_a_world_are_refused_naming_what_is_missing_and_what_to_unset(
    missing: list[str],
) -> None:
    present = {name: value for name, value in WHOLE.items() if name not in missing}
    with pytest.raises(UsageError) as caught:
        joined_world(present)
    for name in missing:
        assert name in caught.value.what
    assert f"unset {' '.join(present)};" in str(caught.value.fix)


@pytest.mark.parametrize("change", [{"LOCAL_RANK": "x"}, {"MASTER_PORT": "http"}, {"RANK": "2"}, {"RANK": "one"}])
def test_values_that_make_no_sense_are_refused(change: dict[str, str]) -> None:
    (name,) = change
    with pytest.raises(UsageError, match=name):
        joined_world(WHOLE | change)
