"""Recomputing a part of a layer that hands out one of its parameters.

Megatron's MLP and its row-parallel layers return their bias unadded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext


def _make(context: PatchContext) -> Callable[..., Any]:
    from accel_bridge.libraries.recomputed_outputs import without_parameters

    upstream = context.original
    function = context.argument("function")

    @functools.wraps(upstream)
    def checkpoint(*args: Any, **kwargs: Any) -> Any:
        """As upstream; parameters among the function's results leave it as views."""
        run = function.get(args, kwargs)

        def run_without_parameters(*inputs: Any) -> Any:
            return without_parameters(run(*inputs))

        words, named = function.put(args, kwargs, run_without_parameters)
        return upstream(*words, **named)

    return checkpoint


PATCHES = (
    megatron_patch(
        id="recompute-outputs",
        target="megatron.core.tensor_parallel.random:checkpoint",
        kind=Kind.WRAP,
        make=_make,
        why="a recomputed MLP returns its bias unadded, and the parameter then gets the "
        "recomputation as its history, which runs itself again without an end",
        removed_when="upstream's checkpoint returns no parameter of the function that it runs",
        loses="`--recompute-modules mlp` hangs in the first backward pass of a model with biases",
        uses=("function",),
    ),
)
