"""Adam's states: as they are in float32 and bfloat16, scaled in float16 and FP8."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch

#: States that a parameter may have.
STATES: Final = ("exp_avg", "exp_avg_sq", "master_param")
#: Largest magnitude that a scaled state gets.
_RANGES: Final = {torch.float16: torch.finfo(torch.float16).max / 2.0, torch.uint8: 448.0}


class AdamStates(torch.optim.Optimizer):
    """An optimizer that keeps a parameter's states in the precisions that it was made with."""

    master_weights: Any
    store_param_remainders: bool
    name_to_dtype_map: dict[str, torch.dtype]
    _scales: dict[torch.Tensor, dict[str, torch.Tensor]]

    def _is_scaled(self, name: str) -> bool:
        if name == "master_param" and not self.master_weights:
            return False
        return self.name_to_dtype_map[name] in _RANGES

    def get_unscaled_state(
        self, param: torch.Tensor, state_name: str, skip_unscale: bool = False
    ) -> torch.Tensor:
        """A state in float32; float32 states and remainders themselves, others as a copy.

        :param state_name: ``exp_avg``, ``exp_avg_sq`` or ``master_param``.
        :param skip_unscale: give a bfloat16 state itself.
        """
        state: torch.Tensor = self.state[param][state_name]
        dtype = self.name_to_dtype_map[state_name]
        if dtype is torch.float32 or (dtype is torch.bfloat16 and skip_unscale):
            return state
        unscaled = state.float()
        if dtype is torch.float16:
            unscaled.mul_(self._scales[param][state_name])
        return unscaled

    def set_scaled_state(
        self, param: torch.Tensor, state_name: str, unscaled_state: torch.Tensor
    ) -> None:
        """Set a state from its float32 value (int16 for remainders), scaled where it must be."""
        remainders = state_name == "master_param" and self._keeps_remainder(param)
        expected = torch.int16 if remainders else torch.float32
        assert unscaled_state.dtype == expected, f"{state_name} is {unscaled_state.dtype}"
        if state_name not in self.state[param]:
            self._initialize_state(param, state_name, False, remainders)
        if self.name_to_dtype_map[state_name] is torch.float32:
            self.state[param][state_name].copy_(unscaled_state)
        else:
            self._apply_scale(param, state_name, unscaled_state)

    @torch.no_grad()
    def _apply_scale(self, param: torch.Tensor, name: str, unscaled: torch.Tensor) -> None:
        """Scale a float32 value to its state's range and store it."""
        state = self.state[param][name]
        dtype = self.name_to_dtype_map[name]
        if dtype is torch.bfloat16:
            state.copy_(unscaled)
            return
        unscaled = unscaled.to(state.device)
        scale = self._scales[param][name]
        least, most = torch.aminmax(unscaled) if unscaled.numel() else (scale[0] * 0,) * 2
        scale.copy_(torch.maximum(-least, most) / _RANGES[dtype])
        if dtype is torch.uint8:
            # FP8 tensors keep the factor, not the divisor, and scale by it themselves.
            state._quantizer.scale.copy_(1 / scale)
            state.copy_(unscaled)
        else:
            state.copy_(unscaled * torch.where(scale > 0, scale.reciprocal(), 0.0))

    def _initialize_state(
        self,
        param: torch.Tensor,
        state_name: str,
        zero_buffer: bool,
        store_param_remainders: bool = False,
    ) -> None:
        dtype = self.name_to_dtype_map[state_name]
        like = param.dequantize() if is_quantized(param) else param.detach()
        if store_param_remainders:
            data = torch.zeros_like(like, dtype=torch.int16)
        elif zero_buffer:
            data = torch.zeros_like(like, dtype=dtype)
        else:
            data = torch.empty_like(like, dtype=dtype)
        if dtype is torch.uint8:
            data = _fp8_state(data)
        self.state[param][state_name] = data
        if dtype is not torch.float32:
            scales = self._scales.setdefault(param, {})
            scales[state_name] = torch.ones(1, dtype=torch.float32, device=param.device)

    def initialize_state(
        self, param: torch.Tensor, store_param_remainders: bool | None = None
    ) -> None:
        """Give a parameter the states of step 0.

        :param store_param_remainders: as the constructor's; None for what it says.
        """
        if store_param_remainders is None:
            store_param_remainders = self._keeps_remainder(param)
        self._initialize_state(param, "exp_avg", zero_buffer=True)
        self._initialize_state(param, "exp_avg_sq", zero_buffer=True)
        if self.master_weights:
            self._initialize_state(param, "master_param", False, store_param_remainders)
            if not store_param_remainders:
                self.set_scaled_state(param, "master_param", param.detach().clone().float())

    def _keeps_remainder(self, param: torch.Tensor) -> bool:
        return self.store_param_remainders and param.dtype is torch.bfloat16

    def state_dict(self) -> dict[str, Any]:
        """As torch's, with every state in float32 (remainders in int16)."""
        state_dict = super().state_dict()
        saved = state_dict["state"]
        for index, param in self._numbered(state_dict):
            if index in saved:
                saved[index] = {name: self.get_unscaled_state(param, name) for name in saved[index]}
        return state_dict

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, but states get this optimizer's precisions, not the parameters'."""
        super().load_state_dict(state_dict)
        saved = state_dict["state"]
        for index, param in self._numbered(state_dict):
            if index not in saved:
                continue
            self.state[param] = {}
            for name, value in saved[index].items():
                if value is None:
                    continue
                whole = name == "master_param" and self._keeps_remainder(param)
                self.set_scaled_state(param, name, value if whole else value.float())

    def _numbered(self, state_dict: dict[str, Any]) -> Iterator[tuple[Any, torch.Tensor]]:
        """The parameters with the numbers that ``state_dict`` gives them."""
        for saved, group in zip(state_dict["param_groups"], self.param_groups, strict=True):
            yield from zip(saved["params"], group["params"], strict=True)


def is_quantized(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one of the FP8 classes."""
    # The FP8 modules are not loaded for plain parameters.
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return False
    from ..quantized_tensor import QuantizedTensor

    return isinstance(tensor, QuantizedTensor)


def _fp8_state(zeros: torch.Tensor) -> torch.Tensor:
    """A state in E4M3 of the shape of ``zeros``, all zero."""
    from ..constants import TE_DType
    from ..tensor.float8_tensor import Float8Quantizer

    quantizer = Float8Quantizer(
        scale=torch.ones(1, dtype=torch.float32, device=zeros.device),
        amax=torch.zeros(1, dtype=torch.float32, device=zeros.device),
        fp8_dtype=TE_DType[torch.float8_e4m3fn],
    )
    state: Any = quantizer.make_empty(zeros.shape)
    state.quantize_(torch.zeros_like(zeros, dtype=torch.float32))
    return state  # type: ignore[no-any-return]
