"""The linear layers that Transformer Engine's spec names, built on Megatron's own.

In that spec the layer norms before attention and MLP are identities, because the norm is part of
the linear layer that follows. :class:`LayerNormColumnParallelLinear` must therefore hold it. The
parameter names are Transformer Engine's (``layer_norm_weight``, ``layer_norm_bias``), so each loads
the other's checkpoints.

Legend: s sequence, b batch, h input size, o output size, p tensor parallel size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from megatron.core.tensor_parallel.random import (
    get_cuda_rng_tracker,
    get_data_parallel_rng_tracker_name,
)
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from megatron.core.utils import get_tensor_model_parallel_group_if_none

from accel_bridge.patches.modules.norm import norm_parameters, normalize

if TYPE_CHECKING:
    from accel_bridge.kernels import Kernels


class LayerNormColumnParallelLinear(ColumnParallelLinear):  # type: ignore[misc]
    """Norm, then a column-parallel linear layer: [s, b, h] -> [s, b, o/p].

    Interface: ``TELayerNormColumnParallelLinear`` of
    megatron/core/extensions/transformer_engine.py.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        config: Any,
        kernels: Kernels,
        **kwargs: Any,
    ) -> None:
        super().__init__(input_size, output_size, config=config, **kwargs)
        self._kernels = kernels
        self.layer_norm_weight, bias = norm_parameters(config, input_size)
        self.register_parameter("layer_norm_bias", bias)

    def forward(self, input_: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """(output [s, b, o/p], bias or None) for input [s, b, h] (s/p under sequence parallel)."""
        normal = normalize(
            input_,
            self.layer_norm_weight,
            self.layer_norm_bias,
            config=self.config,
            eps=self.config.layernorm_epsilon,
            kernels=self._kernels,
        )
        return super().forward(normal, *args, **kwargs)


class DuplicatedLinear(torch.nn.Module):
    """A linear layer that every tensor-parallel rank holds whole: [s, b, h] -> [s, b, o].

    Interface: ``TELinear`` with ``parallel_mode="duplicated"``, which multi-latent attention uses
    for its down projections.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        parallel_mode: str | None,
        config: Any,
        init_method: Callable[[torch.Tensor], Any],
        bias: bool,
        skip_bias_add: bool,
        skip_weight_param_allocation: bool = False,
        tp_comm_buffer_name: str | None = None,
        is_expert: bool = False,
        symmetric_ar_type: str | None = None,
        tp_group: torch.distributed.ProcessGroup | None = None,
        name: str | None = None,
        gtp_remat_group: torch.distributed.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        if parallel_mode != "duplicated":
            raise ValueError(f"parallel_mode {parallel_mode!r}: only 'duplicated' exists here")
        if skip_weight_param_allocation:
            raise ValueError("a duplicated linear layer always allocates its weight")
        device = "cpu" if config.use_cpu_initialization else torch.cuda.current_device()
        self.skip_bias_add = skip_bias_add
        self.weight = torch.nn.Parameter(
            torch.empty(output_size, input_size, dtype=config.params_dtype, device=device)
        )
        if config.perform_initialization:
            with get_cuda_rng_tracker().fork(get_data_parallel_rng_tracker_name()):
                init_method(self.weight)
        self.register_parameter("bias", None)
        if bias:
            zeros = torch.zeros(output_size, dtype=config.params_dtype, device=device)
            self.bias = torch.nn.Parameter(zeros)
        for parameter in self.parameters():
            parameter.allreduce = True  # type: ignore[attr-defined]
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
            parameter.tensor_model_parallel = False  # type: ignore[attr-defined]
        self._tp_group = get_tensor_model_parallel_group_if_none(tp_group, is_expert=is_expert)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(output [s, b, o], bias or None) for x [s, b, h]."""
        if self.skip_bias_add:
            return torch.nn.functional.linear(x, self.weight), self.bias
        return torch.nn.functional.linear(x, self.weight, self.bias), None

    def sharded_state_dict(
        self,
        prefix: str = "",
        sharded_offsets: tuple[tuple[int, int, int], ...] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> Any:
        """Every rank holds the same tensors."""
        groups = metadata or {}
        return make_sharded_tensors_for_checkpoint(
            self.state_dict(prefix="", keep_vars=True),
            prefix,
            None,
            sharded_offsets,
            tp_group=self._tp_group,
            dp_cp_group=groups.get("dp_cp_group")
            or ProcessGroupCollection.use_mpu_process_groups(required_pgs=["dp_cp"]).dp_cp,
        )
