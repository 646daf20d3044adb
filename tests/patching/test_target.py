from __future__ import annotations

import sys
from functools import cached_property
from types import ModuleType

import pytest

from accel_bridge.patching.target import (
    Target,
    TargetMissing,
    dress,
    is_shared,
    resolve,
    unwrap,
)


class Base:
    def method(self) -> None: ...

    @classmethod
    def by_class(cls) -> None: ...

    @staticmethod
    def static() -> None: ...

    @property
    def prop(self) -> int:
        return 1

    @prop.setter
    def prop(self, value: int) -> None: ...

    @cached_property
    def cached(self) -> int:
        return 1

    class Inner:
        def deep(self) -> None: ...


class Child(Base):
    pass


VALUE = 3
HERE = sys.modules[__name__]


@pytest.mark.parametrize("name", ["method", "by_class", "static", "prop", "cached"])
def test_members_are_found_raw(name: str) -> None:
    target = resolve(HERE, f"Base.{name}")
    raw = vars(Base)[name]
    assert target == Target(Base, name, raw, inherited=False)
    assert target.original is unwrap(raw)
    assert target.is_method is (name != "static")


def test_inherited_and_nested_members() -> None:
    assert resolve(HERE, "Child.method") == Target(Child, "method", vars(Base)["method"], True)
    assert resolve(HERE, "Base.Inner.deep").owner is Base.Inner
    assert not resolve(HERE, "Base.Inner").is_method


@pytest.mark.parametrize(
    ("qualname", "reason"),
    [
        ("nothing", "has no nothing"),
        ("Base.nothing", "Base has no nothing"),
        ("Nothing.method", "Nothing does not exist"),
        ("VALUE.method", "VALUE is int, not a class"),
    ],
)
def test_missing_parts_are_named(qualname: str, reason: str) -> None:
    with pytest.raises(TargetMissing, match=reason):
        resolve(HERE, qualname)


def test_a_module_that_fills_in_names_is_asked() -> None:
    module = ModuleType("lazy")

    def fill(name: str) -> int:
        if name != "found":
            raise AttributeError(name)
        module.__dict__[name] = 7
        return 7

    module.__dict__["__getattr__"] = fill
    assert resolve(module, "found").raw == 7
    with pytest.raises(TargetMissing):
        resolve(module, "other")


@pytest.mark.parametrize("name", ["method", "by_class", "static", "prop", "cached"])
def test_dress_keeps_the_descriptor(name: str) -> None:
    def new(self: object) -> int:
        return 5

    raw = vars(Base)[name]
    dressed = dress(raw, new, owner=Child, name=name)
    assert type(dressed) is type(raw)
    assert unwrap(dressed) is new
    if name == "prop":
        assert dressed.fset is raw.fset
    if name == "cached":
        setattr(Child, name, dressed)
        assert Child().cached == 5
        delattr(Child, name)


@pytest.mark.parametrize(("value", "shared"), [(len, True), (Base, True), (3, False)])
def test_data_is_never_told_by_identity(value: object, shared: bool) -> None:
    assert is_shared(value) is shared
    assert not is_shared(None)
    assert not is_shared(True)
