"""What a quantized tensor holds, and what makes it.

Source: transformer_engine/pytorch/quantized_tensor.py of Transformer Engine 2.13.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from .tensor._quantization_helpers import _QuantizeFunc

if TYPE_CHECKING:
    from typing import Self

aten = torch.ops.aten


def missing(owner: object, method: str) -> NoReturn:
    """:raises NotImplementedError: the class of ``owner`` lacks a method."""
    raise NotImplementedError(f"{type(owner).__name__} class does not implement {method}")


class QuantizedTensorStorage:
    """The numbers and scales of a quantized tensor, without a tensor's interface.

    A quantized tensor class inherits from its storage class and from :class:`QuantizedTensor`.
    Storages are for use inside autograd functions, where they cost less.
    """

    _quantizer: Any

    def update_usage(
        self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
    ) -> None:
        """Make or drop the copies that products read by rows or by columns; None leaves one."""
        missing(self, "update_usage")

    def get_usages(self) -> dict[str, bool]:
        """Which copies there are."""
        missing(self, "get_usages")

    def get_metadata(self) -> dict[str, Any]:
        """Keyword arguments that make another tensor of the same parts."""
        missing(self, "get_metadata")

    def get_data_tensors(self, rowwise_data: bool = True, columnwise_data: bool = True) -> Any:
        """The copies' tensors: both, or the one asked for."""
        missing(self, "get_data_tensors")

    def clear(self) -> None:
        """Release the memory."""
        missing(self, "clear")

    def prepare_for_saving(self) -> tuple[list[torch.Tensor | None], Self]:
        """Take the tensors out, for ``save_for_backward``; what is left refers to none."""
        missing(self, "prepare_for_saving")

    def dequantize(self, *, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The numbers as an ordinary tensor."""
        missing(self, "dequantize")

    def restore_from_saved(
        self, tensors: Sequence[torch.Tensor | None]
    ) -> Sequence[torch.Tensor | None]:
        """Put them back; returns those that belong to others."""
        missing(self, "restore_from_saved")

    def _get_quantizer(self) -> Any:
        return self._build_default_quantizer() if self._quantizer is None else self._quantizer

    def _build_default_quantizer(self) -> Quantizer:
        raise ValueError(
            f"{type(self).__name__} has no quantizer "
            "and no default quantizer is available defined in the subclass."
        )

    def quantize_(self, tensor: torch.Tensor, *, noop_flag: torch.Tensor | None = None) -> Self:
        """Overwrite with ``tensor``, unless ``noop_flag`` holds a 1."""
        self._get_quantizer().update_quantized(tensor, self, noop_flag=noop_flag)
        return self

    def update_quantizer(self, quantizer: Quantizer) -> None:
        """Replace the quantizer.

        :raises RuntimeError: there was none.
        """
        if self._quantizer is None:
            raise RuntimeError("To be updated, quantizer must be set")
        if self._quantizer is not quantizer:
            warnings.warn(
                "Quantizer is being updated, this may affect model behavior", stacklevel=2
            )
            self._quantizer = quantizer

    def copy_from_storage(self, src: QuantizedTensorStorage) -> None:
        """Copy another storage's numbers and scales, without rounding."""
        missing(self, "copy_from_storage")


def prepare_for_saving(*tensors: Any) -> tuple[list[Any], list[Any]]:
    """What ``save_for_backward`` takes, and what :func:`restore_from_saved` needs besides."""
    parts: list[Any] = []
    owners: list[Any] = []
    for tensor in tensors:
        if tensor is None or isinstance(tensor, torch.Tensor):
            parts.append(tensor)
            owners.append(None)
        else:
            own, owner = tensor.prepare_for_saving()
            parts += own
            owners.append(owner)
    return parts, owners


def restore_from_saved(
    tensors: list[Any], saved_tensors: Sequence[Any], return_saved_tensors: bool = False
) -> Any:
    """The tensors that :func:`prepare_for_saving` took apart; and the rest, if asked for."""
    restored = []
    rest = list(saved_tensors)
    for owner in tensors:
        if owner is None or isinstance(owner, torch.Tensor):
            restored.append(rest.pop(0))
        else:
            rest = list(owner.restore_from_saved(rest))
            restored.append(owner)
    return (restored, rest) if return_saved_tensors else restored


class Quantizer:
    """Makes quantized tensors.

    :param rowwise: make the copy that products read by rows.
    :param columnwise: make the copy that products read by columns.

    ``internal`` asks for storages instead of tensors; ``optimize_for_gemm`` says that nothing but
    products will read the result.
    """

    def __init__(self, *, rowwise: bool, columnwise: bool) -> None:
        self.rowwise_usage = rowwise
        self.columnwise_usage = columnwise
        self.internal = False
        self.optimize_for_gemm = False

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(rowwise_usage={self.rowwise_usage}, "
            f"columnwise_usage={self.columnwise_usage}, internal={self.internal})"
        )

    def update_quantized(
        self, src: torch.Tensor, dst: Any, *, noop_flag: torch.Tensor | None = None
    ) -> Any:
        """Quantize ``src`` into ``dst``."""
        missing(self, "update_quantized")

    def quantize(
        self, tensor: torch.Tensor, *, out: Any = None, dtype: torch.dtype | None = None
    ) -> Any:
        """A quantized copy, or ``out`` overwritten."""
        if out is not None:
            return self.update_quantized(tensor, out)
        if not self.internal and torch.is_grad_enabled():
            return _QuantizeFunc.apply(tensor, self.quantize_impl)  # type: ignore[no-untyped-call]
        return self.quantize_impl(tensor)

    def quantize_impl(self, tensor: torch.Tensor) -> Any:
        """A quantized copy that autograd does not see."""
        missing(self, "quantize_impl")

    def multi_quantize(self, list_of_tensors: Iterable[torch.Tensor]) -> list[Any]:
        """A quantized copy of each."""
        return [self.quantize(tensor) for tensor in list_of_tensors]

    def __call__(self, tensor: torch.Tensor) -> Any:
        return self.quantize(tensor)

    def copy(self) -> Self:
        """A quantizer that shares its scales with this one."""
        missing(self, "copy")

    def make_empty(
        self,
        shape: Iterable[int],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> Any:
        """A quantized tensor that holds nothing yet."""
        missing(self, "make_empty")

    def calibrate(self, tensor: torch.Tensor) -> None:
        """Learn scales from ``tensor`` without quantizing it."""

    def set_usage(self, *, rowwise: bool | None = None, columnwise: bool | None = None) -> None:
        """Choose the copies to make; None leaves one as it is."""
        if rowwise is not None:
            self.rowwise_usage = rowwise
        if columnwise is not None:
            self.columnwise_usage = columnwise

    def get_usages(self) -> dict[str, bool]:
        """Which copies are made."""
        return {"rowwise": self.rowwise_usage, "columnwise": self.columnwise_usage}

    def _get_compatible_recipe(self) -> Any:
        missing(self, "_get_compatible_recipe")

    def supports_only_rowwise_all_gather(self) -> bool:
        """Whether a gathered tensor's other copy is made afterwards."""
        return False

    def is_quantizable(self, inp: torch.Tensor) -> bool:
        """Whether each rank's part can be quantized by itself."""
        return True
