"""What all modules have in common.

Source of the names: transformer_engine/pytorch/module/base.py of Transformer Engine 2.13.
"""

from __future__ import annotations

import itertools
import os
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from types import MethodType
from typing import Any, NoReturn

import torch
from torch.distributed.tensor import DTensor

from accel_bridge import BridgeError
from accel_bridge.libraries.main_grad import get_dummy_wgrad

from ..distributed import (
    in_fp8_activation_recompute_phase,
    is_fp8_activation_recompute_enabled,
)
from ..quantization import FP8GlobalStateManager
from ._common import WeightGradStore, _ParameterInitMeta, noop_cat
from ._quantized_state import QuantizedState

__all__ = [
    "TransformerEngineBaseModule",
    "UserBufferQuantizationMode",
    "_dummy_wgrads",
    "destroy_ub",
    "get_dummy_wgrad",
    "initialize_ub",
]

#: Clients empty this table; nothing is kept in it.
_dummy_wgrads: dict[tuple[int, ...], torch.Tensor] = {}
#: Split accumulators of forward, data gradient and weight gradient, unless the recipe says.
_2X_ACC_FPROP = False
_2X_ACC_DGRAD = True
_2X_ACC_WGRAD = True


#: Types of values that are never parameters, buffers or modules.
_PLAIN = frozenset((bool, int, float, str, type(None)))

#: Of modules without a name.
_numbers = itertools.count(1)


class UserBufferQuantizationMode(Enum):
    """What user buffers hold."""

    NONE = "none"
    FP8 = "fp8"


def refuse_user_buffers(asked_for: str) -> NoReturn:
    """:raises BridgeError: always: there are no user buffers."""
    raise BridgeError(
        f"{asked_for} needs Transformer Engine's user buffers, which do not exist here",
        evidence="accel_bridge's shim overlaps communication in the backward pass only",
        next="turn it off (Megatron: no --tp-comm-overlap), or use the real transformer-engine",
    )


def initialize_ub(
    shape: Sequence[int],
    tp_size: int,
    use_fp8: bool = False,
    quantization_modes: Sequence[UserBufferQuantizationMode] | None = None,
    dtype: torch.dtype = torch.bfloat16,
    ub_cfgs: dict[str, Any] | Sequence[dict[str, Any]] | None = None,
    bootstrap_backend: str | None = None,
) -> NoReturn:
    """:raises BridgeError: always: there are no user buffers."""
    refuse_user_buffers("initialize_ub()")


def destroy_ub() -> None:
    """Nothing: there are no user buffers."""


class TransformerEngineBaseModule(QuantizedState):
    """Parallelism, parameters, the frame of a forward pass, delayed weight gradients.

    :param name: shown in messages.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self.name = name
        self.tp_group: Any = None
        self.tp_size = 1
        self.tp_group_initialized = False
        self.sequence_parallel = False
        self.param_init_meta: dict[str, _ParameterInitMeta] = {}
        self.fsdp_wrapped = False
        self.fsdp_group: Any = None
        self.activation_dtype: torch.dtype | None = None
        self.wgrad_accumulation_and_reduce_hooks: list[Callable[[], Any]] = []
        self.wgrad_store: WeightGradStore | None = None
        self.fuse_wgrad_accumulation = False
        self.use_bias = False
        self.bias_names: list[str] = []

        self._validate_name()

    def _validate_name(self) -> None:
        """Give a module without a name a number."""
        if self.name is None:
            self.name = f"Layer_{next(_numbers)}"

    def __setattr__(self, name: str, value: Any) -> None:
        """As torch's, without its search for parameters: callers set flags in every call."""
        if type(value) in _PLAIN and name in self.__dict__:
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    def fast_setattr(self, name: str, value: Any) -> None:
        """Set a plain attribute without torch's checks."""
        self.__dict__[name] = value

    def module_setattr(self, name: str, value: Any) -> None:
        """Set a parameter, buffer or property."""
        super().__setattr__(name, value)

    # Parallelism

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        """The group of tensor parallelism, for a module that was built without it."""
        self.__dict__["tp_group"] = tp_group
        self.__dict__["tp_group_initialized"] = True

    def set_nccl_overlap_warning_if_tp(self) -> None:
        """Warn where the environment may keep communication behind the products."""
        if self.tp_size > 1 and os.getenv("CUDA_DEVICE_MAX_CONNECTIONS", "0") != "1":
            warnings.warn(
                "To guarantee overlapping TP and SP collectives with the backward"
                "GEMMs, set environment variable CUDA_DEVICE_MAX_CONNECTIONS = 1",
                stacklevel=3,
            )

    # Parameters

    def register_parameter(
        self, name: str, param: torch.nn.Parameter | None, **kwargs: Any
    ) -> None:
        """Register a parameter, and how it is initialised.

        :param kwargs: fields of ``_ParameterInitMeta``.
        """
        super().register_parameter(name, param)
        # torch's constructor registers nothing, but subclasses assign parameters at any time.
        if name not in self.__dict__.get("param_init_meta", {name}):
            self.param_init_meta[name] = _ParameterInitMeta(**kwargs)

    def reset_parameters(self, defer_init: bool | None = False) -> None:
        """Set all parameters to initial values; those on the meta device get memory first."""
        if defer_init:
            return
        for name, parameter in list(self.named_parameters(recurse=False)):
            self.module_setattr(name, self._initialized(name, parameter))

    def _initialized(self, name: str, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
        meta = self.param_init_meta[name]
        whole = parameter if isinstance(parameter, DTensor) else None
        local: torch.Tensor = parameter if whole is None else whole._local_tensor
        if local.device.type == "meta":
            local = torch.empty_like(local, device="cuda")
        assert meta.init_fn is not None
        if meta.get_rng_state_tracker is None:
            meta.init_fn(local)
        else:
            tracker = meta.get_rng_state_tracker()
            stream = getattr(self, "rng_tracker_name", None)
            with tracker.fork(stream) if stream else tracker.fork():
                meta.init_fn(local)
        exact = None
        if self.primary_weights_in_fp8 and meta.fp8_meta_index is not None:
            if self.preserve_high_precision_init_val:
                exact = local.detach().cpu()
            local = self._quantized_parameter(local, meta.fp8_meta_index, whole)
        if whole is not None:
            local = DTensor.from_local(
                local,
                device_mesh=whole.device_mesh,
                placements=whole.placements,
                shape=whole.size(),
                stride=whole.stride(),
            )
        result = torch.nn.Parameter(local)
        if exact is not None:
            _remember_exact_values(result, exact)
        return result

    def _quantized_parameter(
        self, local: torch.Tensor, index: int, whole: DTensor | None
    ) -> torch.Tensor:
        quantizer = self.quantizers["scaling_fwd"][index]
        if quantizer is None:
            raise RuntimeError("Weight quantizer has not been initialized")
        quantizer.set_usage(rowwise=True, columnwise=torch.is_grad_enabled())
        quantizer.internal = False
        if whole is not None and hasattr(quantizer, "amax_reduction_group"):
            mesh = whole.device_mesh
            quantizer.amax_reduction_group = (
                mesh.get_group(mesh_dim="shard") if mesh.ndim > 1 else mesh.get_group()
            )
            quantizer.with_amax_reduction = True
        quantized: torch.Tensor = quantizer(local)
        return quantized

    # The forward pass

    def set_activation_dtype(self, inp: torch.Tensor) -> None:
        """The dtype of this call: autocast's, or the input's.

        :raises AssertionError: the parameters have another.
        """
        if torch.is_autocast_enabled(inp.device.type):
            self.__dict__["activation_dtype"] = torch.get_autocast_dtype(inp.device.type)
            return
        dtype = inp.dtype
        if self.activation_dtype == dtype:
            return
        if not self.__dict__.get("allow_different_data_and_param_types", False):
            for name, parameter in self.named_parameters():
                assert dtype == parameter.dtype, (
                    "Data types for parameters must match when outside of autocasted region. "
                    f" Found input dtype: {dtype} and {name!r} dtype: {parameter.dtype}"
                )
        self.__dict__["activation_dtype"] = dtype

    def prepare_forward(
        self,
        inp: torch.Tensor,
        num_gemms: int = 1,
        allow_non_contiguous: bool = False,
        allow_different_data_and_param_types: bool = False,
    ) -> torch.Tensor:
        """The input, contiguous; sets the dtype and the FP8 state of this call."""
        own = self.__dict__
        own["allow_different_data_and_param_types"] = allow_different_data_and_param_types
        own["forwarded_at_least_once"] = True
        if self.fp8 and in_fp8_activation_recompute_phase():
            FP8GlobalStateManager.get_old_fp8_meta_tensors_for_recompute(self.fp8_meta)
        else:
            if self.tp_size > 1:
                assert self.tp_group_initialized, "TP group not initialized."
            self.set_activation_dtype(inp)
            self.init_fp8_metadata(num_gemms=num_gemms)
            self._check_weight_tensor_recipe_correspondence()
            if self.fp8 and self.fp8_meta["recipe"].delayed():
                self._prepare_delayed_scaling()
        if not allow_non_contiguous and not inp.is_contiguous():
            inp = inp.contiguous()
        return inp

    def _prepare_delayed_scaling(self) -> None:
        if self.sequence_parallel:
            assert self.fp8_meta["recipe"].reduce_amax, (
                "Amax reduction across tensor parallel group is "
                "necessary when using sequence parallelism with FP8."
            )
        if not FP8GlobalStateManager.fp8_graph_capturing():
            FP8GlobalStateManager.add_fp8_tensors_to_global_buffer(self.fp8_meta)
        if self.training and is_fp8_activation_recompute_enabled():
            FP8GlobalStateManager.copy_forward_fp8_meta_tensors_for_recompute(self.fp8_meta)

    def end_forward(self) -> None:
        """After a recomputation the newest scales come back."""
        if self.fp8 and self.fp8_meta["recipe"].delayed() and in_fp8_activation_recompute_phase():
            FP8GlobalStateManager.restore_fp8_meta_tensors(self.fp8_meta)

    @contextmanager
    def prepare_forward_ctx(
        self,
        inp: torch.Tensor,
        num_gemms: int = 1,
        allow_non_contiguous: bool = False,
        allow_different_data_and_param_types: bool = False,
    ) -> Iterator[torch.Tensor]:
        """:meth:`prepare_forward` and :meth:`end_forward` around a forward pass."""
        inp = self.prepare_forward(
            inp, num_gemms, allow_non_contiguous, allow_different_data_and_param_types
        )
        try:
            yield inp
        finally:
            self.end_forward()

    @abstractmethod
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Needs override."""

    # Delayed weight gradients

    def register_wgrad_accumulation_and_reduce_hooks(
        self, wgrad_accumulation_and_reduce_hook: Callable[[], Any]
    ) -> None:
        """Call this function at the end of :meth:`backward_dw`."""
        self.wgrad_accumulation_and_reduce_hooks.append(wgrad_accumulation_and_reduce_hook)

    def need_backward_dw(self) -> bool:
        """Whether weight gradients wait for :meth:`backward_dw`."""
        return self.wgrad_store is not None and self.wgrad_store.delay_wgrad_compute()

    def backward_dw(self) -> None:
        """Compute the oldest delayed weight gradient."""
        if not self.need_backward_dw():
            return
        assert self.wgrad_store is not None
        (gradient, bias_gradient), _ = self.wgrad_store.pop()
        if gradient is not None:
            _add_gradient(noop_cat(self._get_weight_tensors()), gradient)
        if bias_gradient is not None:
            _add_gradient(
                noop_cat([getattr(self, name) for name in self.bias_names]), bias_gradient
            )
        self._trigger_wgrad_accumulation_and_reduce_hooks()

    def _trigger_wgrad_accumulation_and_reduce_hooks(self) -> None:
        for hook in self.wgrad_accumulation_and_reduce_hooks:
            hook()


def _add_gradient(parameter: torch.Tensor, gradient: torch.Tensor) -> None:
    gradient = gradient.to(parameter.dtype)
    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


def _remember_exact_values(parameter: Any, exact: torch.Tensor) -> None:
    """Optimizers start their float32 weights from what the weight was before it was rounded."""

    def get(self: Any) -> torch.Tensor | None:
        return getattr(self, "_high_precision_init_val", None)

    def clear(self: Any) -> None:
        if hasattr(self, "_high_precision_init_val"):
            del self._high_precision_init_val

    parameter._high_precision_init_val = exact
    parameter.get_high_precision_init_val = MethodType(get, parameter)
    parameter.clear_high_precision_init_val = MethodType(clear, parameter)
