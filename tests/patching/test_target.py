from __future__ import annotations

import sys
from functools import cached_property
from types import ModuleType

import pytest

from accel_bridge.patching.target import (
    TargetMissing,
    is_shared,
    resolve,
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


VALUE = 3
HERE = sys.modules[__name__]


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


@pytest.mark.parametrize(("value", "shared"), [(len, True), (Base, True), (3, False)])
def test_data_is_never_told_by_identity(value: object, shared: bool) -> None:
    assert is_shared(value) is shared
    assert not is_shared(None)
    assert not is_shared(True)
