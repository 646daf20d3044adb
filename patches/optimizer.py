"""Main parameters: float32 ones that are the model's own, those that are offloaded to the host, and
their copies to the model's after each step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, Final

from accel_bridge.patches._factory import megatron_patch, on_host
from accel_bridge.patching import Kind, PatchContext, around
from accel_bridge.patching.host import Host


def _make_resume(context: PatchContext) -> Callable[..., None]:
    """As upstream, without recording its copies for autograd."""
    import torch

    unrecorded: Callable[..., None] = torch.no_grad()(context.original)
    return unrecorded


_RESUME = (
    megatron_patch(
        id="optimizer-resume",
        target="megatron.core.optimizer.distrib_optimizer:"
        "DistributedOptimizer._set_main_param_and_optimizer_states",
        kind=Kind.WRAP,
        make=_make_resume,
        why="it copies into parameters that require gradients when training is in float32",
        removed_when="upstream copies loaded states under torch.no_grad",
        loses="a float32 run with --use-distributed-optimizer cannot be resumed",
    ),
)


Groups = list[dict[str, Any]]


def _split(groups: Groups, copies: Mapping[Any, Any]) -> tuple[Groups, Groups]:
    """(groups of the copies, groups of the rest), without empty ones."""
    parts: tuple[Groups, Groups] = ([], [])
    for group in groups:
        for part, offloaded in zip(parts, (True, False), strict=True):
            params = [one for one in group["params"] if (one in copies) is offloaded]
            if params:
                part.append({**group, "params": params})
    return parts


def _offload(_context: PatchContext, call: Callable[[], Any]) -> Any:
    """As upstream, with the offloaded copies in the groups of the CPU's optimizers.

    Upstream asks ``is_cuda`` of its copies; here every tensor is on the device that stands in for
    CUDA, so they all came to the GPU's optimizer, which copies nothing back.
    """
    host, device, *maps = call()
    copies, rest = _split(device, maps[1])
    return [*host, *copies], rest, *maps


def _host_is_elsewhere(host: Host) -> str | None:
    if host.features.tensors_on_host:
        return None
    return "host tensors are not device tensors here"


_OFFLOAD = (
    megatron_patch(
        id="optimizer-offload",
        target="megatron.core.optimizer.cpu_offloading.hybrid_optimizer:"
        "HybridDeviceOptimizer._get_sub_optimizer_param_groups",
        kind=Kind.WRAP,
        make=around(_offload),
        why="it tells its copies on the host from the weights by is_cuda, which is true of both "
        "where device tensors are host tensors",
        removed_when="upstream looks its copies up in its own table of them",
        loses="--optimizer-cpu-offload trains the copies, and no weight of the model ever changes",
        skip_when=_host_is_elsewhere,
    ),
)


#: Elements from which on a copy of its own is faster by more than its launch takes: by 15 to 17% on
#: an H200.
_LARGE: Final = 2**23


def _make_copy(context: PatchContext) -> Callable[..., None]:
    import torch

    @torch.no_grad()
    def _multi_tensor_copy_this_to_that(this: Any, that: Any, overflow_buf: Any = None) -> None:
        """Copy every tensor of ``this`` to its counterpart in ``that``, in ``that``'s precision."""
        if overflow_buf is not None:
            overflow_buf.fill_(0)
        if this:
            # PyTorch's FSDP2 has DTensors, for which there is no such operator.
            that, this = (
                [getattr(one, "_local_tensor", one) for one in tensors] for tensors in (that, this)
            )
            small = [pair for pair in zip(that, this, strict=True) if pair[0].numel() < _LARGE]
            if small:
                torch._foreach_copy_([one for one, _ in small], [one for _, one in small])
            for target, source in zip(that, this, strict=True):
                if target.numel() >= _LARGE:
                    target.copy_(source)

    return _multi_tensor_copy_this_to_that


_COPY = (
    megatron_patch(
        id="parameter-copy",
        target="megatron.core.optimizer.optimizer:_multi_tensor_copy_this_to_that",
        kind=Kind.REPLACE,
        make=_make_copy,
        why="a launch for every small parameter after each step",
        removed_when="upstream copies small ones by torch._foreach_copy_",
        loses="each step copies small main parameters one by one",
        # Also with Transformer Engine: upstream always copies bfloat16 one by one.
        skip_when=on_host,
    ),
)

#: The module of ``FusedAdam``'s short step: there when that is.
_STEP: Final = "accel_bridge.libraries.transformer_engine_torch.fast.optimizer"


def _clip(
    _context: PatchContext,
    call: Callable[[], Any],
    parameters: Any,
    max_norm: Any,
    total_norm: Any,
    decoupled: bool,
) -> None:
    """As upstream, or left to the optimizer's step, which reads the gradients anyway."""
    step = sys.modules.get(_STEP)
    if (
        step is None
        or decoupled
        or not isinstance(parameters, list)
        or not step.clip_in_step(parameters, max_norm, total_norm)
    ):
        call()


_CLIP = (
    megatron_patch(
        id="clip-in-step",
        target="megatron.core.optimizer.clip_grads:clip_grad_by_total_norm_fp32",
        kind=Kind.WRAP,
        make=around(_clip),
        uses=("parameters", "max_norm", "total_norm", "use_decoupled_grad"),
        why="it reads and writes every gradient right before the optimizer reads them once more",
        removed_when="upstream gives the factor to the optimizer's step",
        loses="time: a sixth of what the optimizer reads and writes",
    ),
)

#: Class of optimizer -> its patch and module, its groups of the model's and main parameters, and
#: of the parameters that the model's are shards of.
_COPIED: Final = {
    "DistributedOptimizer": (
        *("copy-in-step-shards", "distrib_optimizer"),
        *("shard_float16_groups", "shard_fp32_from_float16_groups", "model_float16_groups"),
    ),
    "Float16OptimizerWithFloat16Params": (
        *("copy-in-step-float16", "optimizer"),
        *("float16_groups", "fp32_from_float16_groups"),
    ),
}


def _copies(optimizer: Any) -> dict[Any, Any]:
    """Main parameter -> the model's; empty where upstream does more than copy them."""
    names = _COPIED.get(type(optimizer).__name__, ())[2:]
    groups = [list(chain(*getattr(optimizer, name, ()))) for name in names]
    if not groups or any(one is None for one in chain(*groups)):
        return {}
    model, main, *whole = groups
    # Who moves a model's memory gives parameters another, not the optimizer's shards.
    for shard, parameter in zip(model, *whole, strict=True) if whole else ():
        if shard.untyped_storage()._cdata != parameter.untyped_storage()._cdata:
            return {}
    return dict(zip(main, (one.detach() for one in model), strict=True))


def _step(_context: PatchContext, call: Callable[[], Any], optimizer: Any) -> Any:
    """As upstream; the optimizer's step may write the model's parameters."""
    step = sys.modules.get(_STEP)
    if step is None:
        return call()
    with step.copies_in_step(optimizer.optimizer, _copies(optimizer)):
        return call()


def _copy(_context: PatchContext, call: Callable[[], Any], optimizer: Any) -> None:
    """As upstream, unless the optimizer's step has done it."""
    step = sys.modules.get(_STEP)
    if step is None or not step.has_written_copies(optimizer.optimizer):
        call()


_COPY_IN_STEP = tuple(
    megatron_patch(
        id=id,
        target=f"megatron.core.optimizer.{target}",
        kind=Kind.WRAP,
        make=around(action),
        uses=("self",),
        why="main parameters are read twice",
        removed_when="upstream has the optimizer's step write the model's parameters",
        loses="time: an eighth of what the optimizer reads and writes",
    )
    for id, target, action in (
        ("copy-in-step", "optimizer:MixedPrecisionOptimizer.step_with_ready_grads", _step),
        *(
            (id, f"{module}:{name}._copy_main_params_to_model_params", _copy)
            for name, (id, module, *_) in _COPIED.items()
        ),
    )
)

PATCHES = (*_RESUME, *_OFFLOAD, *_COPY, *_CLIP, *_COPY_IN_STEP)
