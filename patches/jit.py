"""Megatron's ``jit_fuser``: torch.compile where the device has it, plain Python elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from accel_bridge.patches._factory import DISTRIBUTION, megatron_patch
from accel_bridge.patching import Kind, PatchContext
from accel_bridge.patching.host import Host

Function = TypeVar("Function", bound=Callable[..., object])


def _compiles(host: Host) -> str | None:
    if host.features.torch_compile:
        return f"torch.compile works on the {host.backend.name} backend"
    return None


def run_unfused(function: Function) -> Function:
    """Stands in for ``torch.compile``: returns the same function, not fused."""
    return function


def _make_fuser(context: PatchContext) -> Callable[..., Any]:
    host = context.host
    if hasattr(host.backend, "rehearsal") and host.features.triton:
        from accel_bridge.patches.rehearsal import as_compiled

        return as_compiled
    return run_unfused


def _make_warmup(context: PatchContext) -> Callable[..., None]:
    def _warmup_jit_function(*args: Any, **kwargs: Any) -> None:
        """Nothing is compiled, so nothing needs warming."""

    return _warmup_jit_function


def _make_expert_bias(context: PatchContext) -> Callable[..., None]:
    """The function that torch.compile was given."""
    compiled = context.original
    found: Callable[..., None] = getattr(compiled, "_torchdynamo_orig_callable", compiled)
    return found


def _compiles_nothing(host: Host) -> str | None:
    return None if host.features.torch_compile else "nothing is compiled"


PATCHES = (
    megatron_patch(
        id="expert-bias",
        target="megatron.core.transformer.moe.router:TopKRouter._apply_expert_bias",
        kind=Kind.WRAP,
        make=_make_expert_bias,
        why="it is compiled for one sum: guards of the whole router cost the host more",
        removed_when="upstream does not compile it",
        loses="time: up to a millisecond of the host for each layer with experts",
        requires=f"{DISTRIBUTION}>=0.16",
        elsewhere="before 0.16 Megatron does not compile it",
        skip_when=_compiles_nothing,
    ),
    megatron_patch(
        id="jit-fuser",
        target="megatron.core.jit:jit_fuser",
        kind=Kind.ATTRIBUTE,
        make=_make_fuser,
        why="torch.compile asks for CUDA properties when a fused function first runs",
        removed_when="the backend declares torch_compile",
        loses="the first fused activation stops in torch.compile",
        skip_when=_compiles,
    ),
    megatron_patch(
        id="jit-warmup",
        target="megatron.training.initialize:_warmup_jit_function",
        kind=Kind.WRAP,
        make=_make_warmup,
        why="the warm-up runs each fused function ten times at full size, but nothing is compiled",
        removed_when="the backend declares torch_compile",
        loses="start-up is slower by ten forward activations",
        skip_when=_compiles,
    ),
)
