"""The spec provider behind ``--transformer-impl transformer_engine`` without Transformer Engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from megatron.core.models.backends import BackendSpecProvider
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe.experts import SequentialMLP

from accel_bridge.kernels import GROUPED_MATMUL
from accel_bridge.patches.modules.grouped_experts import GroupedExperts

if TYPE_CHECKING:
    from accel_bridge.kernels import Kernels


def make_spec_provider(spec_class: Callable[[str], type], kernels: Kernels) -> type:
    """The class that stands in for ``TESpecProvider``.

    :param spec_class: takes the name of a Transformer Engine class, returns its stand-in.
    :param kernels: the backend's kernels.
    """

    class SpecProvider(BackendSpecProvider):  # type: ignore[misc]
        """Transformer Engine's choice of modules, built from Megatron's and the backend's kernels.

        ``fuse_layernorm_and_linear`` must stay True and the fused module must hold the norm: the
        specs built on this provider leave the separate norms out.
        """

        def linear(self) -> type:
            """A linear layer that is not split."""
            return spec_class("TELinear")

        def column_parallel_linear(self) -> type:
            """A linear layer split along its output."""
            return spec_class("TEColumnParallelLinear")

        def row_parallel_linear(self) -> type:
            """A linear layer split along its input."""
            return spec_class("TERowParallelLinear")

        def fuse_layernorm_and_linear(self) -> bool:
            """The norm is part of the linear layer that follows it."""
            return True

        def column_parallel_layer_norm_linear(self) -> type:
            """Norm, then a linear layer split along its output."""
            return spec_class("TELayerNormColumnParallelLinear")

        def layer_norm(
            self, rms_norm: bool = False, for_qk: bool = False, has_residual: bool = False
        ) -> type:
            """A norm by itself; the configuration says which."""
            return spec_class("TENorm")

        def core_attention(self) -> type:
            """Attention on the backend's kernel."""
            return spec_class("TEDotProductAttention")

        def grouped_mlp_modules(self, moe_use_grouped_gemm: bool) -> Any:
            """Experts, all in one product if the backend has a kernel for it."""
            grouped = kernels.get(GROUPED_MATMUL)
            experts = SequentialMLP
            if moe_use_grouped_gemm and grouped is not None and not grouped.is_reference:
                experts = partial(GroupedExperts, kernels=kernels)
            return partial(
                experts,
                submodules=MLPSubmodules(
                    linear_fc1=ColumnParallelLinear,
                    linear_fc2=RowParallelLinear,
                    activation_func=None,
                ),
            )

        def activation_func(self) -> None:
            """No fused activation module: the MLP calls the configured function."""

    return SpecProvider
