"""LayerNorm and RMSNorm on the active backend's kernels.

Legend: s sequence, b batch, h hidden size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from accel_bridge.kernels import LAYER_NORM, RMS_NORM

if TYPE_CHECKING:
    from accel_bridge.kernels import Kernels


def norm_parameters(
    config: Any, hidden_size: int
) -> tuple[torch.nn.Parameter, torch.nn.Parameter | None]:
    """New weight [h] and bias [h] (None for RMSNorm), initialised to the identity.

    They are marked for sequence parallelism's gradient all-reduce, since each rank sees only its
    part of the sequence (Korthikanti et al. 2022, arXiv:2205.05198).
    """

    def parameter(value: float) -> torch.nn.Parameter:
        tensor = torch.full(
            (hidden_size,),
            value,
            dtype=config.params_dtype,
            device="cpu" if config.use_cpu_initialization else torch.cuda.current_device(),
        )
        result = torch.nn.Parameter(tensor)
        result.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        return result

    weight = parameter(0.0 if config.layernorm_zero_centered_gamma else 1.0)
    bias = parameter(0.0) if config.normalization == "LayerNorm" else None
    return weight, bias


def normalize(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    config: Any,
    eps: float,
    kernels: Kernels,
) -> torch.Tensor:
    """Normalise x [..., h] over h, as ``config.normalization`` says."""
    if x.dtype == torch.float32 and weight.dtype != torch.float32:
        # --fp32-residual-connection: the result has the weight's dtype, as from Apex's norms.
        bias = None if bias is None else bias.float()
        exact = normalize(x, weight.float(), bias, config=config, eps=eps, kernels=kernels)
        return exact.to(weight.dtype)
    zero_centered = config.layernorm_zero_centered_gamma
    if config.normalization == "RMSNorm":
        return kernels[RMS_NORM](x, weight, eps=eps, zero_centered_gamma=zero_centered)
    return kernels[LAYER_NORM](x, weight, bias, eps=eps, zero_centered_gamma=zero_centered)


class Norm(torch.nn.Module):
    """LayerNorm or RMSNorm over the last dimension, with TE's and torch's parameter names.

    :param config: Megatron's TransformerConfig; ``normalization``, ``sequence_parallel``,
        ``layernorm_zero_centered_gamma`` and ``params_dtype`` are read.
    """

    bias: torch.Tensor | None

    def __init__(self, config: Any, hidden_size: int, eps: float, kernels: Kernels) -> None:
        super().__init__()
        self.config = config
        self.eps = eps
        self._kernels = kernels
        self.weight, bias = norm_parameters(config, hidden_size)
        self.register_parameter("bias", bias)
        # A checkpoint of torch's norm has no extra state; treat it like an empty one.
        self._register_load_state_dict_pre_hook(  # type: ignore[no-untyped-call]
            lambda state_dict, prefix, *rest: state_dict.setdefault(f"{prefix}_extra_state")
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise x [s, b, h]."""
        return normalize(
            x, self.weight, self.bias, config=self.config, eps=self.eps, kernels=self._kernels
        )

    def get_extra_state(self) -> None:
        """Nothing, stored under the key that Transformer Engine's norms expect in a checkpoint."""

    def set_extra_state(self, state: object) -> None:
        """Ignores the scales of a norm that ran in fp8."""

    def extra_repr(self) -> str:
        return f"{self.config.normalization}, {self.weight.numel()}, eps={self.eps}"


def build_norm(config: Any, hidden_size: int, eps: float, kernels: Kernels) -> torch.nn.Module:
    """The norm that ``config.normalization`` names: LayerNorm, RMSNorm or L2Norm.

    :raises ValueError: for any other name.
    """
    if config.normalization in ("LayerNorm", "RMSNorm"):
        return Norm(config, hidden_size, eps, kernels)
    if config.normalization == "L2Norm":
        from megatron.core.transformer.torch_norm import L2Norm

        norm: torch.nn.Module = L2Norm(hidden_size=hidden_size, eps=eps)
        return norm
    raise ValueError(f"normalization {config.normalization!r} is not LayerNorm, RMSNorm or L2Norm")
