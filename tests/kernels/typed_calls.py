"""Calls that the type checker must refuse; tools/typecheck.py checks this file with the package.

Every ``type: ignore`` stands for an error that mypy must find: in strict mode one without its error
is an error itself. Nothing here is ever run.
"""

from __future__ import annotations

import torch

from accel_bridge.kernels import (
    ADAMW,
    ATTENTION,
    LAYER_NORM,
    RMS_NORM,
    AttentionOptions,
    AttentionResult,
    Kernels,
)
from accel_bridge.patching.host import Host


def calls(host: Host, kernels: Kernels, x: torch.Tensor) -> AttentionResult:
    """Right calls, each beside wrong ones."""
    norm: torch.Tensor = host.kernel(RMS_NORM)(x, x, eps=1e-5)
    kernels[RMS_NORM](norm, x, epsilon=1e-5)  # type: ignore[call-arg]
    kernels.resolve(RMS_NORM)(x, x)  # type: ignore[call-arg]
    host.kernel(RMS_NORM)(x, x, 1e-5)  # type: ignore[call-arg]
    host.kernel(LAYER_NORM)(x, x, eps=1e-5)  # type: ignore[call-arg]
    host.kernel(RMS_NORM)(x, x, eps="small")  # type: ignore[arg-type]
    host.kernel(ADAMW)([x], [x], [x], [x], step=1)  # type: ignore[call-arg]
    AttentionOptions(layout="SBDH")  # type: ignore[arg-type]
    AttentionOptions(layout="SBHD", causal=True)  # type: ignore[call-arg]
    host.kernel(ATTENTION)(x, x, x, layout="SBHD")  # type: ignore[call-arg]
    return host.kernel(ATTENTION)(x, x, x, AttentionOptions(layout="SBHD"))


def kernels_of_another_signature() -> Kernels:
    """A function that does not follow its contract, and a ``supports`` that does not."""

    def rms_norm(input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return input * weight

    def narrow(input: torch.Tensor) -> str | None:
        return None

    return Kernels(
        RMS_NORM.kernel(rms_norm, "wrong"),  # type: ignore[arg-type]
        RMS_NORM.kernel(RMS_NORM.reference, "wrong", narrow),  # type: ignore[arg-type]
    )
