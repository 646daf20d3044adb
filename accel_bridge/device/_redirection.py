"""The redirection as a whole: apply, undo."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

import torch
import torch.autograd.profiler
from torch.utils.data import _utils
from torch.utils.data.dataloader import _BaseDataLoaderIter

from accel_bridge.device._autocast import redirect_autocast
from accel_bridge.device._context import Context, Part, copies_in_modules
from accel_bridge.device._cuda_module import redirect_cuda_module
from accel_bridge.device._devices import DeviceMap, Sides
from accel_bridge.device._distributed import redirect_distributed
from accel_bridge.device._functions import redirect_factories
from accel_bridge.device._generators import redirect_generators
from accel_bridge.device._serialization import redirect_serialization
from accel_bridge.device._tensors import redirect_tensors
from accel_bridge.device.backend import DeviceSpec
from accel_bridge.process.journal import ABSENT, Change, Journal

# torch.accelerator, which finds devices by itself: it answers as torch.cuda does.

#: Name in torch.accelerator -> name in torch.cuda that answers it.
SAME_IN_CUDA: Final = {
    "current_device_idx": "current_device",
    "current_device_index": "current_device",
    "current_stream": "current_stream",
    "device_count": "device_count",
    "empty_cache": "empty_cache",
    "get_memory_info": "mem_get_info",
    "is_available": "is_available",
    "max_memory_allocated": "max_memory_allocated",
    "max_memory_reserved": "max_memory_reserved",
    "memory_allocated": "memory_allocated",
    "memory_reserved": "memory_reserved",
    "memory_stats": "memory_stats",
    "reset_accumulated_memory_stats": "reset_accumulated_memory_stats",
    "reset_peak_memory_stats": "reset_peak_memory_stats",
    "set_device_idx": "set_device",
    "set_device_index": "set_device",
    "set_stream": "set_stream",
    "synchronize": "synchronize",
}
#: What else torch.accelerator has, with its answer.
OTHERS: Final[dict[str, Callable[..., Any]]] = {
    "current_accelerator": lambda check_available=False: torch.device("cuda"),
    "empty_host_cache": lambda: None,
}


def redirect_accelerator(context: Context) -> None:
    """Make ``torch.accelerator`` agree with torch.cuda, unless torch itself found this device."""
    if _found_by_torch() == context.spec.type:
        return
    for name, cuda_name in SAME_IN_CUDA.items():
        context.answer(torch.accelerator, name, _as_in_cuda(cuda_name))
    for name, answer in OTHERS.items():
        context.answer(torch.accelerator, name, answer)
    # PyTorch 2.15's compiler guards the stream, for which it asks C++.
    asked: Any = sys.modules.get("torch._C._dynamo.utils")
    if (old := getattr(asked, "get_current_stream", None)) is not None:
        context.answer(asked, "get_current_stream", _as_in_cuda("current_stream"))
        context.replace_everywhere("torch._dynamo", {"": (old, asked.get_current_stream)})


def _as_in_cuda(name: str) -> Callable[..., Any]:
    def answer(*args: Any, **kwargs: Any) -> Any:
        return getattr(torch.cuda, name)(*args, *kwargs.values())

    return answer


def _found_by_torch() -> str | None:
    """Type of the device that torch takes for the machine's accelerator."""
    try:
        accelerator = torch.accelerator.current_accelerator()
    except RuntimeError:  # how torch 2.6 says that there is none
        return None
    return None if accelerator is None else accelerator.type


# Extensions that a script compiles for CUDA while it runs (torch.utils.cpp_extension).
#
# Without CUDA torch refuses them with an OSError, which scripts expect; behind the redirection it
# would look for the architectures of GPUs that are not there, or compile for
# minutes what cannot run.

_MODULE: Final = "torch.utils.cpp_extension"
#: Its functions that compile at once.
BUILDERS: Final = ("load", "load_inline")


def redirect_extensions(context: Context) -> None:
    """Refuse CUDA extensions, from the moment on at which somebody imports torch's compiler."""

    def refuse(module: ModuleType) -> None:
        for builder in BUILDERS:
            context.wrap(module, builder, functools.partial(_refusing_cuda, context.spec.type))

    context.when_imported({_MODULE: refuse})


def _refusing_cuda(device: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def build(name: str, *args: Any, **kwargs: Any) -> Any:
        sources = kwargs.get("sources", args[0] if args and original.__name__ == "load" else ())
        cuda = kwargs.get("with_cuda")
        if cuda is None:
            files = [sources] if isinstance(sources, str) else list(sources)
            cuda = bool(kwargs.get("cuda_sources")) or any(str(f).endswith(".cu") for f in files)
        if cuda:
            raise OSError(f"the CUDA extension {name!r} is not built: the device is {device!r}")
        return original(name, *args, **kwargs)

    return build


# DataLoader on a device without pinned memory.

#: Attribute of an iterator over a loader that was asked for pinned memory.
_PINS: Final = "_accel_bridge_pins"


def redirect_loaders(context: Context) -> None:
    """Copy batches where ``pin_memory=True`` does, without the thread that torch starts for it."""
    if not context.spec.pinned_memory:
        context.wrap(_BaseDataLoaderIter, "__init__", _without_pinning)
        context.wrap(_BaseDataLoaderIter, "__next__", _copies)


def _without_pinning(original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, loader: Any) -> None:
        pins, loader.pin_memory = loader.pin_memory, False
        try:
            original(self, loader)
        finally:
            loader.pin_memory = pins
        setattr(self, _PINS, pins)

    return __init__


def _copies(original: Callable[..., Any]) -> Callable[..., Any]:
    def __next__(self: Any) -> Any:
        batch = original(self)
        return _utils.pin_memory.pin_memory(batch) if getattr(self, _PINS, False) else batch

    return __next__


# Profilers: NVIDIA's annotations and switches, and the CUDA activity of torch's own profiler.


@contextlib.contextmanager
def _range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:
    yield


#: ``torch.cuda.nvtx``, with nobody to read the annotations.
NVTX: Final[dict[str, Callable[..., Any]]] = {
    "mark": lambda msg: None,
    "range": _range,
    "range_end": lambda range_id: None,
    "range_pop": lambda: 0,
    "range_push": lambda msg: 0,
    "range_start": lambda msg: 0,
}

#: ``torch.cuda.profiler``, with nothing to switch.
PROFILER: Final[dict[str, Callable[..., Any]]] = {
    "start": lambda: None,
    "stop": lambda: None,
}


def redirect_profiler(context: Context) -> None:
    """Silence NVIDIA's profiler and let torch's record the host."""
    for module, answers in ((torch.cuda.nvtx, NVTX), (torch.cuda.profiler, PROFILER)):
        for name, answer in answers.items():
            context.answer(module, name, answer)
    context.wrap(torch.autograd.profiler.profile, "__init__", _without_cuda)


def _without_cuda(original: Callable[..., None]) -> Callable[..., None]:
    """``torch.profiler`` ends up here too, with its translation of ``ProfilerActivity.CUDA``."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("use_device") == "cuda":
            kwargs["use_device"] = None
        kwargs.pop("use_cuda", None)
        original(self, *args, **kwargs)

    return __init__


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

    def __exit__(self, *_: object) -> None:
        self.undo()


def _forget_compilers_names() -> None:
    """PyTorch's compiler keeps a table of torch's functions by identity."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    forget = getattr(getattr(rules, "get_torch_obj_rule_map", None), "cache_clear", None)
    if forget is not None:
        forget()


def _is_module_name(change: Change) -> bool:
    return isinstance(change.owner, ModuleType) and change.old is not ABSENT
