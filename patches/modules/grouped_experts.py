"""Local experts of a mixture of experts: each linear layer runs as one operation for all of them.

Parameters, names and checkpoints are those of Megatron's ``SequentialMLP``; only the forward pass
differs: the activation runs once over all tokens, nothing is split or concatenated, and the weight
gradients go directly into ``main_grad``.

Legend: t tokens sorted by expert, e local experts, k input size, m output size.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.transformer.mlp import MLP
from megatron.core.transformer.moe.experts import SequentialMLP

from accel_bridge.kernels import GROUPED_MATMUL, WEIGHT_GRADIENT
from accel_bridge.patches.modules.main_grad import placeholder

if TYPE_CHECKING:
    from accel_bridge.kernels import Kernels

#: From this many tokens per expert on, separate products fill the device as well as a grouped one.
MANY = 1024


def stacked(weights: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The weights [m, k] as one tensor [e, m, k] if they lie at equal distances in one storage,
    else None; copies nothing."""
    first = weights[0]
    step = int(first.numel())
    if len(weights) > 1:
        step = int(weights[1].storage_offset() - first.storage_offset())
    storage = first.untyped_storage().data_ptr()
    for index, weight in enumerate(weights):
        apart = weight.storage_offset() != first.storage_offset() + index * step
        if apart or weight.untyped_storage().data_ptr() != storage or not weight.is_contiguous():
            return None
    if step < first.numel():
        return None
    return first.detach().as_strided((len(weights), *first.shape), (step, *first.stride()))


def products(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    counts: Sequence[int],
    transposed: bool,
    kernel: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """``x[rows of expert i] @ weights[i].t()`` (or ``@ weights[i]``): [t, m] (or [t, k])."""
    few = x.shape[0] < MANY * len(counts)
    whole = stacked(weights) if few else None
    if whole is not None:
        return kernel(x, whole.transpose(1, 2) if transposed else whole, torch.tensor(counts))
    width = weights[0].shape[0 if transposed else 1]
    output = x.new_empty(x.shape[0], width)
    parts = zip(x.split(list(counts)), output.split(list(counts)), weights, strict=True)
    for rows, result, weight in parts:
        torch.mm(rows, weight.t() if transposed else weight, out=result)
    return output


class _GroupedLinear(torch.autograd.Function):
    """x [t, k], weights e of [m, k] -> [t, m]."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        counts: list[int],
        kernels: Kernels,
        fused: bool,
        *weights: torch.Tensor,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, *weights)
        ctx.counts, ctx.kernels = counts, kernels
        grads = [getattr(weight, "main_grad", None) if fused else None for weight in weights]
        ctx.main_grads = grads
        details = [weight.detach() for weight in weights]
        return products(x, details, counts, True, kernels[GROUPED_MATMUL])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        x, *weights = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        kernels: Kernels = ctx.kernels
        grad_x = products(gradient, weights, ctx.counts, False, kernels[GROUPED_MATMUL])
        grad_weights: list[torch.Tensor | None] = []
        rows = zip(
            weights, ctx.main_grads, x.split(ctx.counts), gradient.split(ctx.counts), strict=True
        )
        for weight, main_grad, inputs, outputs in rows:
            if main_grad is None:
                grad_weights.append(outputs.t() @ inputs)
                continue
            weight.main_grad = main_grad
            if len(inputs):
                kernels[WEIGHT_GRADIENT](inputs, outputs, main_grad)
            grad_weights.append(placeholder(weight, x.dtype))
        return grad_x, None, None, None, *grad_weights


class _Layer(torch.nn.Module):
    """One linear layer of all experts; called like the layer of a single one."""

    def __init__(self, layers: Sequence[Any], kernels: Kernels, counts: list[int]) -> None:
        super().__init__()
        # In a tuple, which registers nothing: the weights belong to the experts.
        self._weights = tuple(layer.weight for layer in layers)
        self._fused = bool(layers[0].gradient_accumulation_fusion)
        self._kernels = kernels
        self._counts = counts

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        """[t, k] -> [t, m], without a bias."""
        output: torch.Tensor = _GroupedLinear.apply(  # type: ignore[no-untyped-call]
            x, self._counts, self._kernels, self._fused, *self._weights
        )
        return output, None


class GroupedExperts(SequentialMLP):  # type: ignore[misc]
    """Stands in for ``TEGroupedMLP``.

    :param kernels: the backend's ``grouped_matmul`` and ``weight_gradient``.
    """

    def __init__(self, *args: Any, kernels: Kernels, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._kernels = kernels

    def forward(
        self,
        permuted_local_hidden_states: torch.Tensor,
        tokens_per_expert: torch.Tensor,
        permuted_probs: torch.Tensor,
    ) -> Any:
        """Tokens [t, h] sorted by expert, their weights [t] -> (output [t, h], None)."""
        config = self.config
        special = config.add_bias_linear or config.fp8 or config.fp4
        if special or config.moe_apply_probs_on_input or len(self.local_experts) == 1:
            return super().forward(permuted_local_hidden_states, tokens_per_expert, permuted_probs)
        counts = tokens_per_expert.tolist()
        experts = list(self.local_experts)
        # One expert with the linear layers of all: its activation code serves them all.
        shell = copy.copy(experts[0])
        shell.__dict__["_modules"] = dict(experts[0]._modules)
        for name in ("linear_fc1", "linear_fc2"):
            layers = [getattr(expert, name) for expert in experts]
            shell._modules[name] = _Layer(layers, self._kernels, counts)
        return MLP.forward(shell, permuted_local_hidden_states, permuted_probs)
