from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest

from accel_bridge.patching.target import find_places

from .conftest import Writer


def test_globals_and_class_attributes_are_found(write: Writer) -> None:
    name = write(
        a="""
            def f(): ...
            class C:
                act = staticmethod(f)
                bare = f
                class Inner:
                    act = property(f)
        """,
        b="from .a import f as g, C",
    )
    b = importlib.import_module(f"{name}.b")
    places = {str(place) for place in find_places(b.g, name)}
    assert places == {
        f"{name}.a:f",
        f"{name}.b:g",
        f"{name}.a:C.act",
        f"{name}.a:C.bare",
        f"{name}.a:C.Inner.act",
    }


def test_other_packages_are_searched_on_request_and_their_classes_never(write: Writer) -> None:
    one = write(a="def f(): ...")
    two = write(b=f"from {one}.a import f\nclass C:\n    act = staticmethod(f)")
    b = importlib.import_module(f"{two}.b")
    assert {str(place) for place in find_places(b.f, one)} == {f"{one}.a:f"}
    everywhere = {str(place) for place in find_places(b.f, one, everywhere=True)}
    assert everywhere == {f"{one}.a:f", f"{two}.b:f"}


def test_lazy_modules_stay_asleep_and_oddities_do_no_harm(
    write: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = write(a="def f(): ...", sleeping="raise RuntimeError('woken')")
    a = importlib.import_module(f"{name}.a")
    spec = importlib.util.find_spec(f"{name}.sleeping")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    lazy = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, lazy)
    spec.loader.exec_module(lazy)

    class Odd:
        def __getattribute__(self, attribute: str) -> Any:
            raise RuntimeError(attribute)

    class OddModule(ModuleType):
        def __getattribute__(self, attribute: str) -> Any:
            raise RuntimeError(attribute)

    monkeypatch.setitem(sys.modules, f"{name}.odd", Odd())  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, f"{name}.none", None)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, f"{name}.odd_module", OddModule("odd"))
    assert [str(place) for place in find_places(a.f, name)] == [f"{name}.a:f"]
    with pytest.raises(RuntimeError, match="woken"):
        lazy.anything  # noqa: B018 - it was asleep until now
    monkeypatch.undo()


def test_of_a_module_just_executed_only_later_ones_can_hold_anything(write: Writer) -> None:
    name = write(early="", a="def f(): ...\nfrom . import b", b="import PKG.a\nf = PKG.a.f")
    early = importlib.import_module(f"{name}.early")
    b = importlib.import_module(f"{name}.b")
    a = importlib.import_module(f"{name}.a")
    found = {str(place) for place in find_places(b.f, name, since=a.__name__)}
    assert found <= {str(place) for place in find_places(b.f, name)}
    assert f"{name}.a:f" in found
    early.injected = b.f
    assert f"{name}.early:injected" not in {
        str(place) for place in find_places(b.f, name, since=a.__name__)
    }
    assert f"{name}.early:injected" in {str(place) for place in find_places(b.f, name)}
