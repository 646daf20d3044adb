"""Patches are applied as modules are imported, and imports look as if nothing were there."""

from __future__ import annotations

import importlib
import importlib.resources
import importlib.util
import inspect
import pkgutil
import runpy
import sys
import threading
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any
from zipfile import ZipFile

import pytest

from accel_bridge.patching import PatchContext, State

from .conftest import Writer
from .support import engine, make_patch, states, tag, wrap_f


def test_names_are_patched_before_they_are_copied(write: Writer) -> None:
    name = write("from .a import f\nTABLE = {'f': f}", a="def f(x): return x")
    with wrap_f(f"{name}.a") as active:
        package = importlib.import_module(name)
        assert package.f(1) == ("w", 1)
        assert package.TABLE["f"](1) == ("w", 1)
        assert active.statuses[0].aliases == ()


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


def test_a_module_that_is_forgotten_and_imported_anew(write: Writer) -> None:
    name = write(a="def f(x): return x")
    with wrap_f(f"{name}.a"):
        old = importlib.import_module(f"{name}.a")
        del sys.modules[f"{name}.a"]
        new = importlib.import_module(f"{name}.a")
        assert new is not old
        assert (old.f(1), new.f(1)) == (("w", 1), ("w", 1))
    assert (old.f(1), new.f(1)) == (1, 1)


def test_runpy_runs_the_plain_module(write: Writer, capsys: pytest.CaptureFixture[str]) -> None:
    """A module that is run is not the module that others import; it is left alone."""
    name = write(a="def f(x): return x\nif __name__ == '__main__': print(f(1))")
    with wrap_f(f"{name}.a"):
        assert runpy.run_module(f"{name}.a", run_name="__main__")["f"](1) == 1
        assert runpy.run_module(f"{name}.a", alter_sys=True)["f"](1) == 1
        assert importlib.import_module(f"{name}.a").f(1) == ("w", 1)
    assert capsys.readouterr().out == "1\n"


def test_make_may_import_what_is_being_patched(write: Writer) -> None:
    name = write(
        a="def f(x): return x\ndef g(x): return x",
        user="from .a import f, g",
        more="from .user import g\ndef h(x): return x",
    )

    def make(context: PatchContext) -> object:
        importlib.import_module(f"{name}.more")
        return tag("w")(context)

    patches = [
        make_patch(f"{name}.a:f", make, ("x",), id="f"),
        make_patch(f"{name}.more:h", make, ("x",), id="h"),
        make_patch(f"{name}.a:g", make, ("x",), id="g"),
    ]
    with engine(*patches) as active:
        more = importlib.import_module(f"{name}.a") and sys.modules[f"{name}.more"]
        user = sys.modules[f"{name}.user"]
        assert [f(1) for f in (user.f, user.g, more.g, more.h)] == [("w", 1)] * 4
        assert set(states(active).values()) == {State.REACHED}
    assert [f(1) for f in (user.f, user.g, more.g, more.h)] == [1] * 4


def test_a_lazily_loaded_target(write: Writer) -> None:
    name = write(a="def f(x): return x")
    with wrap_f(f"{name}.a"):
        spec = importlib.util.find_spec(f"{name}.a")
        assert spec.loader is not None
        loader = importlib.util.LazyLoader(spec.loader)
        spec.loader = loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        loader.exec_module(module)
        assert module.f(1) == ("w", 1)
    assert module.f(1) == 1


def test_modules_in_zip_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "zipped.zip"
    with ZipFile(archive, "w") as file:
        file.writestr("zipped_for_patching.py", "def f(x): return x")
    monkeypatch.syspath_prepend(str(archive))
    with engine(make_patch("zipped_for_patching:f", tag("w"), ("x",))):
        module = importlib.import_module("zipped_for_patching")
        assert module.f(1) == ("w", 1)
        assert inspect.getsource(module).strip() == "def f(x): return x"
    assert module.f(1) == 1
    monkeypatch.delitem(sys.modules, "zipped_for_patching")


def test_namespace_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bare_namespace").mkdir()
    (tmp_path / "bare_namespace" / "a.py").write_text("def f(x): return x")
    monkeypatch.syspath_prepend(str(tmp_path))
    patches = [
        make_patch("bare_namespace:f", tag("w"), ("x",), id="none", optional=True),
        make_patch("bare_namespace.a:f", tag("w"), ("x",), id="some"),
    ]
    with engine(*patches) as active:
        module = importlib.import_module("bare_namespace.a")
        assert module.f(1) == ("w", 1)
        assert states(active)["some"] is State.REACHED
        assert states(active)["none"] in (State.REGISTERED, State.SKIPPED)
    for name in ("bare_namespace", "bare_namespace.a"):
        monkeypatch.delitem(sys.modules, name)


def test_another_hook_that_searches_through_us(write: Writer) -> None:
    """As wrapt's does: it asks importlib again from inside find_spec."""
    name = write(a="def f(x): return x")
    asked: list[str] = []

    class Outer:
        busy = False

        def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
            if self.busy or not fullname.startswith(name):
                return None
            self.busy = True
            asked.append(fullname)
            try:
                return importlib.util.find_spec(fullname)
            finally:
                self.busy = False

    for position in (0, 1):
        with wrap_f(f"{name}.a"):
            outer = Outer()
            sys.meta_path.insert(position, outer)  # type: ignore[arg-type]
            a = importlib.import_module(f"{name}.a")
            sys.meta_path.remove(outer)  # type: ignore[arg-type]
            assert a.f(1) == ("w", 1)
        del sys.modules[f"{name}.a"]
    assert f"{name}.a" in asked


def test_deactivation_in_the_middle_of_an_import(write: Writer) -> None:
    name = write(a="def f(x): return x\nimport sys\nsys.modules['PKG.hook'].deactivate()", hook="")
    hook: Any = importlib.import_module(f"{name}.hook")
    active = wrap_f(f"{name}.a")
    hook.deactivate = active.deactivate
    active.activate()
    assert importlib.import_module(f"{name}.a").f(1) == 1
    assert states(active) == {"p": State.REGISTERED}


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
