"""LayerNorm and RMSNorm of the local spec: sequence parallel, zero-centred gamma, any backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext


def _make_new(context: PatchContext) -> Callable[..., Any]:
    from accel_bridge.patches.modules.norm import build_norm

    kernels = context.host.kernels

    def __new__(
        cls: type,
        config: Any,
        hidden_size: int,
        eps: float = 1e-5,
        persist_layer_norm: bool = False,
        zero_centered_gamma: bool = False,
        normalization: str = "LayerNorm",
    ) -> Any:
        """Build the norm that ``config.normalization`` names; the other flags are not used."""
        return build_norm(config, hidden_size, eps, kernels)

    return __new__


PATCHES = (
    megatron_patch(
        id="torch-norm",
        target="megatron.core.transformer.torch_norm:WrappedTorchNorm.__new__",
        kind=Kind.REPLACE,
        make=_make_new,
        why="without Apex the norm refuses sequence parallelism, zero-centred gamma and its own "
        "default persist_layer_norm",
        removed_when="WrappedTorchNorm supports sequence_parallel and zero_centered_gamma",
        loses="the local spec stops at 'persist_layer_norm not supported by torch LayerNorm'",
        kernels=("layer_norm", "rms_norm"),
    ),
)
