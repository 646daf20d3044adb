"""A differentiable function inside a chain, whose backward pass the chain calls itself.

Kernel contracts are functions that autograd can differentiate. A chain is one node of autograd's
graph, in which nothing is recorded: its operations record such a function on a graph of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ..cpu_offload import is_cpu_offload_enabled, mark_activation_offload
from .op import OperationContext

Function = Callable[..., torch.Tensor]


def plain(device: torch.device) -> AbstractContextManager[Any]:
    """A context without autocast: operations choose their dtypes themselves."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


class Tape:
    """One recorded call of ``function``; keeps what the function saves, not the result.

    :param inputs: the function's differentiable arguments.
    """

    def __init__(self, function: Function, *inputs: torch.Tensor) -> None:
        with torch.enable_grad(), plain(inputs[0].device):
            self._leaves = [tensor.detach().requires_grad_() for tensor in inputs]
            output = function(*self._leaves)
        self._edge: GradientEdge = get_gradient_edge(output)
        self._result: torch.Tensor | None = output.detach()

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        """What the function was given."""
        return tuple(leaf.detach() for leaf in self._leaves)

    def take_result(self) -> torch.Tensor:
        """The function's result; the tape forgets it."""
        result, self._result = self._result, None
        assert result is not None, "a tape gives its result once"
        return result

    def gradients(self, grad_output: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Gradients with respect to each input; frees what the function saved."""
        self._result = None
        return torch.autograd.grad((self._edge,), self._leaves, (grad_output,))


def forward(
    ctx: OperationContext, function: Function, *inputs: torch.Tensor, records: bool
) -> torch.Tensor:
    """``function(*inputs)``, in a way that :func:`backward` can differentiate.

    :param inputs: the operation's input, then its parameters.
    :param records: the function saves little besides its inputs, so record it now. Otherwise only
        the input is kept, and the backward pass computes the function again.
    """
    if ctx.requires_grad and records and not is_cpu_offload_enabled():
        ctx.tape = Tape(function, *inputs)
        tape: Tape = ctx.tape
        return tape.take_result()
    if ctx.requires_grad:
        if is_cpu_offload_enabled():
            mark_activation_offload(inputs[0])
        ctx.save_for_backward(inputs[0])
    with plain(inputs[0].device):
        return function(*inputs)


def backward(
    ctx: OperationContext,
    grad_output: torch.Tensor,
    function: Function,
    again: Callable[[], tuple[torch.Tensor, ...]],
) -> tuple[torch.Tensor, ...]:
    """Gradients with respect to each of :func:`forward`'s inputs.

    :param again: those inputs, for a function that was not recorded.
    """
    tape: Tape | None = getattr(ctx, "tape", None)
    if tape is None:
        tape = Tape(function, *again())
    ctx.tape = None
    return tape.gradients(grad_output)
