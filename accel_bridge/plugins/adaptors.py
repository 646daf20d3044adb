"""Other projects' adaptors: those that can take a device over, and those that a script imports by
name where they cannot do their work.

A script written for one device says ``import torch_npu`` or ``import mindspeed.megatron_adaptor``
in its first lines, and stops there on every other machine. What those lines ask for, the active
bridge does; so the import finds an empty module, and one line says so. An import that its own code
guards (``try: ... except ImportError``) is a question, and is answered as before.
"""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import FrameType, ModuleType
from typing import Final

from accel_bridge.errors import SelectionError
from accel_bridge.process.import_hook import importer, in_importlib


@dataclass(frozen=True, slots=True)
class Adaptor:
    """A package that scripts import for its effect, and that has none here.

    :param name: its top-level module.
    :param directory: holds the package that is imported instead, under that name. It must import
        nothing of the layer but torch.
    :param why: one clause: why the real one does not do its work here.
    """

    name: str
    directory: Path
    why: str


class AbsentAdaptorError(ModuleNotFoundError):
    """A script wants more of an adaptor than its effect."""


#: Handlers that take a missing module for an answer, and those that only may.
_ANSWERS: Final = frozenset({"ImportError", "ModuleNotFoundError"})
_BROAD: Final = frozenset({"Exception", "BaseException"})


class AdaptorFinder(MetaPathFinder):
    """Finds the empty modules; belongs at the head of ``sys.meta_path``.

    :param adaptors: those that do not do their work here.
    :param say: tells the user, once for each.
    """

    def __init__(self, adaptors: Iterable[Adaptor], say: Callable[[str], None]) -> None:
        self._adaptors = {adaptor.name: adaptor for adaptor in adaptors}
        self._say = say
        self._served: set[str] = set()

    def install(self) -> None:
        """Stand before the other finders."""
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Leave ``sys.meta_path``, and take the modules along."""
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        for name in list(sys.modules):
            if name.partition(".")[0] in self._served:
                undo = getattr(sys.modules.pop(name), "undo", None)
                if undo is not None:
                    undo()

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """An empty module for an import that cannot do without; None for anything else.

        :raises AbsentAdaptorError: the script imports what only the real one has.
        """
        root, _, inner = fullname.partition(".")
        adaptor = self._adaptors.get(root)
        if adaptor is None:
            return None
        if inner:
            if root not in self._served:
                return None
            spec = PathFinder.find_spec(fullname, path)
            if spec is None and not _is_question(sys._getframe(1)):
                raise _absent(fullname, adaptor)
            return spec
        if _is_question(sys._getframe(1)):
            return None
        self._served.add(root)
        self._say(f"`import {root}` does nothing: {adaptor.why}; accel_bridge does its work here")
        place = adaptor.directory / root
        return spec_from_file_location(
            root, place / "__init__.py", submodule_search_locations=[str(place)]
        )


def _absent(fullname: str, adaptor: Adaptor) -> AbsentAdaptorError:
    return AbsentAdaptorError(
        f"there is no {fullname} here\n"
        f"  evidence: {adaptor.why}; what stands for {adaptor.name} is empty\n"
        f"  next:     leave out what needs {fullname}, or run this script where "
        f"{adaptor.name} works"
    )


def _is_question(frame: FrameType | None) -> bool:
    """Whether the import that ``frame`` belongs to can do without the module.

    It is one if nothing but ``importlib`` asks (``find_spec`` looks), if the statement stands in a
    ``try`` that goes on without the module, or if a caller's ``try`` names ImportError.
    """
    importing, frame = importer(frame)
    if not importing:
        return True
    wanted = _ANSWERS | _BROAD
    while frame is not None:
        if not in_importlib(frame) and _is_guarded(frame, wanted):
            return True
        wanted = _ANSWERS
        frame = frame.f_back
    return False


def _is_guarded(frame: FrameType, wanted: frozenset[str]) -> bool:
    """Whether the line that ``frame`` is at stands in a ``try`` that catches one of ``wanted``."""
    file = frame.f_code.co_filename
    linecache.lazycache(file, frame.f_globals)
    return any(
        first <= frame.f_lineno <= last and wanted.intersection(caught)
        for first, last, caught in _guards(file)
    )


@functools.cache
def _guards(file: str) -> tuple[tuple[int, int, frozenset[str]], ...]:
    """The first and last lines of each body that goes on after an error, and which errors."""
    source = "".join(linecache.getlines(file))
    if not any(word in source for word in (*_ANSWERS, *_BROAD, "except:")):
        return ()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ()
    return tuple(
        (node.body[0].lineno, node.body[-1].end_lineno or 0, frozenset(_caught(node)))
        for node in ast.walk(tree)
        if isinstance(node, ast.Try | ast.With)
    )


def _caught(node: ast.Try | ast.With) -> Iterator[str]:
    """Names of the errors after which the program goes on behind ``node``."""
    if isinstance(node, ast.Try):
        for handler in node.handlers:
            if not isinstance(handler.body[-1], ast.Raise):
                yield from _BROAD if handler.type is None else _names(handler.type)
        return
    for item in node.items:
        call = item.context_expr
        if isinstance(call, ast.Call) and list(_names(call.func))[-1:] == ["suppress"]:
            for argument in call.args:
                yield from _names(argument)


def _names(node: ast.expr) -> Iterator[str]:
    """The last parts of the names in ``node``: of a name, an attribute, or a tuple of them."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.Tuple):
        for element in node.elts:
            yield from _names(element)


def _nothing() -> None:
    """The start of an adaptor that is not used."""


def _covers_nothing(patch_id: str) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delegation:
    """Whether an adaptor takes over the selected backend's device, and why.

    :param adaptor: its name, for people.
    :param taken: it is installed, fits the installed framework, and can still be imported first.
    :param why: one sentence with the reason, either way.
    :param evidence: what was looked at.
    :param next: what would make it usable; shown if it is required, or if nothing else can be
        used.
    :param required: the setting that requires it, e.g. ``VARIABLE=require``; empty if none does.
    :param start: imports it and checks that it works; raises BridgeError if it does not.
    :param done: the script imported it before accel_bridge, and the framework with it.
    :param covers: takes a patch id; returns why the adaptor makes that patch unnecessary, or None.
    """

    adaptor: str
    taken: bool
    why: str
    evidence: tuple[str, ...] = ()
    next: str = ""
    required: str = ""
    start: Callable[[], None] = _nothing
    done: bool = False
    covers: Callable[[str], str | None] = _covers_nothing


def choose_delegation(found: Sequence[Delegation], backend: str) -> Delegation | None:
    """The adaptor that takes over, or None for accel_bridge's own kernels and patches.

    :param found: what the plugins report about the adaptors they know.
    :param backend: name of the selected backend.
    :raises SelectionError: an adaptor is required but cannot be used.
    """
    for one in found:
        if one.required and not one.taken:
            raise SelectionError(
                f"{one.adaptor} was required but cannot be used here.",
                evidence=[
                    one.required,
                    f"backend {backend}",
                    f"{one.adaptor}: {one.why}",
                    *one.evidence,
                ],
                next=one.next,
            )
    # A required adaptor comes before the others.
    return next((one for one in sorted(found, key=lambda one: not one.required) if one.taken), None)
