"""Our dataclasses beside the standard library's: the same objects, built later."""

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from stepscope.core.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    x: int
    name: str = "p"
    tags: tuple[str, ...] = ()
    seen: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def twice(self) -> int:
        return 2 * self.x


@dataclass(frozen=True, slots=True)
class Pair:
    left: int
    right: int = 2


@dataclass(frozen=True, slots=True)
class Checked:
    value: int

    def __post_init__(self) -> None:
        if self.value < 0:
            raise ValueError("negative")


@dataclass(frozen=True, kw_only=True)
class Open:
    value: int


@dataclass(frozen=True, slots=True)
class ByName:
    name: str
    number: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByName) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


def test_values_defaults_and_factories_are_those_given() -> None:
    a, b = Point(x=1), Point(x=1, name="q", seen={"k": 1})
    assert (a.x, a.name, a.tags, a.seen, a.twice) == (1, "p", (), {}, 2)
    assert (b.name, b.seen) == ("q", {"k": 1})
    assert Point(x=1).seen is not a.seen
    assert Pair(1) == Pair(1, 2) == Pair(left=1, right=2)


@pytest.mark.parametrize("call", [lambda: Point(), lambda: Point(1), lambda: Pair(1, 2, 3), lambda: Point(x=1, y=2)])
def test_wrong_arguments_are_refused_as_any_function_refuses_them(call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError):
        call()


def test_equality_hash_and_text_are_by_value_and_class() -> None:
    assert Pair(1) != Pair(2)
    assert Pair(1) != (1, 2)
    assert hash(Pair(1)) == hash(Pair(1, 2))
    assert len({Pair(1), Pair(1), Pair(3)}) == 2
    assert repr(Pair(1)) == "Pair(left=1, right=2)"
    with pytest.raises(TypeError):
        hash(Point(x=1))  # holds a dict


def test_own_methods_stay() -> None:
    assert ByName("a", 1) == ByName("a", 2)
    assert len({ByName("a", 1), ByName("a", 2)}) == 1


def test_nothing_can_be_changed_or_added() -> None:
    pair: Any = Pair(1)
    for change in (lambda: setattr(pair, "left", 2), lambda: setattr(pair, "other", 2), lambda: delattr(pair, "left")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            change()
    assert not hasattr(pair, "__dict__")


def test_post_init_runs() -> None:
    Checked(1)
    with pytest.raises(ValueError, match="negative"):
        Checked(-1)


@pytest.mark.parametrize("value", [Point(x=1, seen={"k": 2}), Pair(1, 5), Checked(3), Open(value=4)])
def test_the_standard_library_and_msgspec_see_a_dataclass(value: Any) -> None:
    kind = type(value)
    assert dataclasses.is_dataclass(value)
    assert kind(**{f.name: getattr(value, f.name) for f in dataclasses.fields(value)}) == value
    assert dataclasses.replace(value) == value == copy.deepcopy(value) == pickle.loads(pickle.dumps(value))
    assert msgspec.json.decode(msgspec.json.encode(value), type=kind) == value
    assert set(dataclasses.asdict(value)) == {f.name for f in dataclasses.fields(value)}


def test_what_is_not_frozen_is_the_standard_librarys() -> None:
    @dataclass(slots=True)
    class Count:
        n: int = 0

    @dataclass(frozen=True, slots=True, order=True)
    class Version:
        major: int

    count = Count()
    count.n += 1
    assert count == Count(1)
    assert sorted([Version(2), Version(1)]) == [Version(1), Version(2)]
