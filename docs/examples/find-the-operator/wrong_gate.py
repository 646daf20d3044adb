"""A plugin with an error: the gate of every SwiGLU is 1% too large; the loss falls all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accel_bridge import Backend, hookimpl
from accel_bridge.patching import Kind, Patch, PatchContext


def _make(context: PatchContext) -> Callable[..., Any]:
    swiglu = context.original

    def wrong(y: Any) -> Any:
        return swiglu(y * 1.01)

    return wrong


@hookimpl
def accel_bridge_patches(backend: Backend) -> list[Patch]:
    """The error."""
    return [
        Patch(
            id="wrong-gate",
            target="megatron.core.fusions.fused_bias_swiglu:swiglu",
            kind=Kind.WRAP,
            make=_make,
            why="an injected error to look for",
            upstream="docs/examples/find-the-operator",
            removed_when="it is found",
            loses="nothing",
        )
    ]
