"""What every part of the redirection works with."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

import torch.jit._builtins as _script_builtins

from accel_bridge.device._devices import DeviceMap, Sides
from accel_bridge.device.device import Device
from accel_bridge.process.import_hook import ImportHook, now_or_when_imported
from accel_bridge.process.journal import ABSENT, Journal, own_namespace


@dataclass(frozen=True, slots=True)
class Context:
    """One redirection in the making.

    :param spec: the device that takes CUDA's place.
    :param devices: translates device designations.
    :param journal: takes every change.
    :param sides: which side tensors are on, where host and device are one memory.
    :param missing: names of the tables that this version of torch does not have.
    """

    spec: Device
    devices: DeviceMap
    journal: Journal
    sides: Sides | None = None
    missing: list[str] = field(default_factory=list)

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Replace ``owner.name`` with ``new`` if this torch has that name."""
        if getattr(owner, name, ABSENT) is ABSENT:
            self.missing.append(f"{_label(owner)}.{name}")
        else:
            self.journal.set(owner, name, new)

    def wrap(
        self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]
    ) -> Callable[..., Any] | None:
        """Replace ``owner.name`` with ``make(original)``, keeping signature and docstring.

        :returns: the new function, or None where this torch lacks the name.
        """
        original = getattr(owner, name, ABSENT)
        if original is ABSENT:
            self.missing.append(f"{_label(owner)}.{name}")
            return None
        new = functools.wraps(original)(make(original))
        if not isinstance(original, FunctionType):
            # C functions name a class that cannot be looked up; pickle would fail on ours.
            if isinstance(owner, ModuleType):
                new.__module__, new.__qualname__ = owner.__name__, name
            elif isinstance(owner, type):
                new.__module__, new.__qualname__ = owner.__module__, f"{owner.__qualname__}.{name}"
        # TorchScript knows its builtins by identity; it would try to compile the wrapper.
        script_names = _script_builtins._get_builtin_table()
        operator = script_names.get(id(original))
        if operator is not None:
            self.journal.set_item(script_names, id(new), operator)
        self.journal.set(owner, name, new)
        # Where pickle looks a function up.
        if isinstance(original, FunctionType):
            home, place = sys.modules.get(original.__module__), original.__qualname__
            if home is not None and vars(home).get(place) is original:
                self.journal.set(home, place, new)
        return new

    def answer(self, owner: Any, name: str, answer: Callable[..., Any]) -> None:
        """Replace ``owner.name`` with a function that only calls ``answer``.

        Unlike ``answer``, which may come from a table, it has the original's name and docstring.
        """

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *args, **kwargs: answer(*args, **kwargs)

        self.wrap(owner, name, make)

    def wrap_everywhere(
        self,
        owner: ModuleType,
        names: Iterable[str],
        make: Callable[[str, Any], Callable[..., Any]],
    ) -> None:
        """Replace functions of ``owner`` with ``make(name, original)`` wherever it has copies.

        :param owner: a package, e.g. ``torch.distributed``; its submodules are searched too.
        """
        replacements: dict[str, tuple[Any, Any]] = {}
        for name in names:
            original = getattr(owner, name, None)
            if original is None:
                self.missing.append(f"{owner.__name__}.{name}")
                continue
            new = functools.wraps(original)(make(name, original))
            replacements[name] = (original, new)
        self.replace_everywhere(owner.__name__, replacements)

    def replace_everywhere(self, package: str, replacements: dict[str, tuple[Any, Any]]) -> None:
        """Rebind old objects in all loaded modules of a package, aliases included.

        :param package: e.g. ``torch.cuda``; its submodules are searched too.
        :param replacements: name -> (old, new). Only entries of module namespaces that *are* the
            old object change, whatever they are called there.
        """
        by_identity = {id(old): new for old, new in replacements.values()}
        for module, name, new in copies_in_modules(by_identity, package):
            self.journal.set(module, name, new)

    def when_imported(self, steps: Mapping[str, Callable[[ModuleType], None]]) -> None:
        """Change modules, by their names: now those that are there, others once imported."""
        hook = now_or_when_imported(steps, lambda name, module: steps[name](module))
        self.journal.set_item(_Hooks(), hook, True)


class _Hooks(dict[ImportHook, bool]):
    """Import hooks in place, as a mapping that a journal undoes."""

    def __setitem__(self, hook: ImportHook, value: bool) -> None:
        hook.install()

    def pop(self, hook: ImportHook, *default: object) -> Any:
        hook.remove()


#: One part of the redirection: makes its changes through the context's methods.
Part = Callable[[Context], None]


def copies_in_modules(
    by_identity: Mapping[int, Any], package: str | None = None
) -> list[tuple[ModuleType, str, Any]]:
    """Where loaded modules hold certain objects.

    :param by_identity: ``id`` of an object -> a value to return with each place of it.
    :param package: look only in this package and its submodules.
    :returns: (module, name in its namespace, value).
    """
    loaded = list(sys.modules.items())
    if package is not None:
        prefix = f"{package}."
        loaded = [item for item in loaded if item[0] == package or item[0].startswith(prefix)]
    wanted = by_identity.keys()
    found = []
    for _, module in loaded:
        if not isinstance(module, ModuleType):
            continue
        namespace = own_namespace(module)
        # Most of thousands of modules hold none: this takes no step of Python for each name.
        if not wanted.isdisjoint(map(id, list(namespace.values()))):
            found += [
                (module, name, by_identity[id(held)])
                for name, held in list(namespace.items())
                if id(held) in wanted
            ]
    return found


def _label(owner: object) -> str:
    return str(getattr(owner, "__name__", type(owner).__name__))
