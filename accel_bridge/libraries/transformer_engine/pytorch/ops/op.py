"""What an operation is: single ones, and fusions of them."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from ..quantized_tensor import Quantizer
from ._extra_state import pack_extra_state, unpack_extra_state
from ._recipe_state import QuantizerState

#: Gradients of one operation's parameters, or of its extra inputs.
Gradients = Iterable[torch.Tensor | None]


@dataclass
class OperationContext:
    """What an operation keeps from its forward pass for its backward pass."""

    #: In the backward pass: what ``to_save`` held.
    saved_tensors: tuple[Any, ...] | None = None
    #: Set by the forward pass.
    to_save: tuple[Any, ...] | None = None
    #: Place in the pipeline's list of saved tensors.
    _saved_tensors_range: tuple[int, int] | None = None
    #: Whether there will be a backward pass.
    requires_grad: bool = True

    if TYPE_CHECKING:
        # Each operation keeps what it needs under names of its own.
        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep ``tensors``; called in the forward pass."""
        self.to_save = tensors


class FusibleOperation(torch.nn.Module, metaclass=ABCMeta):
    """An operation that a pipeline can run."""

    #: Makes a chain of operations; the module ``fuser``, which imports this one, sets it.
    _chain: ClassVar[type[Any]]

    @property
    @abstractmethod
    def is_fused_op(self) -> bool:
        """Whether it stands for several single operations."""

    def pre_first_fuser_forward(self) -> None:
        """Called before the pipeline's first forward pass."""

    def pre_fuser_forward(self, *, requires_grad: bool) -> None:
        """Called before each forward pass of the pipeline."""

    def get_input_quantizer(self) -> Quantizer | None:
        """What quantizes its input, if anything does."""
        return None

    def get_grad_output_quantizer(self) -> Quantizer | None:
        """What quantizes the gradient of its output, if anything does."""
        return None

    def fuser_forward(
        self,
        basic_op_ctxs: list[OperationContext],
        input_: torch.Tensor,
        *,
        basic_op_extra_inputs: list[tuple[torch.Tensor, ...]],
        prev_op_grad_output_quantizer: Quantizer | None,
        next_op_input_quantizer: Quantizer | None,
        basic_op_kwargs: list[dict[str, Any]],
    ) -> tuple[torch.Tensor, Iterable[Iterable[torch.Tensor]]]:
        """Forward pass, called by the pipeline; each list has an entry per single operation.

        :param prev_op_grad_output_quantizer: of the operation before this one.
        :param next_op_input_quantizer: of the operation after this one.
        :returns: the output, and the extra outputs of each single operation.
        """
        raise NotImplementedError(f"{type(self).__name__} has no forward pass")

    def fuser_backward(
        self,
        basic_op_ctxs: list[OperationContext],
        grad_output: torch.Tensor,
        *,
        basic_op_grad_extra_outputs: list[tuple[torch.Tensor, ...]],
    ) -> tuple[torch.Tensor | None, Iterable[Gradients], Iterable[Gradients]]:
        """Backward pass, called by the pipeline; each list has an entry per single operation.

        :returns: the gradients of the input, of each single operation's parameters, and of each
            single operation's extra inputs.
        """
        raise NotImplementedError(f"{type(self).__name__} has no backward pass")


class BasicOperation(QuantizerState, FusibleOperation, metaclass=ABCMeta):
    """A single operation. It owns parameters and state, even when a fusion computes for it."""

    #: Extra tensors that it takes.
    num_extra_inputs: int = 0
    #: Extra tensors that it returns.
    num_extra_outputs: int = 0

    @property
    def is_fused_op(self) -> bool:
        """A single operation is none."""
        return False

    def get_input_quantizer(self) -> Quantizer | None:
        """The first quantizer of the forward pass."""
        return self.get_quantizer("forward", 0) if self.num_quantizers("forward") else None

    def get_grad_output_quantizer(self) -> Quantizer | None:
        """The first quantizer of the backward pass."""
        return self.get_quantizer("backward", 0) if self.num_quantizers("backward") else None

    @abstractmethod
    def op_forward(
        self,
        ctx: OperationContext,
        input_: torch.Tensor,
        *,
        prev_op_grad_output_quantizer: Quantizer | None,
        next_op_input_quantizer: Quantizer | None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Forward pass of an operation without extra inputs and outputs."""

    @abstractmethod
    def op_backward(
        self, ctx: OperationContext, grad_output: torch.Tensor
    ) -> tuple[torch.Tensor | None, Gradients]:
        """Backward pass of an operation without extra inputs and outputs.

        :returns: the gradients of the input and of the parameters.
        """

    def _refuse_extra_tensors(self, override: str) -> None:
        if self.num_extra_inputs or self.num_extra_outputs:
            raise RuntimeError(
                f"{type(self).__name__} has {self.num_extra_inputs} extra inputs and "
                f"{self.num_extra_outputs} extra outputs: it should override `{override}`"
            )

    def fuser_forward(
        self,
        basic_op_ctxs: list[OperationContext],
        input_: torch.Tensor,
        *,
        basic_op_extra_inputs: list[tuple[torch.Tensor, ...]],
        prev_op_grad_output_quantizer: Quantizer | None,
        next_op_input_quantizer: Quantizer | None,
        basic_op_kwargs: list[dict[str, Any]],
    ) -> tuple[torch.Tensor, Iterable[Iterable[torch.Tensor]]]:
        """:meth:`op_forward`, as the pipeline calls it."""
        self._refuse_extra_tensors("fuser_forward")
        output = self.op_forward(
            basic_op_ctxs[0],
            input_,
            prev_op_grad_output_quantizer=prev_op_grad_output_quantizer,
            next_op_input_quantizer=next_op_input_quantizer,
            **basic_op_kwargs[0],
        )
        return output, [()]

    def fuser_backward(
        self,
        basic_op_ctxs: list[OperationContext],
        grad_output: torch.Tensor,
        *,
        basic_op_grad_extra_outputs: list[tuple[torch.Tensor, ...]],
    ) -> tuple[torch.Tensor | None, Iterable[Gradients], Iterable[Gradients]]:
        """:meth:`op_backward`, as the pipeline calls it."""
        self._refuse_extra_tensors("fuser_backward")
        grad_input, grad_params = self.op_backward(basic_op_ctxs[0], grad_output)
        return grad_input, [grad_params], [()]

    def forward(self, input: torch.Tensor, *extra_inputs: torch.Tensor, **kwargs: Any) -> Any:
        """Run it as a pipeline of its own."""
        return self._chain([self])(input, *extra_inputs, basic_op_kwargs=[kwargs])

    def get_extra_state(self) -> torch.Tensor:
        """The quantizers' state as bytes; empty without any."""
        return pack_extra_state(self._fp8_metas)

    def set_extra_state(self, state: torch.Tensor | None) -> None:
        """Restore what :meth:`get_extra_state` returned, here or in Transformer Engine."""
        unpack_extra_state(self, state)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        # Before the parameters: copying into a quantized one uses the scale in the extra state.
        key = prefix + "_extra_state"
        if key in state_dict:
            self.set_extra_state(state_dict[key])
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


class FusedOperation(FusibleOperation):
    """Several single operations that compute as one; stateless.

    :param basic_ops: what it stands for, in order.
    :raises ValueError: there are none.
    """

    #: A ModuleList, whose entries torch takes for any modules.
    basic_ops: Any

    def __init__(self, basic_ops: Iterable[FusibleOperation]) -> None:
        super().__init__()
        self.basic_ops = torch.nn.ModuleList(basic_ops)
        if not self.basic_ops:
            raise ValueError(
                "Attempted to construct a fused operation "
                "without specifying its corresponding basic operations"
            )

    @property
    def is_fused_op(self) -> bool:
        """It stands for several operations."""
        return True

    def get_input_quantizer(self) -> Quantizer | None:
        """That of the first operation."""
        quantizer: Quantizer | None = self.basic_ops[0].get_input_quantizer()
        return quantizer

    def get_grad_output_quantizer(self) -> Quantizer | None:
        """That of the last operation."""
        quantizer: Quantizer | None = self.basic_ops[-1].get_grad_output_quantizer()
        return quantizer

    def pre_first_fuser_forward(self) -> None:
        """Passed on to each operation."""
        for op in self.basic_ops:
            op.pre_first_fuser_forward()

    def pre_fuser_forward(self, *, requires_grad: bool) -> None:
        """Passed on to each operation."""
        for op in self.basic_ops:
            op.pre_fuser_forward(requires_grad=requires_grad)

    def forward(
        self,
        input: torch.Tensor,
        *extra_inputs: torch.Tensor,
        basic_op_kwargs: list[dict[str, Any]] | None = None,
    ) -> Any:
        """Run it as a pipeline of its own."""
        kwargs = basic_op_kwargs or [{} for _ in self.basic_ops]
        return self._chain([self])(input, *extra_inputs, basic_op_kwargs=kwargs)
