"""A linear layer."""

from __future__ import annotations

from typing import Any

import torch

from .basic import AllReduce, BasicLinear, Bias, ReduceScatter
from .basic._weights import Group, RNGTracker
from .op import FusedOperation


class Linear(FusedOperation):
    """``x @ weight^T + bias``: stands for a :class:`BasicLinear`, a :class:`Bias`, and under
    ``row`` the sum over ranks.

    :param in_features: over all ranks of ``tensor_parallel_group``, as ``out_features``.
    :param tensor_parallel_mode: ``column`` divides the outputs among the ranks, ``row`` the inputs.
    :param sequence_parallel: divide the tensor that is not divided by features by its rows.
    :param rng_state_tracker_function: gives the generators that draw the initial values.
    :param accumulate_into_main_grad: add the weight's gradient to ``weight.main_grad``.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        tensor_parallel_mode: str | None = None,
        tensor_parallel_group: Group | None = None,
        sequence_parallel: bool = False,
        rng_state_tracker_function: RNGTracker | None = None,
        accumulate_into_main_grad: bool = False,
    ) -> None:
        mode, group, size, sequence_parallel, local_in, local_out = (
            BasicLinear._canonicalize_tensor_parallelism(
                mode=tensor_parallel_mode,
                process_group=tensor_parallel_group,
                sequence_parallel=sequence_parallel,
                in_features=in_features,
                out_features=out_features,
            )
        )
        # Under `row` the bias is added before the sum, so each rank adds its part of it.
        row = mode == "row"
        ops: list[Any] = [
            BasicLinear(
                local_in if row else in_features,
                local_out if row else out_features,
                device=device,
                dtype=dtype,
                tensor_parallel_mode=None if row else mode,
                tensor_parallel_group=None if row else group,
                sequence_parallel=sequence_parallel and not row,
                rng_state_tracker_function=rng_state_tracker_function,
                accumulate_into_main_grad=accumulate_into_main_grad,
            )
        ]
        if bias:
            ops.append(
                Bias(
                    out_features * size if row else out_features,
                    device=device,
                    dtype=dtype,
                    tensor_parallel=mode is not None,
                    tensor_parallel_group=group,
                )
            )
        if row:
            ops.append(ReduceScatter(group) if sequence_parallel else AllReduce(group))
        super().__init__(ops)
        self._linear_idx = 0
        self._bias_idx = 1 if bias else None
        self.register_parameter("weight", ops[0].weight)
        self.register_parameter("bias", ops[1].bias if bias else None)

    def register_parameter(self, name: str, param: torch.nn.Parameter | None) -> None:
        """Set a parameter here and in the operation that owns it.

        :raises ValueError: a bias for a layer without one.
        """
        if name == "bias" and self._bias_idx is None and param is not None:
            raise ValueError(
                "Attempted to set bias parameter in Linear operation "
                "that does not have bias enabled"
            )
        super().register_parameter(name, param)
        if name == "weight":
            self.basic_ops[self._linear_idx].weight = param
        elif name == "bias" and self._bias_idx is not None:
            self.basic_ops[self._bias_idx].bias = param

    def state_dict(  # type: ignore[override]
        self, *args: Any, prefix: str = "", **kwargs: Any
    ) -> dict[str, Any]:
        """Parameters under their owners' names only."""
        state: dict[str, Any] = super().state_dict(*args, prefix=prefix, **kwargs)
        for name in ("weight", "bias"):
            state.pop(f"{prefix}{name}", None)
        return state

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        for name, index in (("weight", self._linear_idx), ("bias", self._bias_idx)):
            if f"{prefix}{name}" not in state_dict:
                owner = f"{prefix}basic_ops.{index}.{name}"
                state_dict[f"{prefix}{name}"] = None if index is None else state_dict[owner]
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
