"""Megatron's optimizers on torch's Adam."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from accel_bridge._host import Host
from accel_bridge.kernels import ADAMW
from accel_bridge.patches._faster import unless_faster
from accel_bridge.patches._upstream import REQUIRES, SOURCE
from accel_bridge.patching import Kind, Patch, PatchContext


def initialize_state(optimizer: torch.optim.Optimizer) -> None:
    """Give an Adam that has taken no step the state that its first step would make."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }


def _make_state_dict(context: PatchContext) -> Callable[[Any], Any]:
    upstream = context.original

    def state_dict(self: Any) -> Any:
        """As upstream, also before the first step, when torch's Adam holds no state yet."""
        adam = isinstance(self.optimizer, (torch.optim.Adam, torch.optim.AdamW))
        if adam and not self.optimizer.state:
            initialize_state(self.optimizer)
        return upstream(self)

    return state_dict


def _make_set_states(context: PatchContext) -> Callable[[Any, Any, Any], None]:
    upstream = context.original

    def _set_main_param_and_optimizer_states(self: Any, model_param: Any, tensors: Any) -> None:
        """As upstream, but for the step, which was restored before."""
        # In fp32 the main parameters are the model's own, which require gradients.
        with torch.no_grad():
            upstream(self, model_param, {**tensors, "step": None})

    return _set_main_param_and_optimizer_states


def _make_load_state_dict(context: PatchContext) -> Callable[[Any, Any], None]:
    upstream = context.original

    def load_state_dict(self: Any, state_dict: Any) -> None:
        """As upstream, and then a step of its own for every parameter."""
        upstream(self, state_dict)
        for state in self.optimizer.state.values():
            if isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].clone()

    return load_state_dict


def _make_optimizer(context: PatchContext) -> Callable[..., Any]:
    upstream = context.original
    kernel = context.host.kernel(ADAMW)

    @functools.wraps(upstream)
    def _get_megatron_optimizer_based_on_param_groups(*args: Any, **kwargs: Any) -> Any:
        """As upstream; torch's AdamW inside then steps by the backend's kernel."""
        from accel_bridge.patches.modules.adamw import step_by_kernel

        made = upstream(*args, **kwargs)
        step_by_kernel(made[0] if isinstance(made, tuple) else made.optimizer, kernel)
        return made

    return _get_megatron_optimizer_based_on_param_groups


def _other_adam(host: Host) -> str | None:
    for library in ("transformer_engine", "apex"):
        if host.library(library):
            return f"{library} is installed: Megatron uses its Adam"
    return None


_SLOWER = unless_faster("adamw")

PATCHES = (
    Patch(
        id="adamw",
        target="megatron.core.optimizer:_get_megatron_optimizer_based_on_param_groups",
        kind=Kind.WRAP,
        make=_make_optimizer,
        why="without Apex and Transformer Engine Megatron makes torch's AdamW in its slow form, a "
        "dozen passes over parameters and moments",
        upstream=f"{SOURCE}/core/optimizer/__init__.py",
        removed_when="upstream passes fused=True to torch's AdamW",
        loses="an optimizer step takes several times as long",
        requires=REQUIRES,
        parameters=(
            "config",
            "model_chunks",
            "param_groups",
            "per_model_buffers",
            "model_parallel_group",
            "data_parallel_group",
            "data_parallel_group_gloo",
            "data_parallel_group_idx",
            "intra_dist_opt_group",
            "distributed_optimizer_instance_id",
            "pg_collection",
            "skip_megatron_wrapping",
        ),
        skip_when=lambda host: _other_adam(host) or _SLOWER(host),
        kernels=("adamw",),
    ),
    Patch(
        id="optimizer-resume",
        target="megatron.core.optimizer.distrib_optimizer:DistributedOptimizer.state_dict",
        kind=Kind.WRAP,
        make=_make_state_dict,
        why="loading asks for the state of an optimizer that has taken no step, and torch's Adam "
        "has none before its first",
        upstream=f"{SOURCE}/core/optimizer/distrib_optimizer.py",
        removed_when="upstream initialises torch's Adam before it loads a checkpoint",
        loses="a run with --use-distributed-optimizer cannot be resumed without Apex or "
        "Transformer Engine",
        requires=REQUIRES,
        parameters=("self",),
        skip_when=_other_adam,
    ),
    Patch(
        id="optimizer-resume-step",
        target="megatron.core.optimizer.distrib_optimizer:"
        "DistributedOptimizer._set_main_param_and_optimizer_states",
        kind=Kind.WRAP,
        make=_make_set_states,
        why="its callers leave out torch Adam's step, or pass that of before the load, and it "
        "copies every state there is",
        upstream=f"{SOURCE}/core/optimizer/distrib_optimizer.py",
        removed_when="upstream skips the step there as it does in its callers",
        loses="a run with --use-distributed-optimizer cannot be resumed at another layout "
        "without Apex or Transformer Engine",
        requires=REQUIRES,
        parameters=("self", "model_param", "tensors"),
        skip_when=_other_adam,
    ),
    Patch(
        id="optimizer-shared-step",
        target="megatron.core.optimizer.distrib_optimizer:DistributedOptimizer.load_state_dict",
        kind=Kind.WRAP,
        make=_make_load_state_dict,
        why="all parameters get one step tensor, which torch's Adam then counts up once for each",
        upstream=f"{SOURCE}/core/optimizer/distrib_optimizer.py",
        removed_when="upstream gives every parameter a step tensor of its own",
        loses="after a resume Adam's bias correction is wrong, and nothing says so",
        requires=REQUIRES,
        parameters=("self", "state_dict"),
        skip_when=_other_adam,
    ),
)
