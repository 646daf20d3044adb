"""The step of ``FusedAdam`` whose parameters, gradients and moments are plain float32 tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch

from accel_bridge.libraries.transformer_engine_torch.fast import PLAIN

_MOMENTS: Final = ("exp_avg", "exp_avg_sq")
#: Name of the number of tensors above which Transformer Engine makes several calls.
_MOST: Final = "_MAX_TENSORS_PER_MULTI_TENSOR_ADAM_CALL"

#: Gradients, parameters and both moments.
Lists = list[list[torch.Tensor]]


def adam_step(original: Callable[..., Any], module: Any) -> Callable[..., Any]:
    """``FusedAdam.step``.

    :param original: Transformer Engine's own.
    :param module: the module that defines it.
    """
    most = getattr(module, _MOST, None)

    @functools.wraps(original)
    def step(self: Any, closure: Any = None, grad_scaler: Any = None) -> Any:
        groups = self.param_groups
        found = None if closure is not None or grad_scaler is not None else _lists(self)
        if found is None or (most is not None and any(len(one[0]) > most for one in found)):
            return original(self, closure, grad_scaler)
        for group, lists in zip(groups, found, strict=True):
            group["step"] = group.get("step", 0) + 1
            if not lists[0]:
                continue
            module.multi_tensor_applier(
                self.multi_tensor_adam,
                self._dummy_overflow_buf,
                lists,
                group["lr"],
                *group["betas"],
                group["eps"],
                group["step"],
                self.adam_w_mode,
                1 if group["bias_correction"] else 0,
                group["weight_decay"],
            )
        return None

    # As torch does with the class of the first optimizer that is made.
    hooked: Any = torch.optim.Optimizer.profile_hook_step(step)
    hooked.hooked = True
    return hooked  # type: ignore[no-any-return]


def _lists(optimizer: Any) -> list[Lists] | None:
    """Tensors of each group; None where the step needs Transformer Engine's own way."""
    if optimizer.capturable or optimizer.master_weights or optimizer.use_decoupled_grad:
        return None
    found: list[Lists] = []
    for group in optimizer.param_groups:
        parameters = [one for one in group["params"] if one.grad is not None]
        states = [optimizer.state.get(one) for one in parameters]
        # The first step makes the moments. Releases differ in how they count an empty group's.
        if not group["params"] or not all(states):
            return None
        lists = [
            [one.grad for one in parameters],
            parameters,
            *([state[name] for state in states] for name in _MOMENTS),
        ]
        if not all(map(_is_plain, lists)):
            return None
        found.append(lists)
    return found


def _is_plain(tensors: Iterable[torch.Tensor]) -> bool:
    kinds = {(type(one), one.dtype, one.layout) for one in tensors}
    return kinds <= {(kind, torch.float32, torch.strided) for kind in PLAIN}
