"""Recomputing a part of a layer that hands out one of its parameters.

Megatron's MLP and its row-parallel layers return their bias unadded. A function of autograd that
returns a parameter becomes that parameter's history: the recomputation then leads back to itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, Patch, PatchContext, around


def _checkpoint(_context: PatchContext, call: Callable[..., Any], function: Any) -> Any:
    """As upstream; parameters among the function's results leave it as views."""
    from torch.nn import Parameter

    def view(value: Any) -> Any:
        return value.view_as(value) if isinstance(value, Parameter) else value

    def run_without_parameters(*inputs: Any, **named: Any) -> Any:
        outputs = function(*inputs, **named)
        return tuple(map(view, outputs)) if isinstance(outputs, tuple) else view(outputs)

    return call(function=run_without_parameters)


_WHY: Final = (
    "a recomputed MLP returns its bias unadded, and the parameter then gets the recomputation as "
    "its history, which runs itself again without an end"
)
_REMOVED: Final = "upstream's checkpoint returns no parameter of the function that it runs"
PATCHES = (
    Patch(
        id="te-recompute-outputs",
        target="transformer_engine.pytorch.distributed:checkpoint",
        kind=Kind.WRAP,
        make=around(_checkpoint),
        why=_WHY,
        upstream="https://github.com/NVIDIA/TransformerEngine/blob/main/transformer_engine/"
        "pytorch/distributed.py",
        removed_when=_REMOVED,
        loses="the same in FP8, where Megatron recomputes with Transformer Engine's function",
        uses=("function",),
    ),
    megatron_patch(
        id="recompute-outputs",
        target="megatron.core.tensor_parallel.random:checkpoint",
        kind=Kind.WRAP,
        make=around(_checkpoint),
        why=_WHY,
        removed_when=_REMOVED,
        loses="`--recompute-modules mlp` hangs in the first backward pass of a model with biases",
        uses=("function",),
    ),
)
