"""torch's AdamW with the backend's ``adamw`` kernel as its step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from accel_bridge.kernels import AdamWOptions

Tensors = Sequence[torch.Tensor]
#: A kernel of the contract ``adamw``.
Step = Callable[[Tensors, Tensors, Tensors, Tensors, AdamWOptions], None]

#: Options of a parameter group that the contract does not know.
_OTHERS = ("amsgrad", "maximize", "capturable", "differentiable")


class KernelAdamW(torch.optim.AdamW):
    """State, options and checkpoints are those of torch's AdamW; only the arithmetic differs."""

    kernel: Step

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; groups that the contract does not cover are stepped by torch."""
        if not all(_is_covered(group) for group in self.param_groups):
            return super().step(closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step_group(group)
        return loss

    def _step_group(self, group: dict[str, Any]) -> None:
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        states = [self._state_of(parameter) for parameter in parameters]
        # Parameters that joined later, as experts may, have their own step counts.
        by_step: dict[int, list[int]] = {}
        for index, state in enumerate(states):
            state["step"] += 1
            by_step.setdefault(int(state["step"]), []).append(index)
        for step, indices in by_step.items():
            self.kernel(
                [parameters[index] for index in indices],
                [parameters[index].grad for index in indices],
                [states[index]["exp_avg"] for index in indices],
                [states[index]["exp_avg_sq"] for index in indices],
                AdamWOptions(
                    step=step,
                    lr=float(group["lr"]),
                    betas=group["betas"],
                    eps=group["eps"],
                    weight_decay=group["weight_decay"],
                ),
            )

    def _state_of(self, parameter: torch.Tensor) -> dict[str, Any]:
        """The parameter's state, made as torch would make it; the step is on the host."""
        state: dict[str, Any] = self.state[parameter]
        step = state.get("step")
        if step is None:
            state["step"] = torch.zeros((), dtype=torch.float32, device="cpu")
        elif not torch.is_tensor(step) or step.device.type != "cpu":
            state["step"] = torch.tensor(float(step), device="cpu")
        for name in ("exp_avg", "exp_avg_sq"):
            if name not in state:
                state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state


def _is_covered(group: dict[str, Any]) -> bool:
    """Whether the contract covers this group's options."""
    return group.get("decoupled_weight_decay", True) and not any(
        group.get(name) for name in _OTHERS
    )


def step_by_kernel(optimizer: Any, kernel: Step) -> None:
    """Make torch's own AdamW step with ``kernel``; any other optimizer stays unchanged."""
    if type(optimizer) is torch.optim.AdamW:
        stepping: Any = optimizer
        stepping.__class__ = KernelAdamW
        stepping.kernel = kernel
        # Hooks around the step belong to the class that has it.
        stepping._patch_step_function()
