"""Megatron's optimizers on torch's Adam."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from accel_bridge.patches._conditions import beside, unless_faster
from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext

if TYPE_CHECKING:
    import torch


def initialize_state(optimizer: torch.optim.Optimizer) -> None:
    """Give an Adam that has not taken a step the state that its first step would create."""
    import torch

    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }


def _make_state_dict(context: PatchContext) -> Callable[..., Any]:
    import torch

    upstream = context.original

    @functools.wraps(upstream)
    def state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        """As upstream, but also before the first step, when torch's Adam holds no state yet."""
        adam = isinstance(self.optimizer, (torch.optim.Adam, torch.optim.AdamW))
        if adam and not self.optimizer.state:
            initialize_state(self.optimizer)
        return upstream(self, *args, **kwargs)

    return state_dict


def _make_set_states(context: PatchContext) -> Callable[..., None]:
    import torch

    upstream = context.original
    states = context.argument("tensors")

    @functools.wraps(upstream)
    def _set_main_param_and_optimizer_states(*args: Any, **kwargs: Any) -> None:
        """As upstream, except for the step, which was already restored."""
        without_step = {**states.get(args, kwargs), "step": None}
        args, options = states.put(args, kwargs, without_step)
        # In fp32 the main parameters are the model's own, which require gradients.
        with torch.no_grad():
            upstream(*args, **options)

    return _set_main_param_and_optimizer_states


def _make_load_state_dict(context: PatchContext) -> Callable[..., None]:
    import torch

    upstream = context.original

    @functools.wraps(upstream)
    def load_state_dict(self: Any, *args: Any, **kwargs: Any) -> None:
        """As upstream, and then give every parameter its own step."""
        upstream(self, *args, **kwargs)
        for state in self.optimizer.state.values():
            if isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].clone()

    return load_state_dict


def _make_optimizer(context: PatchContext) -> Callable[..., Any]:
    from accel_bridge.kernels import ADAMW

    upstream = context.original
    kernel = context.host.kernel(ADAMW)

    @functools.wraps(upstream)
    def _get_megatron_optimizer_based_on_param_groups(*args: Any, **kwargs: Any) -> Any:
        """As upstream; torch's AdamW inside then steps with the backend's kernel."""
        from accel_bridge.patches.modules.adamw import step_by_kernel

        made = upstream(*args, **kwargs)
        step_by_kernel(made[0] if isinstance(made, tuple) else made.optimizer, kernel)
        return made

    return _get_megatron_optimizer_based_on_param_groups


_other_adam = beside("transformer_engine", "apex", uses="its Adam")
_SLOWER = unless_faster("adamw")

PATCHES = (
    megatron_patch(
        id="adamw",
        target="megatron.core.optimizer:_get_megatron_optimizer_based_on_param_groups",
        kind=Kind.WRAP,
        make=_make_optimizer,
        why="without Apex and Transformer Engine Megatron uses torch's AdamW in its slow form, a "
        "dozen passes over parameters and moments",
        removed_when="upstream passes fused=True to torch's AdamW",
        loses="an optimizer step takes several times as long",
        skip_when=lambda host: _other_adam(host) or _SLOWER(host),
        kernels=("adamw",),
    ),
    megatron_patch(
        id="optimizer-resume",
        target="megatron.core.optimizer.distrib_optimizer:DistributedOptimizer.state_dict",
        kind=Kind.WRAP,
        make=_make_state_dict,
        why="loading needs the state of an optimizer that has not taken a step, and torch's Adam "
        "has none before its first step",
        removed_when="upstream initialises torch's Adam before it loads a checkpoint",
        loses="a run with --use-distributed-optimizer cannot be resumed without Apex or "
        "Transformer Engine",
        skip_when=_other_adam,
    ),
    megatron_patch(
        id="optimizer-resume-step",
        target="megatron.core.optimizer.distrib_optimizer:"
        "DistributedOptimizer._set_main_param_and_optimizer_states",
        kind=Kind.WRAP,
        make=_make_set_states,
        why="its callers omit torch Adam's step, or pass the one from before the load, and it "
        "copies every state there is",
        removed_when="upstream skips the step there as it does in its callers",
        loses="a run with --use-distributed-optimizer cannot be resumed in another layout "
        "without Apex or Transformer Engine",
        uses=("tensors",),
        skip_when=_other_adam,
    ),
    megatron_patch(
        id="optimizer-shared-step",
        target="megatron.core.optimizer.distrib_optimizer:DistributedOptimizer.load_state_dict",
        kind=Kind.WRAP,
        make=_make_load_state_dict,
        why="all parameters share one step tensor, and torch's Adam increments it once for each",
        removed_when="upstream gives every parameter its own step tensor",
        loses="after a resume Adam's bias correction is wrong, without any warning",
        skip_when=_other_adam,
    ),
)
