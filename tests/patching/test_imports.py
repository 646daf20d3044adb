"""Patches are applied as modules are imported, and imports look as if nothing were there."""

from __future__ import annotations

import importlib
import importlib.resources
import importlib.util
import inspect
import pkgutil
import sys
import threading
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

import pytest

from accel_bridge.patching import State

from .conftest import Writer
from .support import engine, make_patch, states, tag, wrap_f


def test_a_loaded_module_looks_untouched(write: Writer) -> None:
    name = write(a="def f(x): return x", data="")
    with wrap_f(f"{name}.a"):
        a = importlib.import_module(f"{name}.a")
        spec = a.__spec__
        assert type(spec.loader) is SourceFileLoader
        assert type(a.__loader__) is SourceFileLoader
        assert inspect.getsource(a).strip() == "def f(x): return x"
        assert pkgutil.get_data(f"{name}.a", "data.py") == b""
        assert importlib.resources.files(name).joinpath("data.py").read_text() == ""


def test_a_spec_that_is_only_looked_at_still_works(write: Writer) -> None:
    name = write(a="def f(x): return x")
    with wrap_f(f"{name}.a"):
        spec = importlib.util.find_spec(f"{name}.a")
        assert spec.loader is not None
        loader: Any = spec.loader
        assert loader.get_source(f"{name}.a") == "def f(x): return x"
        assert loader.is_package(f"{name}.a") is False
        assert loader.get_data(spec.origin) == b"def f(x): return x"
        assert f"{name}.a" not in sys.modules
        with pytest.raises(AttributeError):
            _ = loader.no_such_thing
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        assert module.f(1) == ("w", 1)


def test_a_package_is_a_target_too(write: Writer) -> None:
    name = write("def f(x): return x\nfrom . import b", b="from . import f as g")
    with engine(make_patch(f"{name}:f", tag("w"), ("x",))) as active:
        package = importlib.import_module(name)
        assert package.__path__
        assert (package.f(1), package.b.g(1)) == (("w", 1), ("w", 1))
        assert active.statuses[0].aliases == (f"{name}.b:g",)
    assert package.b.g(1) == 1


def test_circular_imports(write: Writer) -> None:
    """b copies f while a is half executed, and is rebound when a is done."""
    name = write(
        a="def f(x): return x\nfrom . import b\ndef late(x): return x",
        b="from .a import f as g\nfrom . import a",
    )
    patches = [make_patch(f"{name}.a:{f}", tag(f), ("x",), id=f) for f in ("f", "late")]
    for first in ("a", "b"):
        with engine(*patches) as active:
            importlib.import_module(f"{name}.{first}")
            a, b = (sys.modules[f"{name}.{m}"] for m in "ab")
            assert (a.f(1), b.g(1), a.late(1)) == (("f", 1), ("f", 1), ("late", 1))
            assert set(states(active).values()) == {State.REACHED}
        assert b.g is a.f
        for module in (a, b):
            del sys.modules[module.__name__]


def test_activation_in_the_middle_of_an_import(
    write: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not there yet is patched when the module is done."""
    name = write(
        a="""
        def f(x): return x
        import PKG.start
        early = f(1)
        def late(x): return x
        """,
        start="import sys\nsys.modules['PKG.hook'].activate()",
        hook="",
    )
    hook: Any = importlib.import_module(f"{name}.hook")
    active = engine(
        make_patch(f"{name}.a:f", tag("f"), ("x",), id="f"),
        make_patch(f"{name}.a:late", tag("late"), ("x",), id="late"),
    )
    hook.activate = active.activate
    a = importlib.import_module(f"{name}.a")
    assert a.early == ("f", 1)
    assert set(states(active)) == {"f", "late"}
    assert (a.f(1), a.late(1)) == (("f", 1), ("late", 1))
    active.deactivate()
    assert (a.f(1), a.late(1)) == (1, 1)


def test_an_import_that_fails_is_forgotten(write: Writer) -> None:
    name = write(
        a="import PKG.start\nraise ValueError('injected')",
        start="import sys\nsys.modules['PKG.hook'].activate()",
        hook="",
    )
    hook: Any = importlib.import_module(f"{name}.hook")
    active = wrap_f(f"{name}.a")
    hook.activate = active.activate
    with pytest.raises(ValueError, match="injected"):
        importlib.import_module(f"{name}.a")
    assert states(active) == {"p": State.REGISTERED}
    active.deactivate()


def test_reload_is_patched_again(write: Writer) -> None:
    name = write(a="def f(x): return x", b="from .a import f as g")
    with wrap_f(f"{name}.a") as active:
        b = importlib.import_module(f"{name}.b")
        a = importlib.import_module(f"{name}.a")
        assert b.g(1) == ("w", 1)
        assert importlib.reload(a) is a
        assert a.f(1) == ("w", 1)
        assert type(a.__loader__) is SourceFileLoader
        assert states(active) == {"p": State.REACHED}
    assert (a.f(1), b.g(1)) == (1, 1)
    assert a.f is not b.g  # as after a reload without patches


def test_threads_import_at_once(write: Writer) -> None:
    source = "import time\ntime.sleep(0.01)\ndef f(x): return x"
    name = write(**{f"m{n}": source for n in range(6)})
    patches = [make_patch(f"{name}.m{n}:f", tag("w"), ("x",), id=str(n)) for n in range(6)]
    modules: list[ModuleType] = []

    def load(n: int) -> None:
        modules.append(importlib.import_module(f"{name}.m{n % 6}"))

    with engine(*patches) as active:
        threads = [threading.Thread(target=load, args=(n,)) for n in range(18)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert set(states(active).values()) == {State.APPLIED}
        assert [module.f(1) for module in modules] == [("w", 1)] * 18
    assert [module.f(1) for module in modules] == [1] * 18


def test_activation_while_another_thread_imports(write: Writer) -> None:
    name = write(
        a="import sys\nhook = sys.modules['PKG.hook']\nhook.begun.set()\nhook.go.wait(30)\n"
        "def f(x): return x",
        hook="import threading\nbegun, go = threading.Event(), threading.Event()",
    )
    hook = importlib.import_module(f"{name}.hook")
    thread = threading.Thread(target=importlib.import_module, args=(f"{name}.a",))
    thread.start()
    assert hook.begun.wait(30)
    with wrap_f(f"{name}.a") as active:
        assert states(active) == {"p": State.REGISTERED}
        hook.go.set()
        thread.join(30)
        assert states(active) == {"p": State.APPLIED}
        assert sys.modules[f"{name}.a"].f(1) == ("w", 1)
