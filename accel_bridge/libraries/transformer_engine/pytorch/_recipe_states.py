"""What a recipe keeps for a module, and the quantizers it makes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch

from ..common.recipe import Recipe
from ._fp8_support import get_fp4_te_dtype, get_fp8_te_dtype
from .tensor.float8_blockwise_tensor import Float8BlockQuantizer
from .tensor.float8_tensor import Float8CurrentScalingQuantizer, Float8Quantizer
from .tensor.mxfp8_tensor import MXFP8Quantizer
from .tensor.nvfp4_tensor import NVFP4Quantizer


class RecipeState(ABC):
    """A recipe's buffers for one module, forward or backward.

    :param recipe: the recipe.
    :param mode: ``forward`` or ``backward``.
    :param num_quantizers: 3 for each product forward (input, weight, output), 2 backward
        (gradients of output and input).
    :param device: where buffers are; the current device by default.
    """

    def __init__(
        self,
        recipe: Any,
        *,
        mode: str,
        num_quantizers: int = 1,
        device: torch.device | None = None,
    ) -> None:
        self.recipe = recipe
        self.mode = mode
        self.num_quantizers = num_quantizers
        self.device = torch.device("cuda") if device is None else device

    @staticmethod
    def create(
        recipe: Recipe,
        *,
        mode: str,
        num_quantizers: int = 1,
        device: torch.device | None = None,
    ) -> RecipeState:
        """The state of ``recipe``'s kind.

        :raises ValueError: a recipe of no known kind.
        """
        kinds: tuple[tuple[bool, type[RecipeState]], ...] = (
            (recipe.delayed(), DelayedScalingRecipeState),
            (recipe.mxfp8(), MXFP8BlockScalingRecipeState),
            (recipe.float8_current_scaling(), Float8CurrentScalingRecipeState),
            (recipe.float8_block_scaling(), Float8BlockScalingRecipeState),
            (recipe.nvfp4(), NVFP4BlockScalingRecipeState),
            (recipe.custom(), CustomRecipeState),
        )
        for is_kind, state in kinds:
            if is_kind:
                return state(recipe, mode=mode, num_quantizers=num_quantizers, device=device)
        raise ValueError(f"{type(recipe).__name__} is not supported")

    @property
    def forward(self) -> bool:
        """Whether it serves forward passes."""
        return self.mode == "forward"

    @abstractmethod
    def make_quantizers(self) -> list[Any]:
        """One quantizer for each place."""


class DelayedScalingRecipeState(RecipeState):
    """Scales [n], and a history of largest magnitudes [length, n], both float32."""

    def __init__(
        self,
        recipe: Any,
        *,
        mode: str,
        num_quantizers: int = 1,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(recipe, mode=mode, num_quantizers=num_quantizers, device=device)
        self.dtype = get_fp8_te_dtype(recipe, self.forward)
        self.scale = torch.ones(num_quantizers, dtype=torch.float32, device=self.device)
        self.amax_history = torch.zeros(
            recipe.amax_history_len, num_quantizers, dtype=torch.float32, device=self.device
        )

    def make_quantizers(self) -> list[Any]:
        """Quantizers whose scales and amaxes are views of the buffers."""
        newest = self.amax_history[0]
        return [
            Float8Quantizer(self.scale[place], newest[place].reshape((1,)), self.dtype)
            for place in range(self.num_quantizers)
        ]


class Float8CurrentScalingRecipeState(RecipeState):
    """Current scaling keeps nothing."""

    def make_quantizers(self) -> list[Any]:
        """Quantizers for tensors with one scale each."""
        dtype = get_fp8_te_dtype(self.recipe, self.forward)
        options = {"device": self.device, "force_pow_2_scales": self.recipe.use_power_2_scales}
        return [Float8CurrentScalingQuantizer(dtype, **options) for _ in range(self.num_quantizers)]


class MXFP8BlockScalingRecipeState(RecipeState):
    """MXFP8 keeps nothing; its quantizer refuses to be made."""

    def make_quantizers(self) -> list[Any]:
        """:raises BridgeError: always."""
        dtype = get_fp8_te_dtype(self.recipe, self.forward)
        return [MXFP8Quantizer(dtype) for _ in range(self.num_quantizers)]


class Float8BlockScalingRecipeState(RecipeState):
    """Block scaling keeps nothing; inputs, weights and gradients have blocks of their own."""

    def make_quantizers(self) -> list[Any]:
        """Quantizers by place.

        :raises AssertionError: a number of places that is no multiple of a product's.
        """
        recipe: Any = self.recipe
        dtype = get_fp8_te_dtype(recipe, self.forward)

        def make(options: Any, dim: int) -> Float8BlockQuantizer:
            return Float8BlockQuantizer(
                fp8_dtype=dtype,
                rowwise=True,
                columnwise=True,
                amax_epsilon=options.amax_epsilon,
                force_pow_2_scales=options.power_2_scale,
                block_scaling_dim=dim,
            )

        x = (recipe.fp8_quant_fwd_inp, recipe.x_block_scaling_dim)
        weight = (recipe.fp8_quant_fwd_weight, recipe.w_block_scaling_dim)
        gradient = (recipe.fp8_quant_bwd_grad, recipe.grad_block_scaling_dim)
        places = (x, weight, x) if self.forward else (gradient, gradient)
        assert self.forward or self.mode == "backward", f"Unexpected mode {self.mode}"
        assert self.num_quantizers % len(places) == 0
        return [make(*places[i % len(places)]) for i in range(self.num_quantizers)]


class NVFP4BlockScalingRecipeState(RecipeState):
    """NVFP4 keeps nothing; its quantizer refuses to be made."""

    def make_quantizers(self) -> list[Any]:
        """:raises BridgeError: always."""
        dtype = get_fp4_te_dtype(self.recipe)
        return [NVFP4Quantizer(dtype) for _ in range(self.num_quantizers)]


class CustomRecipeState(RecipeState):
    """Quantizers of the user's own making.

    :raises ValueError: a recipe without ``qfactory``.
    """

    def __init__(
        self,
        recipe: Any,
        *,
        mode: str,
        num_quantizers: int = 1,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(recipe, mode=mode, num_quantizers=num_quantizers, device=device)
        if getattr(recipe, "qfactory", None) is None:
            raise ValueError("CustomRecipe requires `qfactory`.")

    def make_quantizers(self) -> list[Any]:
        """Whatever the recipe's function gives for each role."""
        roles = {
            "forward": ("linear_input", "linear_weight", "linear_output"),
            "backward": ("linear_grad_output", "linear_grad_input"),
        }.get(self.mode, ("unknown",))
        return [self.recipe.qfactory(roles[i % len(roles)]) for i in range(self.num_quantizers)]
