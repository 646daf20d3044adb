"""The redirection as a whole: apply, undo."""

from __future__ import annotations

import sys
from types import ModuleType, TracebackType
from typing import Any, Final

from accel_bridge.device._accelerator import redirect_accelerator
from accel_bridge.device._autocast import redirect_autocast
from accel_bridge.device._context import Context, Part, copies_in_modules
from accel_bridge.device._cuda_module import redirect_cuda_module
from accel_bridge.device._devices import DeviceMap
from accel_bridge.device._distributed import redirect_distributed
from accel_bridge.device._extensions import redirect_extensions
from accel_bridge.device._factories import redirect_factories
from accel_bridge.device._generators import redirect_generators
from accel_bridge.device._loaders import redirect_loaders
from accel_bridge.device._profiler import redirect_profiler
from accel_bridge.device._serialization import redirect_serialization
from accel_bridge.device._sides import Sides
from accel_bridge.device._tensors import redirect_tensors
from accel_bridge.device.backend import DeviceSpec
from accel_bridge.process.journal import ABSENT, Change, Journal

#: What every device needs; its own parts follow.
_PARTS: Final[tuple[Part, ...]] = (
    redirect_factories,
    redirect_tensors,
    redirect_cuda_module,
    redirect_profiler,
    redirect_generators,
    redirect_autocast,
    redirect_serialization,
    redirect_loaders,
    redirect_distributed,
    redirect_accelerator,
    redirect_extensions,
)


class DeviceRedirection:
    """Puts a device behind everything that torch calls CUDA.

    :param spec: the device.

    Usable as a context manager. Objects that other modules copied before :meth:`apply`, as with
    ``from torch import zeros``, stay what they were: apply it before the script is imported.
    """

    def __init__(self, spec: DeviceSpec) -> None:
        self.spec = spec
        self._journal = Journal()
        self._missing: list[str] = []
        self._applied = False

    @property
    def applied(self) -> bool:
        """Whether the redirection is in force."""
        return self._applied

    @property
    def changes(self) -> tuple[Change, ...]:
        """What was changed, oldest first."""
        return self._journal.changes

    @property
    def missing(self) -> tuple[str, ...]:
        """Names that this version of torch lacks, so they were not redirected."""
        return tuple(self._missing)

    def apply(self) -> None:
        """Redirect; does nothing when already applied. A failure leaves torch as it was."""
        if self._applied:
            return
        self._missing.clear()
        devices = DeviceMap(self.spec)
        sides = Sides(devices.current) if self.spec.type == "cpu" else None
        context = Context(self.spec, devices, self._journal, sides, self._missing)
        try:
            for redirect in (*_PARTS, *self.spec.parts):
                redirect(context)
        except BaseException:
            self._journal.undo()
            raise
        finally:
            _forget_compilers_names()
        self._applied = True

    def undo(self) -> None:
        """Put back every original object; does nothing when not applied.

        Copies that modules took since (``from torch.cuda import Stream``) are put back too.
        """
        # The tuple keeps our objects alive, so that their ids stay theirs.
        changes = self._journal.changes
        originals: dict[int, Any] = {}
        for change in changes:
            if _is_module_name(change):
                # Two parts may replace one function, the second what the first put there.
                originals[id(change.new)] = originals.get(id(change.old), change.old)
        self._journal.undo()
        for module, name, original in copies_in_modules(originals):
            setattr(module, name, original)
        _forget_compilers_names()
        self._applied = False

    def __enter__(self) -> DeviceRedirection:
        self.apply()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.undo()


def _forget_compilers_names() -> None:
    """PyTorch's compiler keeps a table of torch's functions by identity."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    forget = getattr(getattr(rules, "get_torch_obj_rule_map", None), "cache_clear", None)
    if forget is not None:
        forget()


def _is_module_name(change: Change) -> bool:
    return isinstance(change.owner, ModuleType) and change.old is not ABSENT
