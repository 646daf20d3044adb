"""Imports under way: who asks for a module, and running a function right after its execution."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any, Final, cast

from accel_bridge.process.journal import own_namespace

#: The bootstrap's hook activates the bridge in the midst of an import, and asks on its behalf.
_HOOK: Final = f"{os.sep}accel_bridge_hook.py"


def importer(frame: FrameType | None) -> tuple[bool, FrameType | None]:
    """Whether an import statement asks a finder, and the frame of who asks.

    ``importlib.util.find_spec`` only looks: None is an answer for it, and an error would not be.

    :param frame: the caller of the finder's ``find_spec``, inside importlib.
    """
    importing = False
    while frame is not None and in_importlib(frame):
        importing = importing or frame.f_code.co_name == "_find_and_load_unlocked"
        frame = frame.f_back
    return importing, frame


def in_importlib(frame: FrameType) -> bool:
    """Whether the frame is one of the import machinery, the bootstrap's hook included."""
    file = frame.f_code.co_filename
    return "importlib" in file or file.endswith(_HOOK)


class ImportHook(MetaPathFinder):
    """Calls ``executed(name, module)`` after a watched module was executed, or executed again.

    It runs before the import statement returns, so before anyone but a circular importer can
    copy a name. A module run as a script (``python -m``, :mod:`runpy`) is executed as ``__main__``
    and is not noticed. Neither is a namespace package, which has nothing to execute.

    :param watched: full names of modules.
    :param searching: called at every search for a module; used for deferred work.
    """

    def __init__(
        self,
        watched: Iterable[str],
        executed: Callable[[str, ModuleType], None],
        searching: Callable[[], None] = lambda: None,
    ) -> None:
        self._watched = frozenset(watched)
        self._executed = executed
        self._searching = searching
        self._active = threading.local()

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Leave ``sys.meta_path``; modules in the middle of their import are no longer noticed."""
        self._watched = frozenset()
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The other finders' answer, with a loader that calls us; None for other modules."""
        self._searching()
        if fullname not in self._watched or fullname in self._names():
            return None
        self._names().add(fullname)
        try:
            spec = _search(self, fullname, path, target)
        finally:
            self._names().discard(fullname)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = cast(Any, _NotifyingLoader(spec, self))
        return spec

    def done(self, name: str, module: ModuleType) -> None:
        """A watched module was executed."""
        if name in self._watched:
            self._executed(name, module)

    def _names(self) -> set[str]:
        """Modules this thread is searching for: other hooks may search through us again."""
        names: set[str] = self._active.__dict__.setdefault("names", set())
        return names


def now_or_when_imported(
    names: Iterable[str], executed: Callable[[str, ModuleType], None]
) -> ImportHook:
    """Call ``executed`` for the modules that are there; the hook, not installed, for the others."""
    hook = ImportHook(names, executed)
    for name in names:
        if name in sys.modules:
            executed(name, sys.modules[name])
    return hook


class _NotifyingLoader:
    """Stands in for a loader until its module is executed, then steps aside.

    While and after the module is executed, its ``__loader__`` and ``__spec__.loader`` are the
    real loader, so ``inspect``, ``pkgutil`` and ``importlib.resources`` see what they know. A spec
    that is only inspected has this loader, which forwards everything else.
    """

    def __init__(self, spec: ModuleSpec, hook: ImportHook) -> None:
        self._spec = spec
        self._loader: Any = spec.loader
        self._hook = hook

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        create = getattr(self._loader, "create_module", None)
        return cast("ModuleType | None", create(spec)) if create else None

    def exec_module(self, module: ModuleType) -> None:
        namespace = own_namespace(module)
        if cast(object, self._spec.loader) is self:
            self._spec.loader = self._loader
        if namespace.get("__loader__") is self:
            namespace["__loader__"] = self._loader
        self._loader.exec_module(module)
        self._hook.done(self._spec.name, module)

    def __getattr__(self, name: str) -> Any:
        if name in ("_spec", "_loader", "_hook"):  # not set yet: copied or unpickled
            raise AttributeError(name)
        return getattr(self._loader, name)


def _search(
    asking: MetaPathFinder, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    """What the finders other than ``asking`` find."""
    for finder in list(sys.meta_path):
        find_spec = getattr(finder, "find_spec", None)
        if finder is not asking and find_spec is not None:
            spec: ModuleSpec | None = find_spec(name, path, target)
            if spec is not None:
                return spec
    return None
