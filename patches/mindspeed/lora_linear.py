"""A low-rank adapter on one of Megatron's tensor-parallel linear layers.

Legend: s sequence, b batch, i input features, o output features, r rank of the adapter.

The layer keeps its class as a base, its parameters and their names, so that a checkpoint without
adapters can be loaded. An adapter's names are those of Hugging Face's PEFT and of MindSpeed-LLM:
``lora_A.default.weight`` [r, i] and ``lora_B.default.weight`` [o, r].
"""

from __future__ import annotations

import inspect
import math
from typing import Any, Final

import torch
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.mlp import apply_swiglu_sharded_factory
from megatron.core.transformer.utils import sharded_state_dict_default

LINEAR: Final = (ColumnParallelLinear, RowParallelLinear)
#: PEFT names every adapter; MindSpeed-LLM's is this one.
NAME: Final = "default"


class _Adapted:
    """``x [s, b, i] -> W x + scale * B (A x)  [s, b, o]``, W frozen; mixed in before a linear."""

    lora_A: torch.nn.ModuleDict
    lora_B: torch.nn.ModuleDict
    lora_scale: float
    #: Whether o is two halves, gate and value, each of which is split between the ranks.
    lora_gated: bool
    tp_group: Any

    def forward(self, input_: torch.Tensor, *args: Any, **options: Any) -> Any:
        """As the layer's own, with the adapter's output added."""
        output, bias = super().forward(input_, *args, **options)  # type: ignore[misc]
        gather = options.get("runtime_gather_output")
        only = {} if gather is None else {"runtime_gather_output": gather}
        low = _output(self.lora_A[NAME](input_))
        return output + self.lora_scale * _output(self.lora_B[NAME](low, **only)), bias

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None
    ) -> dict[str, Any]:
        """The layer's own, and the adapter's with the way that each factor is split."""
        whole = super().sharded_state_dict(  # type: ignore[misc]
            prefix, sharded_offsets, metadata
        )
        found = {k: v for k, v in whole.items() if not k.startswith(f"{prefix}lora_")}
        group = inspect.signature(sharded_state_dict_default).parameters.get("tp_group")
        only = {"tp_group": self.tp_group} if group else {}  # Megatron 0.16 and later
        for part in ("lora_A", "lora_B"):
            found |= sharded_state_dict_default(
                getattr(self, part)[NAME],
                f"{prefix}{part}.{NAME}.",
                sharded_offsets,
                metadata,
                **only,
            )
        second = f"{prefix}lora_B.{NAME}.weight"
        if self.lora_gated:
            found[second] = apply_swiglu_sharded_factory(found[second], sharded_offsets)
        return found


def _output(result: Any) -> torch.Tensor:
    """Megatron's layers also return a bias."""
    return result[0] if isinstance(result, tuple) else result  # type: ignore[no-any-return]


_CLASSES: Final[dict[type, type]] = {}


def _adapted(layer: type) -> type:
    if layer not in _CLASSES:
        name = f"Lora{layer.__name__}"
        _CLASSES[layer] = type(name, (_Adapted, layer), {"__module__": __name__})
    return _CLASSES[layer]


def add_adapter(linear: Any, *, rank: int, scale: float, gated: bool) -> None:
    """Give ``linear`` an adapter that changes nothing yet: B is zero.

    The factor on the side that tensor parallelism splits is split as the layer is. The other one
    is the same on every rank; with sequence parallelism, each rank adds its share of its gradient.

    :param linear: a ColumnParallelLinear [o, i] or a RowParallelLinear.
    """
    config = linear.config
    bound = 1 / math.sqrt(linear.input_size)

    def draw(weight: torch.Tensor) -> None:
        torch.nn.init.uniform_(weight, -bound, bound)  # PEFT's choice: Kaiming with a = sqrt(5)

    def whole(features_in: int, features_out: int) -> torch.nn.Linear:
        layer = torch.nn.Linear(
            features_in,
            features_out,
            bias=False,
            device=linear.weight.device,
            dtype=config.params_dtype,
        )
        weight: Any = layer.weight
        split = linear.sequence_parallel and not linear.explicit_expert_comm
        weight.sequence_parallel = split
        weight.allreduce = linear.weight.allreduce
        return layer

    options: dict[str, Any] = {"config": config, "bias": False, "skip_bias_add": True}
    options["is_expert"] = linear.is_expert
    if hasattr(linear, "tp_group"):  # Megatron 0.14 and later
        options["tp_group"] = linear.tp_group
    if isinstance(linear, ColumnParallelLinear):
        first: torch.nn.Module = whole(linear.input_size, rank)
        with torch.no_grad():
            draw(first.weight)  # type: ignore[arg-type]
        second: torch.nn.Module = ColumnParallelLinear(
            rank,
            linear.output_size,
            init_method=torch.nn.init.zeros_,
            gather_output=linear.gather_output,
            **options,
        )
    else:
        first = RowParallelLinear(
            linear.input_size,
            rank,
            init_method=draw,
            input_is_parallel=linear.input_is_parallel,
            **options,
        )
        second = whole(rank, linear.output_size)
        torch.nn.init.zeros_(second.weight)
    linear.lora_A = torch.nn.ModuleDict({NAME: first})
    linear.lora_B = torch.nn.ModuleDict({NAME: second})
    linear.lora_scale = scale
    linear.lora_gated = gated
    linear.__class__ = _adapted(type(linear))
    linear._register_load_state_dict_pre_hook(_from_peft)


def _from_peft(state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """PEFT, and so MindSpeed-LLM, keeps the layer itself one name deeper."""
    for name in ("weight", "bias"):
        if f"{prefix}base_layer.{name}" in state:
            state[f"{prefix}{name}"] = state.pop(f"{prefix}base_layer.{name}")
