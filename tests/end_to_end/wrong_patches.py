"""A plugin whose patches no longer fit: one target is gone, one has another signature."""

from __future__ import annotations

from accel_bridge import Backend, hookimpl
from accel_bridge.patching import Kind, Patch


@hookimpl
def accel_bridge_patches(backend: Backend) -> list[Patch]:
    """Patches for functions as an imaginary Megatron had them."""
    return [
        Patch(
            id=name,
            target=f"megatron.core.jit:{target}",
            kind=Kind.REPLACE,
            make=lambda context: print,
            why="an example",
            upstream="tests/end_to_end/wrong_patches.py",
            removed_when="never: it is a test",
            loses="the example",
            parameters=parameters,
        )
        for name, target, parameters in (
            ("target-gone", "no_such_function", ()),
            ("signature-changed", "noop_decorator", ("function", "mode")),
        )
    ]
