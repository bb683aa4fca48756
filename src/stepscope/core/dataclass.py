"""``@dataclass`` for frozen records, built in a tenth of the standard library's time (0.07 for 0.7 ms a class).

A command imports a few hundred records, and half of its start-up went into compiling methods that most of them never
run. Here ``__init__`` is compiled when the first object is made; the other methods are shared by all classes. Fields
are the standard library's: ``fields``, ``replace``, ``asdict``, pickle and msgspec see a dataclass. ``@record`` is what
nearly all are: frozen, with slots, fields by name alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import field
    from typing import TypeVar, dataclass_transform

    T = TypeVar("T")

    @dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
    def record(cls: type[T]) -> type[T]:
        """Make a record: frozen, with slots, its fields by name alone."""

else:
    import dataclasses
    from operator import attrgetter

    _UNSET = object()

    def dataclass(cls=None, /, *, frozen=False, slots=False, kw_only=False, order=False, **other):
        """As ``dataclasses.dataclass``, which also makes whatever is not frozen or asks for more than this does."""
        if not frozen or order or other:
            return dataclasses.dataclass(cls, frozen=frozen, slots=slots, kw_only=kw_only, order=order, **other)

        def build(cls):
            return _built(cls, slots=slots, kw_only=kw_only)

        return build if cls is None else build(cls)

    record = dataclass(frozen=True, slots=True, kw_only=True)

    def _built(cls, *, slots, kw_only):
        """Return the class with its fields, without what it does not need."""
        own_doc = cls.__doc__
        cls.__doc__ = own_doc or cls.__name__  # without one the standard library spends most of its time on it
        cls = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
        cls.__doc__ = own_doc
        every = dataclasses.fields(cls)
        names = tuple(f.name for f in every)
        if slots:
            cls = _slotted(cls, names)
        own = cls.__dict__
        cls._values = staticmethod(_values_of(names))
        cls.__init__ = _initialiser(cls, every, slots=slots)
        for name, method in _METHODS.items():
            if own.get(name) is None:  # __hash__ is None beside an own __eq__
                setattr(cls, name, method)
        return cls

    def _slotted(cls, names):
        """The class again, with slots for what its bases have none for."""
        taken = {slot for base in cls.__mro__[1:] for slot in base.__dict__.get("__slots__", ())}
        content = {key: value for key, value in cls.__dict__.items() if key not in {*names, "__dict__", "__weakref__"}}
        content["__slots__"] = tuple(name for name in names if name not in taken)
        made = type(cls)(cls.__name__, cls.__bases__, content)
        made.__qualname__ = cls.__qualname__
        return made

    def _values_of(names):
        """A function from an object to its fields' values as a tuple."""
        if len(names) > 1:
            return attrgetter(*names)
        return (lambda self: (getattr(self, names[0]),)) if names else (lambda _: ())

    def _initialiser(cls, every, *, slots):
        def compile_first(self, *args, **kwargs):
            cls.__init__ = _compiled(cls, every, slots=slots)
            cls.__init__(self, *args, **kwargs)

        return compile_first

    def _compiled(cls, every, *, slots):
        """``__init__`` with every field as an argument."""
        space = {"unset": _UNSET, "put": object.__setattr__}
        arguments, by_key, lines = [], [], []
        for f in every:
            value = f.name
            if f.default_factory is not dataclasses.MISSING:
                space[f"make_{f.name}"] = f.default_factory
                value = f"make_{f.name}() if {f.name} is unset else {f.name}"
                default = "=unset"
            elif f.default is not dataclasses.MISSING:
                space[f"default_{f.name}"] = f.default
                default = f"=default_{f.name}"
            else:
                default = ""
            (by_key if f.kw_only else arguments).append(f"{f.name}{default}")
            if slots:
                space[f"put_{f.name}"] = getattr(cls, f.name).__set__
                lines.append(f"put_{f.name}(self, {value})")
            else:
                lines.append(f"put(self, {f.name!r}, {value})")
        if hasattr(cls, "__post_init__"):
            lines.append("self.__post_init__()")
        head = ", ".join(["self", *arguments, *(["*", *by_key] if by_key else [])])
        exec(f"def __init__({head}):\n " + "\n ".join(lines or ["pass"]), space)
        made = space["__init__"]
        made.__qualname__ = f"{cls.__qualname__}.__init__"
        return made

    def _restorer(cls):
        """``__setstate__`` of one class: a job of many ranks hands over some hundred thousand objects."""
        names = [f.name for f in dataclasses.fields(cls)]
        space, lines = {"_put": object.__setattr__}, []
        for name in names:
            slot = getattr(getattr(cls, name, None), "__set__", None)
            space[f"put_{name}"] = slot
            lines.append(f"_put(self, {name!r}, {name})" if slot is None else f"put_{name}(self, {name})")
        unpacked = f"({', '.join(names)},) = state" if names else "() = state"
        exec("def __setstate__(self, state):\n " + "\n ".join([unpacked, *lines]), space)
        return space["__setstate__"]

    class _Methods:
        """What every class gets that does not define it."""

        def __repr__(self):
            shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self))
            return f"{type(self).__qualname__}({shown})"

        def __eq__(self, other):
            same = other.__class__ is self.__class__
            return self._values(self) == self._values(other) if same else NotImplemented

        def __hash__(self):
            return hash(self._values(self))

        def __setattr__(self, name, value):
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

        def __delattr__(self, name):
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

        def __getstate__(self):
            return self._values(self)

        def __setstate__(self, state):
            type(self).__setstate__ = restored = _restorer(type(self))
            restored(self, state)

    _METHODS = {name: method for name, method in _Methods.__dict__.items() if callable(method)}
