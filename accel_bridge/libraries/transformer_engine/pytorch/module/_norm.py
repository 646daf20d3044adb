"""What the two norms have in common."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch

from ._common import apply_normalization


class Norm(torch.nn.Module):
    """A norm over the last dimensions, with a weight and, for ``LayerNorm``, a bias."""

    normalization: ClassVar[str]
    weight: torch.nn.Parameter

    def __init__(
        self,
        normalized_shape: Iterable[int] | int | None = None,
        eps: float = 1e-5,
        sequence_parallel: bool | None = None,
        params_dtype: torch.dtype | None = None,
        zero_centered_gamma: bool = False,
        hidden_size: int | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        sm_margin: int | Mapping[str, int] = 0,
    ) -> None:
        super().__init__()
        if (normalized_shape is None) == (hidden_size is None):
            raise RuntimeError(
                "Either `normalized_shape` or `hidden_size` (deprecated) must be provided"
            )
        if normalized_shape is None:
            warnings.warn(
                "`hidden_size` arg has been renamed to `normalized_shape` "
                "for compatibility with `torch.nn.LayerNorm`.",
                DeprecationWarning,
                stacklevel=2,
            )
            normalized_shape = hidden_size
        if params_dtype is not None and dtype is not None:
            raise RuntimeError("Both `dtype` and `params_dtype` (deprecated) kwargs are provided")
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape
        assert shape is not None
        self.eps = eps
        self.zero_centered_gamma = zero_centered_gamma
        self.sequence_parallel = sequence_parallel
        stages = ("forward", "backward", "inference")
        self._sm_margins = (
            dict(sm_margin) if isinstance(sm_margin, Mapping) else dict.fromkeys(stages, sm_margin)
        )
        dtype = dtype or params_dtype or torch.get_default_dtype()
        device = torch.device("cuda" if device is None else device)
        names = ("weight", "bias") if self.normalization == "LayerNorm" else ("weight",)
        for name in names:
            empty = torch.empty(tuple(shape), device=device, dtype=dtype)
            setattr(self, name, torch.nn.Parameter(empty))
        if device.type != "meta":
            self.reset_parameters()

    def reset_parameters(self, defer_init: bool | None = None) -> None:
        """Set the parameters to the identity; those on the meta device get memory first."""
        if defer_init is not None:
            warnings.warn(
                "defer_init argument to reset_parameters function is deprecated. Set device to"
                ' "meta" instead.',
                DeprecationWarning,
                stacklevel=2,
            )
            if defer_init:
                return
        for name, parameter in list(self.named_parameters(recurse=False)):
            if parameter.device.type == "meta":
                parameter = torch.nn.Parameter(torch.empty_like(parameter, device="cuda"))
                setattr(self, name, parameter)
            is_one = name == "weight" and not self.zero_centered_gamma
            torch.nn.init.constant_(parameter, float(is_one))
            if self.sequence_parallel is not None:
                parameter.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, inp: torch.Tensor) -> torch.Tensor:
        """Normalise inp [..., *normalized_shape]; the result has the weight's dtype.

        :raises ValueError: an input of another shape.
        """
        weight: torch.Tensor = self.weight
        shape = inp.shape
        if weight.dim() != 1 or shape[-1] != weight.shape[0]:
            if shape[len(shape) - weight.dim() :] != weight.shape:
                raise ValueError(
                    f"Input tensor (shape={tuple(shape)}) and weight tensor "
                    f"(shape={tuple(weight.shape)}) are not compatible"
                )
            inp = inp.reshape(-1, math.prod(weight.shape))
            weight = weight.reshape(-1)
        bias: torch.Tensor | None = self._parameters.get("bias")
        if bias is not None and bias.dim() != 1:
            bias = bias.reshape(-1)
        device = inp.device.type
        if torch.is_autocast_enabled(device):
            inp = inp.to(torch.get_autocast_dtype(device))
        out = apply_normalization(
            inp, weight, bias, self.eps, self.normalization, self.zero_centered_gamma
        )
        return out.view(shape)

    def get_extra_state(self) -> torch.Tensor:
        """Nothing, under the key that Transformer Engine's norms write into checkpoints."""
        return torch.empty(0, dtype=torch.uint8, device="cpu")

    def set_extra_state(self, state: object) -> None:
        """Ignores the recipe of a norm that ran in FP8: it has no scales."""

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        # The empty state may be missing: other norms (torch's, MindSpeed's) write none.
        found: list[str] = []
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, found, unexpected_keys, error_msgs
        )
        missing_keys += [key for key in found if key != f"{prefix}_extra_state"]

    def _reset_by_old_name(self, name: str) -> None:
        warnings.warn(
            f"{name} is deprecated and will be removed in an upcoming release. "
            f"Update your code to use {type(self).__name__}.reset_parameters() instead.",
            DeprecationWarning,
            stacklevel=3,
        )
        self.reset_parameters()

    def extra_repr(self) -> str:
        """The sizes."""
        return f"{tuple(self.weight.shape)}, eps={self.eps}"


def _margin(stage: str) -> property:
    def read(self: Norm) -> int:
        return self._sm_margins[stage]

    def write(self: Norm, value: int) -> None:
        self._sm_margins[stage] = value

    return property(read, write, doc=f"Margin of the {stage} pass (deprecated).")


for _short, _stage in (("fwd", "forward"), ("bwd", "backward"), ("inf", "inference")):
    for _norm in ("ln", "rmsnorm"):
        setattr(Norm, f"{_short}_{_norm}_sm_margin", _margin(_stage))
