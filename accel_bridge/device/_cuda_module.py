"""The names of ``torch.cuda`` and what stands behind each while redirected."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any, Final, overload

import torch

from accel_bridge.device._context import Context
from accel_bridge.device._devices import DeviceMap
from accel_bridge.errors import BridgeError
from accel_bridge.process.journal import ABSENT

# Tensor types from before devices were arguments: ``torch.cuda.FloatTensor`` etc.

#: Tensor types such as ``torch.cuda.FloatTensor``.
LEGACY_TENSORS: Final = {
    "BFloat16Tensor": torch.bfloat16,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
}


class LegacyTensorMeta(type):
    """Makes ``isinstance(tensor, torch.cuda.FloatTensor)`` and calls of the type work."""

    dtype: torch.dtype
    constructor: Callable[..., torch.Tensor]

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor) and instance.dtype == cls.dtype and instance.is_cuda
        )

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device", None)
        return cls.constructor(*args, **kwargs).to("cuda")


def legacy_tensor(name: str, dtype: torch.dtype) -> type:
    """The tensor type ``torch.cuda.<name>`` for the device."""
    return LegacyTensorMeta(
        name,
        (),
        {
            "__module__": "torch.cuda",
            "dtype": dtype,
            "constructor": staticmethod(getattr(torch, name)),
        },
    )


# Classes that translate the device arguments of their constructor.


def translating_class(
    real: type,
    devices: DeviceMap,
    *,
    module: str,
    name: str,
    numbers: bool,
    optional: tuple[str, ...] = (),
) -> type:
    """A class that makes instances of ``real`` and counts them as its own.

    ``isinstance`` and ``issubclass`` answer as ``real`` does; class attributes and subclassing
    work as with ``real``.

    :param module: the module under which the class is known, for pickle.
    :param numbers: whether an int among the arguments is a device.
    :param optional: keywords that are left out where ``real`` does not know them.
    """
    unknown = tuple(word for word in optional if not _takes(real, word))
    translate = devices.translate if numbers else devices.translate_named
    real_meta = type(real)

    def call(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is not proxy:
            return real_meta.__call__(cls, *args, **kwargs)
        for word in unknown:
            kwargs.pop(word, None)
        if "device" in kwargs:
            kwargs["device"] = translate(kwargs["device"])
        return real(*[translate(value) for value in args], **kwargs)

    def check_instance(cls: Any, instance: object) -> bool:
        if cls is proxy:
            return isinstance(instance, real)
        return real_meta.__instancecheck__(cls, instance)

    def check_subclass(cls: Any, candidate: type) -> bool:
        if cls is proxy:
            return issubclass(candidate, real)
        return real_meta.__subclasscheck__(cls, candidate)

    meta: Any = type(
        f"{name}Meta",
        (real_meta,),
        {
            "__call__": call,
            "__instancecheck__": check_instance,
            "__subclasscheck__": check_subclass,
        },
    )
    proxy: type = meta(
        name, (real,), {"__doc__": real.__doc__, "__module__": module, "__wrapped__": real}
    )
    return proxy


def _takes(real: type, word: str) -> bool:
    """Whether the constructor has the keyword; True where it does not say what it has."""
    try:
        parameters = inspect.signature(real).parameters.values()
    except ValueError:
        return True
    return any(one.name == word or one.kind is one.VAR_KEYWORD for one in parameters)


#: Functions that the device module answers. Those that take a device get it translated, unless
#: the device has no numbers: then its module understands CUDA device designations itself.
FUNCTIONS: Final = (
    # device
    "can_device_access_peer",
    "current_device",
    "device_count",
    "get_arch_list",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "init",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "is_tf32_supported",
    "set_device",
    "synchronize",
    "_lazy_call",
    "_lazy_init",
    "_sleep",
    # health
    "clock_rate",
    "device_memory_used",
    "memory_usage",
    "power_draw",
    "temperature",
    "utilization",
    # memory
    "change_current_allocator",
    "empty_cache",
    "get_allocator_backend",
    "get_per_process_memory_fraction",
    "host_memory_stats",
    "ipc_collect",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
    # random generators
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
    # streams
    "current_stream",
    "default_stream",
    "set_stream",
    "stream",
    # graphs
    "graph_pool_handle",
    "is_current_stream_capturing",
    "make_graphed_callables",
    # diagnostics
    "check_error",
    "cudart",
    "current_blas_handle",
    "get_sync_debug_mode",
    "set_sync_debug_mode",
)

#: Classes of the device module; their ``device`` argument is translated.
CLASSES: Final = (
    "CUDAGraph",
    "CUDAPluggableAllocator",
    "Event",
    "ExternalStream",
    "MemPool",
    "Stream",
    "StreamContext",
    "device",
    "device_of",
    "graph",
    "use_mem_pool",
)

#: Keywords that matter to captured graphs alone; the device's class may lack them.
GRAPH_ONLY: Final = {"Event": ("external",)}

#: Compute capability of a device that states none: bfloat16 is supported, nothing newer is.
#: Scripts index the answer, so None would stop them.
CAPABILITY: Final = (8, 0)

#: Device properties that scripts read and a device may not state.
PROPERTIES: Final = {
    "major": CAPABILITY[0],
    "minor": CAPABILITY[1],
    "warp_size": 32,
    "is_integrated": False,
    "is_multi_gpu_board": False,
}

#: Functions of ``torch.cuda.memory`` that are not part of ``torch.cuda`` itself.
MEMORY_FUNCTIONS: Final = ("_dump_snapshot", "_record_memory_history", "_snapshot")

#: What ``torch.cuda.cudart()`` answers: the profiler's switches, which report success.
_RUNTIME: Final[types.SimpleNamespace] = types.SimpleNamespace(
    cudaProfilerStart=lambda: 0, cudaProfilerStop=lambda: 0
)

#: Answers for names that a device module may lack because they mean nothing on its device.
NEUTRAL: Final[dict[str, Callable[..., Any]]] = {
    "_lazy_call": lambda callable, **kwargs: callable(),
    "_lazy_init": lambda: None,
    "_sleep": lambda cycles: None,
    "check_error": lambda result: None,
    "cudart": lambda: _RUNTIME,
    "get_device_capability": lambda device=None: CAPABILITY,
    "get_sync_debug_mode": lambda: 0,
    "init": lambda: None,
    "ipc_collect": lambda: None,
    "is_current_stream_capturing": lambda: False,
    "is_initialized": lambda: True,
    "is_tf32_supported": lambda: False,
    "set_sync_debug_mode": lambda debug_mode: None,
}


class DeviceFunctionError(BridgeError, RuntimeError):
    """A ``torch.cuda`` function without a counterpart on the device was called.

    A RuntimeError as well, as PyTorch's own would be: who catches that has another way to go on.
    """


class DeviceProperties:
    """A device's own properties, and those of :data:`PROPERTIES` that it does not state."""

    def __init__(self, stated: Any) -> None:
        self._stated = stated

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._stated, name, ABSENT)
        if value is ABSENT or value is None:  # torch_npu states None for `major`
            value = PROPERTIES.get(name, value)
        if value is ABSENT:
            raise AttributeError(f"the device does not state its {name!r}")
        return value

    def __repr__(self) -> str:
        return repr(self._stated)


class DeviceGenerators(Sequence[torch.Generator]):
    """``torch.cuda.default_generators``, read from the device module at every access.

    Device modules create theirs when the device is first used.
    """

    def __init__(self, module: Any) -> None:
        self._module = module

    @overload
    def __getitem__(self, index: int) -> torch.Generator: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[torch.Generator]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._module.default_generators[index]

    def __len__(self) -> int:
        return len(self._module.default_generators)


def redirect_cuda_module(context: Context) -> None:
    """Replace the functions and classes of ``torch.cuda`` with the device module's."""
    replacements: dict[str, tuple[Any, Any]] = {}
    for name in FUNCTIONS:
        _collect(replacements, context, torch.cuda, name, _function(context, name))
    for name in CLASSES:
        _collect(replacements, context, torch.cuda, name, _class(context, name))
    for name, dtype in LEGACY_TENSORS.items():
        _collect(replacements, context, torch.cuda, name, legacy_tensor(name, dtype))
    for name in MEMORY_FUNCTIONS:
        new = _function(context, name, submodule="memory")
        _collect(replacements, context, torch.cuda.memory, name, new)
    context.replace_everywhere("torch.cuda", replacements)
    # An empty tuple is one object for the whole interpreter: replace this one by name.
    context.replace(torch.cuda, "default_generators", DeviceGenerators(context.spec.module))
    # PyTorch's own tests save and set streams by their numbers; a build for the CPU has no such
    # names.
    for name, new in (
        ("_cuda_setDevice", _function(context, "set_device")),
        ("_cuda_setStream", _set_stream(context.spec.module)),
    ):
        if (old := getattr(torch._C, name, None)) is not None:
            functools.update_wrapper(new, old)
        new.__module__, new.__name__, new.__qualname__ = "torch._C", name, name  # for pickle
        context.journal.set(torch._C, name, new)


def _collect(
    replacements: dict[str, tuple[Any, Any]], context: Context, owner: Any, name: str, new: Any
) -> None:
    old = getattr(owner, name, ABSENT)
    if old is ABSENT:
        context.missing.append(f"{owner.__name__}.{name}")
        return
    if isinstance(new, type):
        with contextlib.suppress(ValueError):  # a class of C says nothing
            setattr(new, "__signature__", inspect.signature(old))  # noqa: B010
        if not isinstance(old, type):
            # PyTorch's compiler reads it.
            setattr(new, "__wrapped__", getattr(old, "__wrapped__", old))  # noqa: B010
    else:
        functools.update_wrapper(new, old)
    replacements[name] = (old, new)


def _function(context: Context, name: str, submodule: str | None = None) -> Callable[..., Any]:
    spec = context.spec
    module = spec.module if submodule is None else getattr(spec.module, submodule, None)
    function = getattr(module, name, None) or NEUTRAL.get(name)
    if function is None:
        return _unsupported(spec.type, name if submodule is None else f"{submodule}.{name}")
    named = context.devices.translate_named
    translates = spec.indexed
    adapt = _ADAPTED.get(name)

    def forward(*args: Any, **kwargs: Any) -> Any:
        if translates and args:
            args = tuple([named(value) for value in args])
        if translates and "device" in kwargs:
            kwargs["device"] = named(kwargs["device"])
        answer = function(*args, **kwargs)
        return answer if adapt is None else adapt(answer)

    return forward


#: Functions with an answer that must be adapted, and how.
_ADAPTED: Final[dict[str, Callable[[Any], Any]]] = {
    "get_device_capability": lambda answer: answer or CAPABILITY,
    "get_device_properties": DeviceProperties,
}


def _set_stream(module: Any) -> Callable[..., None]:
    def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
        stream = module.Stream(
            stream_id=stream_id, device_index=device_index, device_type=device_type
        )
        module.set_stream(stream)

    return set_stream


def _class(context: Context, name: str) -> Any:
    spec = context.spec
    real = getattr(spec.module, name, None)
    if real is None:
        is_class = isinstance(getattr(torch.cuda, name, None), type)
        return (_unsupported_class if is_class else _unsupported)(spec.type, name)
    if not isinstance(real, type):
        # Some releases spell a context manager as a function.
        return _function(context, name)
    return translating_class(
        real,
        context.devices,
        module="torch.cuda",
        name=name,
        numbers=False,
        optional=GRAPH_ONLY.get(name, ()),
    )


def _error(device_type: str, name: str) -> DeviceFunctionError:
    return DeviceFunctionError(
        f"torch.cuda.{name} has no counterpart on the device {device_type!r}.",
        evidence=f"the module of {device_type!r} has no attribute of that name",
        next="turn off the script's option that needs it",
    )


def _unsupported(device_type: str, name: str) -> Callable[..., Any]:
    def unsupported(*args: Any, **kwargs: Any) -> Any:
        raise _error(device_type, name)

    return unsupported


def _unsupported_class(device_type: str, name: str) -> type:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        raise _error(device_type, name)

    return type(name, (), {"__init__": __init__, "__module__": "torch.cuda"})
