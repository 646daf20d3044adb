"""Resuming torch's FSDP2: what an optimizer's checkpoint holds besides tensors.

With ``--use-torch-fsdp2`` and torch_dist checkpoints, Megatron reads every tensor into its place
and then skips the optimizer's ``load_state_dict``. The number of steps that Adam has made and the
loss scale are no such tensors: Adam counts from one again, and its bias correction with it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext, around


def _load(context: PatchContext, call: Callable[[], Any], optimizer: Any, skips: bool) -> Any:
    """As upstream, then the steps and the loss scale where it loads tensors alone."""
    if not skips:
        return call()
    module: Any = context.module
    read: list[Any] = []
    read_base = module._load_base_checkpoint

    def keep(*words: Any, **named: Any) -> Any:
        read.append(read_base(*words, **named))
        return read[-1]

    module._load_base_checkpoint = keep
    try:
        result = call()
    finally:
        module._load_base_checkpoint = read_base
    state, release = (read[-1][0] or {}, read[-1][2]) if read else ({}, True)
    options = module.get_args()
    unwanted = release or options.finetune or options.no_load_optim
    if "optimizer" in state and not unwanted:
        _restore(optimizer, state["optimizer"])
    return result


def _restore(optimizer: Any, state: Mapping[Any, Any]) -> None:
    """Give one optimizer, or a chain of them, what ``state`` holds besides tensors."""
    chain = getattr(optimizer, "chained_optimizers", [optimizer])
    states = [state] if len(chain) == 1 else [part for _, part in sorted(state.items())]
    for one, part in zip(chain, states, strict=True):
        if not getattr(one, "is_stub_optimizer", False):
            _restore_one(one, part)


def _restore_one(optimizer: Any, state: Mapping[Any, Any]) -> None:
    inner, saved = optimizer.optimizer, state.get("optimizer", state)
    groups = saved["param_groups"]
    # Before 0.14 Megatron takes the groups in their order, too.
    match = getattr(optimizer, "_filter_and_reorder_param_groups", lambda current, found: found)
    for group, found in zip(inner.param_groups, match(inner.param_groups, groups), strict=True):
        group.update({name: value for name, value in found.items() if name != "params"})
    # Torch's own optimizers count for each parameter; Megatron writes one number for all.
    step = saved["state"].get("common_step")
    if step is not None:
        for values in inner.state.values():
            values["step"] = copy.deepcopy(step)
    if getattr(optimizer, "grad_scaler", None) and "grad_scaler" in state:
        optimizer.grad_scaler.load_state_dict(state["grad_scaler"])


PATCHES = (
    megatron_patch(
        id="fsdp2-resume",
        target="megatron.training.checkpointing:load_checkpoint",
        kind=Kind.WRAP,
        make=around(_load),
        why="with torch's FSDP2 it loads tensors in place and nothing else: Adam counts its steps "
        "from one again",
        removed_when="upstream restores the optimizer's groups and loss scale in that case",
        loses="a run with --use-torch-fsdp2 resumes with other losses, and nothing says so",
        uses=("optimizer", "skip_load_to_model_and_opt"),
        after=("lora-load",),
    ),
)
