"""What every part of the redirection works with."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from accel_bridge._backend import DeviceSpec
from accel_bridge.device._devices import DeviceMap
from accel_bridge.patching._journal import ABSENT, Journal, own_namespace

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Context:
    """One redirection in the making.

    :param spec: the device that takes CUDA's place.
    :param devices: translates device designations.
    :param journal: takes every change.
    :param missing: names of the tables that this version of torch does not have.
    """

    spec: DeviceSpec
    devices: DeviceMap
    journal: Journal
    missing: list[str] = field(default_factory=list)

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Put ``new`` in the place of ``owner.name``, if this torch has that name."""
        if getattr(owner, name, ABSENT) is ABSENT:
            self.missing.append(f"{_label(owner)}.{name}")
        else:
            self.journal.set(owner, name, new)

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Function]) -> Function | None:
        """Put ``make(original)`` in the place of ``owner.name``, signature and text kept.

        :returns: the new function, or None where this torch lacks the name.
        """
        original = getattr(owner, name, ABSENT)
        if original is ABSENT:
            self.missing.append(f"{_label(owner)}.{name}")
            return None
        new: Function = functools.wraps(original)(make(original))
        self.journal.set(owner, name, new)
        return new

    def replace_everywhere(self, package: str, replacements: dict[str, tuple[Any, Any]]) -> None:
        """Rebind old objects in all loaded modules of a package, aliases included.

        :param package: e.g. ``torch.cuda``; its submodules are searched too.
        :param replacements: name -> (old, new). Only entries of module namespaces that *are* the
            old object change, whatever they are called there.
        """
        by_identity = {id(old): new for old, new in replacements.values()}
        prefix = package + "."
        for module_name, module in list(sys.modules.items()):
            if module is None or not (module_name == package or module_name.startswith(prefix)):
                continue
            for name, value in list(own_namespace(module).items()):
                new = by_identity.get(id(value), ABSENT)
                if new is not ABSENT:
                    self.journal.set(module, name, new)


def _label(owner: object) -> str:
    return str(getattr(owner, "__name__", type(owner).__name__))
