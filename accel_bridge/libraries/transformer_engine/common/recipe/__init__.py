"""Recipes: how a model's tensors are quantized.

Names, fields and defaults are those of Transformer Engine 2.13's common/recipe/__init__.py. Pickled
checkpoints name these classes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from functools import wraps
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

R = TypeVar("R")


class _FormatHelper(NamedTuple):
    """Largest numbers of a format, forward and backward."""

    max_fwd: float
    max_bwd: float


class Format(Enum):
    """Formats: HYBRID is E4M3 in the forward pass and E5M2 for gradients."""

    E2M1 = _FormatHelper(max_fwd=6, max_bwd=6)
    E4M3 = _FormatHelper(max_fwd=448, max_bwd=448)
    E5M2 = _FormatHelper(max_fwd=57344, max_bwd=57344)
    HYBRID = _FormatHelper(max_fwd=448, max_bwd=57344)


def _drops_unknown(recipe: type[R]) -> type[R]:
    """Give a dataclass the constructor of a pydantic one: unknown keywords are dropped.

    Megatron passes such keywords (``override_linear_precision``, ``params_dtype``).
    """
    known = {field.name for field in fields(recipe)}  # type: ignore[arg-type]
    plain = recipe.__init__

    @wraps(plain)
    def init(self: R, *args: Any, **options: Any) -> None:
        plain(self, *args, **{name: options[name] for name in options if name in known})

    setattr(recipe, "__init__", init)  # noqa: B010 - a checker would compare signatures
    return recipe


def _flag(variable: str) -> bool:
    return os.getenv(variable, "0") == "1"


@dataclass(frozen=True)
class MMParams:
    """Options of a product.

    :param use_split_accumulator: sum partial products in float32.
    """

    use_split_accumulator: bool = True


@dataclass(frozen=True)
class QParams:
    """Options of a quantization.

    :param power_2_scale: scales are powers of two.
    :param amax_epsilon: least value taken for a largest magnitude.
    :param random_hadamard_transform: FP4 only.
    :param stochastic_rounding: FP4 only.
    :param fp4_2d_quantization: FP4 only.
    """

    power_2_scale: bool = False
    amax_epsilon: float = 0.0
    random_hadamard_transform: bool = False
    stochastic_rounding: bool = False
    fp4_2d_quantization: bool = False


class Recipe:
    """Base of all recipes; its class methods ask what kind a recipe is."""

    @classmethod
    def nvfp4(cls) -> bool:
        """FP4 with block scales."""
        return issubclass(cls, NVFP4BlockScaling)

    @classmethod
    def mxfp8(cls) -> bool:
        """FP8 with a scale for each 32 numbers."""
        return issubclass(cls, MXFP8BlockScaling)

    @classmethod
    def delayed(cls) -> bool:
        """One scale for a tensor, from earlier steps."""
        return issubclass(cls, DelayedScaling)

    @classmethod
    def float8_current_scaling(cls) -> bool:
        """One scale for a tensor, from its own numbers."""
        return issubclass(cls, Float8CurrentScaling)

    @classmethod
    def float8_per_tensor_scaling(cls) -> bool:
        """One scale for a tensor."""
        return issubclass(cls, (DelayedScaling, Float8CurrentScaling))

    @classmethod
    def float8_block_scaling(cls) -> bool:
        """A scale for each block of 1 x 128 or 128 x 128 numbers."""
        return issubclass(cls, Float8BlockScaling)

    @classmethod
    def custom(cls) -> bool:
        """Quantizers that the user makes."""
        return issubclass(cls, CustomRecipe)

    def _text(self, *names: str) -> str:
        """``recipe_type=..., name=value, ...``; the key of the global FP8 buffers."""
        parts = [f"recipe_type={type(self).__name__}"]
        for name in names:
            value = getattr(self, name)
            label = "format" if name == "fp8_format" else name
            parts.append(f"{label}={value.name if isinstance(value, Format) else value}")
        return ", ".join(parts)


def _no_pure_e5m2(recipe: Any) -> None:
    assert recipe.fp8_format != Format.E5M2, "Pure E5M2 training is not supported."


@_drops_unknown
@dataclass(repr=False)
class DelayedScaling(Recipe):
    """One scale for a tensor, computed from the largest magnitudes of earlier steps.

    :param margin: the scale is divided by two to this power.
    :param fp8_format: E4M3 or HYBRID.
    :param amax_history_len: how many steps are remembered.
    :param amax_compute_algo: ``max``, ``most_recent`` or a function of the history.
    :param scaling_factor_compute_algo: a function of (amax, old scale, largest FP8 number, recipe).
    :param reduce_amax: take the maximum over the process group.
    :param fp8_dpa: attention in FP8; refused by the attention modules.
    :param fp8_mha: FP8 between the linear layers and attention; likewise.
    :raises AssertionError: the format E5M2.
    """

    margin: int = 0
    fp8_format: Format = Format.HYBRID
    amax_history_len: int = 1024
    amax_compute_algo: Literal["max", "most_recent"] | Callable[..., Any] = "max"
    scaling_factor_compute_algo: Callable[..., Any] | None = None
    reduce_amax: bool = True
    fp8_dpa: bool = False
    fp8_mha: bool = False

    def __post_init__(self) -> None:
        _no_pure_e5m2(self)

    def __repr__(self) -> str:
        return self._text(
            "margin", "fp8_format", "amax_history_len", "reduce_amax", "fp8_dpa", "fp8_mha"
        )


@_drops_unknown
@dataclass(repr=False)
class Float8CurrentScaling(Recipe):
    """One scale for a tensor, computed from the tensor itself.

    :param use_power_2_scales: scales are powers of two.
    :param fp8_format: E4M3 or HYBRID.
    :raises AssertionError: the format E5M2.
    """

    _DEFAULT: ClassVar = QParams(
        power_2_scale=_flag("NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES"), amax_epsilon=0.0
    )
    use_power_2_scales: bool = _DEFAULT.power_2_scale
    fp8_format: Format = Format.HYBRID
    fp8_quant_fwd_inp: ClassVar = _DEFAULT
    fp8_quant_fwd_weight: ClassVar = _DEFAULT
    fp8_quant_bwd_grad: ClassVar = _DEFAULT
    fp8_gemm_fprop: MMParams = MMParams(use_split_accumulator=False)
    fp8_gemm_dgrad: MMParams = MMParams(use_split_accumulator=True)
    fp8_gemm_wgrad: MMParams = MMParams(use_split_accumulator=True)
    fp8_dpa: bool = False
    fp8_mha: bool = False

    def __post_init__(self) -> None:
        _no_pure_e5m2(self)

    def __repr__(self) -> str:
        return self._text(
            "fp8_format",
            "fp8_quant_fwd_inp",
            "fp8_quant_fwd_weight",
            "fp8_quant_bwd_grad",
            "fp8_gemm_fprop",
            "fp8_gemm_dgrad",
            "fp8_gemm_wgrad",
            "fp8_dpa",
            "fp8_mha",
        )


@_drops_unknown
@dataclass(repr=False)
class MXFP8BlockScaling(Recipe):
    """A power of two as scale for each 32 numbers of a row or column.

    :raises AssertionError: the format E5M2.
    """

    margin: int = 0
    fp8_format: Format = Format.E4M3
    fp8_dpa: bool = False
    fp8_mha: bool = False

    def __post_init__(self) -> None:
        _no_pure_e5m2(self)

    def __repr__(self) -> str:
        return self._text("margin", "fp8_format")


@_drops_unknown
@dataclass(repr=False)
class Float8BlockScaling(Recipe):
    """A scale for each 1 x 128 numbers of inputs and gradients, and 128 x 128 of weights.

    :param use_f32_scales: scales are any float32 number, not only powers of two.
    :param fp8_format: E4M3 or HYBRID.
    :param x_block_scaling_dim: 1 or 2, for inputs.
    :param w_block_scaling_dim: 1 or 2, for weights.
    :param grad_block_scaling_dim: 1 or 2, for gradients.
    :raises AssertionError: blocks of 128 x 128 on both sides of a product, FP8 attention, E5M2, or
        products without the split accumulator.
    """

    _DEFAULT: ClassVar = QParams(
        power_2_scale=not _flag("NVTE_FP8_BLOCK_SCALING_FP32_SCALES"), amax_epsilon=0.0
    )
    use_f32_scales: bool = not _DEFAULT.power_2_scale
    fp8_format: Format = Format.E4M3
    fp8_quant_fwd_inp: ClassVar = _DEFAULT
    fp8_quant_fwd_weight: ClassVar = _DEFAULT
    fp8_quant_bwd_grad: ClassVar = _DEFAULT
    x_block_scaling_dim: int = 1
    w_block_scaling_dim: int = 2
    grad_block_scaling_dim: int = 1
    fp8_gemm_fprop: MMParams = MMParams(use_split_accumulator=True)
    fp8_gemm_dgrad: MMParams = MMParams(use_split_accumulator=True)
    fp8_gemm_wgrad: MMParams = MMParams(use_split_accumulator=True)
    fp8_dpa: bool = False
    fp8_mha: bool = False

    def __post_init__(self) -> None:
        dims = {
            "x": self.x_block_scaling_dim,
            "w": self.w_block_scaling_dim,
            "grad": self.grad_block_scaling_dim,
        }
        for name, dim in dims.items():
            assert dim in (1, 2), f"Only 1D or 2D blocks supported for {name}"
        assert list(dims.values()).count(2) < 2, "2D by 2D block gemm not supported."
        for product in ("fprop", "dgrad", "wgrad"):
            options = getattr(self, f"fp8_gemm_{product}")
            assert options.use_split_accumulator, f"Split accumulator required for {product}."
        for attention in (self.fp8_dpa, self.fp8_mha):
            assert not attention, "FP8 attention is not supported for Float8BlockScaling."
        _no_pure_e5m2(self)

    def __repr__(self) -> str:
        return self._text(
            "fp8_format",
            "fp8_quant_fwd_inp",
            "fp8_quant_fwd_weight",
            "fp8_quant_bwd_grad",
            "x_block_scaling_dim",
            "w_block_scaling_dim",
            "grad_block_scaling_dim",
            "fp8_gemm_fprop",
            "fp8_gemm_dgrad",
            "fp8_gemm_wgrad",
            "fp8_dpa",
            "fp8_mha",
        )


@_drops_unknown
@dataclass(repr=False)
class NVFP4BlockScaling(Recipe):
    """FP4 in blocks of 16 numbers: an E4M3 scale for each, and a float32 scale for the tensor.

    :param disable_rht: no random Hadamard transform.
    :param disable_stochastic_rounding: gradients are rounded to nearest.
    :param disable_2d_quantization: weights have blocks of 1 x 16 too.
    :raises AssertionError: formats other than E2M1 with E4M3 scales.
    """

    disable_rht: bool = _flag("NVTE_NVFP4_DISABLE_RHT")
    disable_stochastic_rounding: bool = _flag("NVTE_NVFP4_DISABLE_STOCHASTIC_ROUNDING")
    disable_2d_quantization: bool = _flag("NVTE_NVFP4_DISABLE_2D_QUANTIZATION")
    fp4_format: Format = Format.E2M1
    fp8_format: Format = Format.E4M3
    fp8_dpa: bool = False
    fp8_mha: bool = False

    def __post_init__(self) -> None:
        assert self.fp4_format == Format.E2M1, "Only E2M1 is supported for NVFP4 scaling"
        assert self.fp8_format == Format.E4M3, "Only E4M3 is supported for NVFP4 scaling"
        transform = not self.disable_rht
        self.fp4_quant_fwd_inp = QParams(random_hadamard_transform=transform)
        self.fp4_quant_fwd_weight = QParams(fp4_2d_quantization=not self.disable_2d_quantization)
        self.fp4_quant_bwd_grad = QParams(
            random_hadamard_transform=transform,
            stochastic_rounding=not self.disable_stochastic_rounding,
        )

    def __repr__(self) -> str:
        return self._text(
            "fp4_format",
            "fp8_format",
            "fp8_dpa",
            "fp8_mha",
            "fp4_quant_fwd_inp",
            "fp4_quant_fwd_weight",
            "fp4_quant_bwd_grad",
        )


@_drops_unknown
@dataclass(repr=False)
class CustomRecipe(Recipe):
    """Quantizers from a function of the user.

    :param qfactory: role -> quantizer; roles are ``linear_input``, ``linear_weight``,
        ``linear_output``, ``linear_grad_output`` and ``linear_grad_input``.
    """

    qfactory: Callable[..., Any]
    fp8_dpa: bool = False
    fp8_mha: bool = False

    def __repr__(self) -> str:
        return self._text("qfactory")
