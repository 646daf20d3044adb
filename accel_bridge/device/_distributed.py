"""torch.distributed: the device's communication backend where a script names NCCL.

- ``get_backend`` is left alone and reports what is really used: torch itself relies on it.
- ``device_id`` of process groups and ``device_ids`` of barriers are dropped, as are options made
  for NCCL: no other backend knows them.
- The ranks of a new group meet at a place that its members name. Ranks that create different groups
  by one call (each its own pair, say) met at the same place, which NCCL, connecting at the first
  use, forgives, and gloo does not.
"""

from __future__ import annotations

import inspect
import os
import types
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial, wraps
from typing import Any, Final, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DataParallel, DistributedDataParallel

from accel_bridge.device._context import Context
from accel_bridge.device.device import Device

NCCL: Final = "nccl"
#: What a CUDA build of torch uses when none is named.
DEFAULT_BACKENDS: Final = f"cpu:gloo,cuda:{NCCL}"

#: Functions with a ``backend`` argument.
GROUP_FUNCTIONS: Final = (
    "init_process_group",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
)

#: Arguments that only NCCL understands, by function.
DROPPED_ARGUMENTS: Final[dict[str, tuple[str, ...]]] = {
    "init_process_group": ("device_id",),
    "new_group": ("device_id",),
    "barrier": ("device_ids",),
    "_new_process_group_helper": ("device_id",),
}


#: Changes a call's arguments, by name.
Change: TypeAlias = Callable[[dict[str, Any]], None]


def _changing(original: Callable[..., Any], change: Change) -> Callable[..., Any]:
    """``original``, called with the arguments that ``change`` leaves."""
    signature = inspect.signature(original)

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        change(bound.arguments)
        return original(*bound.args, **bound.kwargs)

    return call


class NcclOptions:
    """Stands in for ``ProcessGroupNCCL.Options`` where torch was built without NCCL."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self.config = types.SimpleNamespace()


#: Stands in for ``torch.distributed.ProcessGroupNCCL``.
_NCCL_SHIM: Final = type("ProcessGroupNCCL", (), {"Options": NcclOptions})


def translate_backend(backend: str, device_type: str, replacement: str) -> str:
    """``nccl`` -> ``replacement``, alone or in a list such as ``cpu:gloo,cuda:nccl``.

    >>> translate_backend("cpu:gloo,cuda:nccl", "npu", "hccl")
    'cpu:gloo,npu:hccl'
    >>> translate_backend("cpu:gloo,cuda:nccl", "cpu", "gloo")
    'gloo'
    """
    lowered = backend.lower()
    if ":" not in lowered:
        return replacement if lowered == NCCL else backend
    by_device: dict[str, str] = {}
    for entry in lowered.split(","):
        device, _, name = entry.strip().partition(":")
        device = device_type if device == "cuda" else device
        by_device[device] = replacement if name == NCCL else name
    if list(by_device) == [device_type]:
        return by_device[device_type]
    return ",".join(f"{device}:{name}" for device, name in by_device.items())


def redirect_distributed(context: Context) -> None:
    """Redirect process groups, barriers and device meshes."""
    context.wrap_everywhere(
        dist,
        (*GROUP_FUNCTIONS, "barrier"),
        lambda name, original: _without_nccl(original, name, context.spec),
    )
    # Trainers call it too, for groups between them and what generates.
    helper = "_new_process_group_helper"
    context.wrap(
        dist.distributed_c10d,
        helper,
        lambda original: _without_nccl(_meeting_by_members(original), helper, context.spec),
    )
    context.wrap(DeviceMesh, "__init__", lambda original: _device_mesh(original, context.spec))
    if not context.spec.indexed:
        context.wrap(DistributedDataParallel, "__init__", _without_device_ids)
        context.wrap(DataParallel, "__init__", _on_one_device)
        context.wrap(torch.nn.parallel, "data_parallel", _run_on_one_device)
    if not hasattr(dist, "ProcessGroupNCCL"):
        context.journal.set(dist, "ProcessGroupNCCL", _NCCL_SHIM)


def _without_nccl(original: Callable[..., Any], name: str, spec: Device) -> Callable[..., Any]:
    def change(arguments: dict[str, Any]) -> None:
        for item in DROPPED_ARGUMENTS.get(name, ()):
            arguments.pop(item, None)
        if name != "barrier":
            _translate_group_arguments(arguments, name, spec)

    return _changing(original, change)


def _translate_group_arguments(arguments: dict[str, Any], name: str, spec: Device) -> None:
    backend = arguments.get("backend")
    if backend == "undefined" or (backend is None and name == "init_process_group"):
        backend = DEFAULT_BACKENDS
    if backend is not None:
        arguments["backend"] = translate_backend(
            str(backend), spec.type, spec.communication_backend
        )
    for options in ("pg_options", "backend_options"):
        if _is_nccl_options(arguments.get(options)):
            del arguments[options]


def _is_nccl_options(options: object) -> bool:
    nccl = getattr(dist, "ProcessGroupNCCL", None)
    return nccl is not None and isinstance(options, nccl.Options)


def _meeting_by_members(original: Callable[..., Any]) -> Callable[..., Any]:
    if not {"store", "global_ranks_in_group"} <= set(inspect.signature(original).parameters):
        return original

    def change(arguments: dict[str, Any]) -> None:
        # The default group names none.
        if ranks := arguments["global_ranks_in_group"]:
            place = f"ranks {'_'.join(map(str, ranks))}/"
            arguments["store"] = dist.distributed_c10d.PrefixStore(place, arguments["store"])

    return _changing(original, change)


def _device_mesh(original: Callable[..., None], spec: Device) -> Callable[..., None]:
    def change(arguments: dict[str, Any]) -> None:
        if arguments.get("device_type") == "cuda":
            arguments["device_type"] = spec.type

    return _changing(original, change)


def _without_device_ids(original: Callable[..., None]) -> Callable[..., None]:
    """torch accepts device numbers only for modules on numbered devices."""

    def change(arguments: dict[str, Any]) -> None:
        arguments.pop("device_ids", None)
        arguments.pop("output_device", None)

    return _changing(original, change)


def _on_one_device(original: Callable[..., None]) -> Callable[..., None]:
    """As torch does on a machine without an accelerator: call the module itself."""

    def __init__(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        torch.nn.Module.__init__(self)
        self.module = module.cuda()
        self.device_ids = []

    return __init__


def _run_on_one_device(original: Callable[..., Any]) -> Callable[..., Any]:
    def data_parallel(
        module: Any,
        inputs: Any,
        device_ids: Any = None,
        output_device: Any = None,
        dim: int = 0,
        module_kwargs: Any = None,
    ) -> Any:
        inputs = inputs if isinstance(inputs, tuple) else () if inputs is None else (inputs,)
        return module(*inputs, **(module_kwargs or {}))

    return data_parallel


# Averages over a group, for a communication backend that only sums.
#
# Every value is divided before the sum, so that asynchronous and coalesced calls need nothing
# afterwards. So is that of NCCL's sums with a factor, with which FSDP scales gradients. Averages of
# integers are left to the backend: divided first they would be wrong.

#: Functions with an ``op`` argument -> the argument that is summed. ``all_reduce`` works in place;
#: the others leave their input unchanged.
REDUCTIONS: Final = {
    "all_reduce": "tensor",
    "reduce_scatter_single": "input",
    "reduce_scatter_tensor": "input",
}
IN_PLACE: Final = frozenset({"all_reduce"})


def averages(context: Context) -> None:
    """A part for a communication backend without ``ReduceOp.AVG``: makes it work for floats."""
    context.wrap_everywhere(
        dist,
        REDUCTIONS,
        lambda name, original: _averaging(original, REDUCTIONS[name], name in IN_PLACE),
    )


def _averaging(original: Callable[..., Any], summed: str, in_place: bool) -> Callable[..., Any]:
    def change(arguments: dict[str, Any]) -> None:
        # Who has wrapped the function before may have hidden its parameters: then there is no op.
        factor = _factor(arguments.get("op"), arguments.get("group"))
        if factor is not None and arguments[summed].is_floating_point():
            tensor: torch.Tensor = arguments[summed]
            with torch.no_grad():
                arguments[summed] = factor(tensor, out=tensor if in_place else None)
            arguments["op"] = dist.ReduceOp.SUM

    return _changing(original, change)


def _factor(op: Any, group: Any) -> Callable[..., torch.Tensor] | None:
    """What an op does to values before it sums; None for the others, and outside the group."""
    size = dist.get_world_size(group) if op is not None else 0
    if size > 0 and op == dist.ReduceOp.AVG:
        return partial(torch.div, other=size)
    if size > 0 and op == getattr(dist.ReduceOp, "PREMUL_SUM", None):
        # The newest torch alone has an attribute for the factor; every pickled op names it.
        state = op.__getstate__()
        return partial(torch.mul, other=state[1]) if isinstance(state, tuple) else None
    return None


# Gathers and scatters of whole tensors, for a backend that wants equal shapes.
#
# NCCL looks at numbers of elements only. gloo (torch 2.13) cuts the longer tensor along its first
# dimension and refuses parts whose shape is not the shorter one's; a sum that is scattered into
# scalars ends the process. Flat views of both are the same memory.

#: Functions -> (their output, their input).
_TENSORS: Final = {
    "all_gather_into_tensor": ("output_tensor", "input_tensor"),
    "all_gather_single": ("output_tensor", "input_tensor"),
    "reduce_scatter_tensor": ("output", "input"),
    "reduce_scatter_single": ("output", "input"),
}


def flat_collectives(context: Context) -> None:
    """A part: what is gathered or scattered as a whole is passed on as flat views."""
    # Half of the names came with a later torch.
    names = [name for name in _TENSORS if hasattr(dist, name)]
    context.wrap_everywhere(dist, names, lambda name, original: _flat(original, *_TENSORS[name]))


def _flat(original: Callable[..., Any], output: str, input: str) -> Callable[..., Any]:
    def change(arguments: dict[str, Any]) -> None:
        tensors: tuple[torch.Tensor, torch.Tensor] = (arguments[output], arguments[input])
        if _differ(*tensors) and all(tensor.is_contiguous() for tensor in tensors):
            for name, tensor in zip((output, input), tensors, strict=True):
                arguments[name] = tensor.detach().view(-1)

    return _changing(original, change)


def _differ(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the tensors have other dimensions behind the first, or none at all."""
    return one.shape[1:] != other.shape[1:] or not (one.dim() and other.dim())


# Gathers of several dtypes in one coalesced call, for a backend that mixes them up.
#
# gloo packs what a coalesced call gathers into one buffer of the first tensor's dtype: FP8 weights
# (uint8) beside bfloat16 ones come back as other numbers, without an error (torch 2.13). A call
# that names its device (Transformer Engine's of MXFP8) asks the backend to group launches, which
# gloo has no function for; torch coalesces without it.

_GATHERS: Final = ("all_gather_into_tensor", "all_gather_single")


def mixed_gathers(context: Context) -> None:
    """A part: a coalesced call names no device, and gathers of a second dtype are made at once."""
    # The second name came with a later torch.
    names = [name for name in _GATHERS if hasattr(dist, name)]
    context.wrap_everywhere(dist, names, lambda name, original: _apart(original))
    context.wrap_everywhere(dist, ["_coalescing_manager"], lambda _, original: _unnamed(original))


def _unnamed(original: Callable[..., Any]) -> Callable[..., Any]:
    def change(arguments: dict[str, Any]) -> None:
        device = arguments.get("device")
        if device is not None:
            group = arguments.get("group") or dist.distributed_c10d._get_default_group()
            if not getattr(group._get_backend(device), "supports_coalescing", False):
                del arguments["device"]

    return _changing(original, change)


def _apart(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)
    c10d = dist.distributed_c10d

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        arguments = bound.arguments
        waiting: Any = c10d._world.pg_coalesce_state
        group = arguments.get("group") or (c10d._get_default_group() if waiting else None)
        others = waiting.get(group) if waiting else None
        dtype = arguments["input_tensor"].dtype
        if not others or others[0].tensor.dtype == dtype:
            return original(*args, **kwargs)
        del waiting[group]
        try:
            arguments["async_op"] = False
            return original(*bound.args, **bound.kwargs)
        finally:
            waiting[group] = others

    return call


# Sends of tensors that are emptied while they are under way, and transfers waited for twice.
#
# Megatron frees what a pipeline stage has sent (``output.data = torch.empty(1)``) as soon as the
# send was started: on a GPU the memory outlives its tensor until the stream is past the send. gloo
# reads the tensor's memory when the receiver is ready, and would send what stands there by then.
#
# Transformer Engine waits twice for the transfers of its ring attention. NCCL's second wait returns
# at once; gloo's waits for a transfer that never comes.


def held_sends(context: Context) -> None:
    """A part: ``isend`` sends an alias, which keeps the memory until it was sent."""
    context.wrap_everywhere(dist, ("isend",), lambda _, original: _of_an_alias(original))


def repeated_waits(context: Context) -> None:
    """A part: what ``isend`` and ``irecv`` return is waited for once, however often it is asked."""
    context.wrap_everywhere(dist, ("isend", "irecv"), lambda _, original: _once(original))


def _once(original: Callable[..., Any]) -> Callable[..., Any]:
    def transfer(*args: Any, **kwargs: Any) -> Any:
        work = original(*args, **kwargs)
        return work if work is None else _Transfer(work)

    return transfer


class _Transfer(dist.Work):
    """A transfer that knows whether it was waited for."""

    def __init__(self, work: Any) -> None:
        super().__init__()
        self._work = work
        self._waited = False

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        if self._waited:
            return True
        result = self._work.wait(*args, **kwargs)
        self._waited = True  # not where it raised: a timeout may be waited for again
        return result

    def is_completed(self) -> bool:
        return self._waited or bool(self._work.is_completed())


def _delegated(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._work, name)(*args, **kwargs)

    return method


for _method in ("is_success", "exception", "source_rank", "_source_rank", "result", "get_future"):
    setattr(_Transfer, _method, _delegated(_method))


def _of_an_alias(original: Callable[..., Any]) -> Callable[..., Any]:
    def isend(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return original(tensor.detach(), *args, **kwargs)

    return isend


# Collectives of one group, for a backend that runs several at a time.
#
# NCCL's run in the order of their calls: who waits for one has waited for those before it, some of
# which may write the same memory and are never waited for (Megatron's prefetched weight shards).
# gloo gives every group two threads, or two for each network interface.


def ordered_collectives(context: Context) -> None:
    """A part: the collectives of a group of gloo run one after the other."""
    if hasattr(dist, "ProcessGroupGloo"):
        context.wrap(dist.ProcessGroupGloo, "__init__", _with_one_thread)


def _with_one_thread(original: Callable[..., None]) -> Callable[..., None]:
    gloo: Any = dist.ProcessGroupGloo

    def __init__(
        self: Any, store: Any, rank: int, size: int, timeout: Any = None, **others: Any
    ) -> None:
        options = others.pop("options", timeout)
        if not isinstance(options, gloo._Options):
            options = gloo._Options()
            options._devices = [
                gloo.create_device(interface=name) if name else gloo.create_default_device()
                for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")
            ]
            if timeout is not None:
                options._timeout = timeout
        for name, value in others.items():
            setattr(options, name, value)
        options._threads = 1
        original(self, store, rank, size, options)

    return __init__


# Gathers of tensors that differ in size, for a backend that refuses them.
#
# NCCL serves ``all_gather`` of a list whose tensors have different sizes by one broadcast from
# every rank (Megatron's layer-wise optimizers rely on it); gloo stops at the second size.


def uneven_gathers(context: Context) -> None:
    """A part: ``all_gather`` takes tensors of different sizes."""
    context.wrap_everywhere(dist, ["all_gather"], lambda name, original: _any_size(original))


class _Works:
    """Several operations that are waited for as one."""

    def __init__(self, works: Sequence[Any]) -> None:
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for all of them."""
        for work in self._works:
            work.wait() if timeout is None else work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        """Whether all of them are done."""
        return all(work.is_completed() for work in self._works)


def _any_size(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        outputs: Sequence[torch.Tensor] = arguments["tensor_list"]
        if len({output.numel() for output in outputs}) < 2:
            return original(*args, **kwargs)
        group, own = arguments.get("group"), arguments["tensor"]
        works = []
        # Every rank sees the same sizes, so every rank takes this way, in this order.
        for rank, output in enumerate(outputs):
            source = dist.get_global_rank(group, rank) if group is not None else rank
            if rank == dist.get_rank(group):
                output.detach().view(-1).copy_(own.detach().reshape(-1))
            works.append(dist.broadcast(output, source, group=group, async_op=True))
        gathered = _Works([work for work in works if work is not None])
        if arguments.get("async_op"):
            return gathered
        gathered.wait()
        return None

    return call


# Reductions of float64, for a communication backend that does not support them.
#
# Every rank's bytes are gathered and reduced on the host, so that the result is exact: a
# detour over float32 would round a time in seconds to minutes. Megatron reduces a handful of
# numbers in float64 (start times, counters), never anything large.

#: By the op's name: ReduceOp objects cannot be keys.
_REDUCE: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "SUM": lambda all_ranks: all_ranks.sum(0),
    "AVG": lambda all_ranks: all_ranks.mean(0),
    "PRODUCT": lambda all_ranks: all_ranks.prod(0),
    "MIN": lambda all_ranks: all_ranks.amin(0),
    "MAX": lambda all_ranks: all_ranks.amax(0),
}


def wide_reductions(context: Context) -> None:
    """A part for a communication backend without float64: makes ``all_reduce`` accept it."""
    context.wrap_everywhere(
        dist, ("all_reduce",), lambda name, original: _exact(original, context.spec.type)
    )


def _exact(original: Callable[..., Any], device_type: str) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        tensor: torch.Tensor = bound.arguments["tensor"]
        if tensor.dtype != torch.float64 or tensor.device.type != device_type:
            return original(*args, **kwargs)
        with torch.no_grad():
            _reduce_on_host(tensor, bound.arguments["op"], bound.arguments["group"])
        return _Works(()) if bound.arguments["async_op"] else None

    return call


def _reduce_on_host(tensor: torch.Tensor, op: Any, group: Any) -> None:
    """``tensor``, reduced over the ranks of ``group``, in place.

    :raises ValueError: an op that has no meaning for float64.
    """
    name = _name(op)
    if name not in _REDUCE:
        raise ValueError(f"ReduceOp.{name} is not defined for float64")
    size = dist.get_world_size(group)
    if size < 1:  # this rank is not in the group
        return
    mine = tensor.detach().cpu().contiguous().view(-1).view(torch.int32).to(tensor.device)
    gathered = torch.empty(size * mine.numel(), dtype=torch.int32, device=tensor.device)
    dist.all_gather_into_tensor(gathered, mine, group=group)
    all_ranks = gathered.cpu().view(torch.float64).view(size, *tensor.shape)
    tensor.copy_(_REDUCE[name](all_ranks))


def _name(op: Any) -> str:
    """``SUM`` of ``ReduceOp.SUM`` or of ``ReduceOp(SUM)``."""
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"):
        if op == getattr(dist.ReduceOp, name):
            return name
    return str(op)
