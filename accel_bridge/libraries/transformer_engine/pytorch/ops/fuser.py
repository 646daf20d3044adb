"""Runs a chain of operations as one node of autograd's graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import torch

from ..quantization import FP8GlobalStateManager, Recipe
from ..quantized_tensor import prepare_for_saving, restore_from_saved
from .op import BasicOperation, FusedOperation, FusibleOperation, OperationContext

#: ``func(ops, *, recipe) -> ops``: puts fused operations in place of some of ``ops``.
OperationFusionFunction: TypeAlias = Callable[..., list[FusibleOperation]]
#: An operation, and the places of the single operations that it stands for.
Step: TypeAlias = tuple[FusibleOperation, list[int]]


def _parts(values: Sequence[Any], counts: Iterable[int]) -> list[tuple[Any, ...]]:
    """``values`` in consecutive parts of ``counts`` each."""
    ends = list(accumulate(counts, initial=0))
    return [tuple(values[a:b]) for a, b in pairwise(ends)]


def _flat(groups: Sequence[Iterable[Any] | None], counts: Sequence[int], what: str) -> list[Any]:
    """The entries of all groups; a missing group counts as Nones.

    :raises RuntimeError: an operation returned more or fewer than it declared.
    """
    flat: list[Any] = []
    for index, (group, count) in enumerate(zip(groups, counts, strict=True)):
        values = [None] * count if group is None else list(group)
        if len(values) != count:
            raise RuntimeError(
                f"Expected op {index} to generate {count} {what}, but got {len(values)}"
            )
        flat.extend(values)
    return flat


def _history_len(recipe: Any) -> int:
    """Of delayed scaling; 0 for other recipes."""
    return recipe.amax_history_len if recipe is not None and recipe.delayed() else 0


class _OperationFuserAutogradFunction(torch.autograd.Function):
    """The whole chain: fusions may differ between its forward and its backward pass."""

    @staticmethod
    def forward(
        func_ctx: Any,
        input_: torch.Tensor,
        fuser: OperationFuser,
        basic_op_kwargs: list[dict[str, Any]],
        *params_and_extra_inputs: torch.Tensor,
    ) -> Any:
        """:param func_ctx: None when nothing needs gradients."""
        for tensor in (input_, *params_and_extra_inputs):
            tensor._do_not_clear = True  # type: ignore[attr-defined]
        ctxs = [OperationContext() for _ in fuser._basic_ops]
        first = fuser.first_op_requiring_backward
        for index, ctx in enumerate(ctxs):
            ctx.requires_grad = index >= first
        start = len(params_and_extra_inputs) - fuser.num_extra_inputs
        extra_inputs = _parts(params_and_extra_inputs[start:], fuser._basic_op_num_extra_inputs)
        x, extra_outputs = fuser._run(ctxs, input_, extra_inputs, basic_op_kwargs)
        if func_ctx is not None:
            fuser._save(func_ctx, ctxs)
            func_ctx.num_extra_outputs = len(extra_outputs)
        for tensor in (x, *extra_outputs):
            tensor._do_not_clear = True  # type: ignore[attr-defined]
        x.requires_grad_(first < len(ctxs))
        return (x, *extra_outputs) if extra_outputs else x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        func_ctx: Any, grad_output: torch.Tensor, *grad_extra_outputs: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        """Gradients of the input, of the parameters, and of the extra inputs."""
        ops: list[BasicOperation] = func_ctx.basic_ops
        ctxs: list[OperationContext] = func_ctx.basic_op_ctxs
        saved = restore_from_saved(func_ctx.tensor_objects, func_ctx.saved_tensors)
        for ctx in ctxs:
            assert ctx._saved_tensors_range is not None
            ctx.saved_tensors = tuple(saved[slice(*ctx._saved_tensors_range)])
            ctx._saved_tensors_range = None
        # An operation that is done frees what it saved.
        del saved
        if len(grad_extra_outputs) != func_ctx.num_extra_outputs:
            raise ValueError(
                f"Expected grads for {func_ctx.num_extra_outputs} extra tensor outputs, "
                f"but got {len(grad_extra_outputs)}"
            )
        grad_extras = _parts(grad_extra_outputs, [op.num_extra_outputs for op in ops])
        dx: torch.Tensor | None = grad_output
        grad_params: list[Any] = [None] * len(ops)
        grad_extra_inputs: list[Any] = [None] * len(ops)
        for op, places in reversed(func_ctx.backward_ops):
            if not any(ctxs[place].requires_grad for place in places):
                dx = None
                break
            dx, of_params, of_extra_inputs = op.fuser_backward(
                [ctxs[place] for place in places],
                dx,
                basic_op_grad_extra_outputs=[grad_extras[place] for place in places],
            )
            # Custom operations may return fewer entries.
            for place, gradients in zip(places, of_params, strict=False):
                grad_params[place] = gradients
                ctxs[place].saved_tensors = None
            for place, gradients in zip(places, of_extra_inputs, strict=False):
                grad_extra_inputs[place] = gradients
        params = _flat(grad_params, func_ctx.basic_op_num_params, "param grads")
        extras = _flat(
            grad_extra_inputs, [op.num_extra_inputs for op in ops], "grads for extra inputs"
        )
        if func_ctx.is_first_module and not FP8GlobalStateManager.fp8_graph_capturing():
            FP8GlobalStateManager.reduce_and_update_fp8_tensors(forward=False)
        return (dx, None, None, *params, *extras)


class OperationFuser:
    """A chain of operations.

    :param ops: single or fused operations, in order.
    """

    #: Tried in order when a chain is first run, or run in another way.
    forward_fusion_functions: list[OperationFusionFunction] = []  # noqa: RUF012
    backward_fusion_functions: list[OperationFusionFunction] = []  # noqa: RUF012

    def __init__(self, ops: Sequence[FusibleOperation]) -> None:
        self._basic_ops: list[BasicOperation] = []
        for op in ops:
            self._basic_ops.extend(op.basic_ops if op.is_fused_op else [op])  # type: ignore
        self._num_basic_ops = len(self._basic_ops)
        self._basic_op_num_extra_inputs = [op.num_extra_inputs for op in self._basic_ops]
        self.num_extra_inputs = sum(self._basic_op_num_extra_inputs)
        # Set by maybe_fuse_ops.
        self._forward_ops: list[Step] = []
        self._backward_ops: list[Step] = []
        #: How the chain was last run: kind of recipe, and first operation with a backward pass.
        self.recipe_type: type | None = None
        self.first_op_requiring_backward = 0
        self._last_amax_history_len = 0
        self._basic_op_params = [list(op.parameters()) for op in self._basic_ops]
        self._basic_op_num_params = [len(params) for params in self._basic_op_params]
        self._flat_basic_op_params = [p for params in self._basic_op_params for p in params]

    @classmethod
    def _fuse_ops(
        cls,
        basic_ops: Sequence[BasicOperation],
        fusion_funcs: Iterable[OperationFusionFunction],
        recipe: Recipe | None,
    ) -> list[Step]:
        """The steps that the fusion functions make of ``basic_ops``.

        :raises RuntimeError: they do not stand for ``basic_ops``, in order.
        """
        ops: list[FusibleOperation] = list(basic_ops)
        for function in fusion_funcs:
            ops = function(ops, recipe=recipe)
        steps: list[Step] = []
        covered: list[Any] = []
        for op in ops:
            parts = list(op.basic_ops) if isinstance(op, FusedOperation) else [op]
            steps.append((op, list(range(len(covered), len(covered) + len(parts)))))
            covered.extend(parts)
        same = len(covered) == len(basic_ops)
        if not same or any(a is not b for a, b in zip(covered, basic_ops, strict=True)):
            raise RuntimeError(
                "Found mismatch after fusing operations "
                f"(basic_ops={[type(op).__name__ for op in basic_ops]}, "
                f"fused_ops={[type(op).__name__ for op in ops]})"
            )
        return steps

    def _first_with_backward(
        self,
        is_grad_enabled: bool,
        input_: torch.Tensor,
        extra_inputs: Sequence[Iterable[torch.Tensor]],
    ) -> int:
        if not is_grad_enabled:
            return self._num_basic_ops
        if input_.requires_grad:
            return 0
        for index, params in enumerate(self._basic_op_params):
            if any(tensor.requires_grad for tensor in (*params, *extra_inputs[index])):
                return index
        return self._num_basic_ops

    def maybe_fuse_ops(
        self,
        is_grad_enabled: bool,
        recipe: Recipe | None,
        input_: torch.Tensor,
        extra_inputs: Sequence[Iterable[torch.Tensor]],
    ) -> None:
        """Choose the steps again if the chain is run in another way than the last time."""
        first = self._first_with_backward(is_grad_enabled, input_, extra_inputs)
        history = _history_len(recipe)
        same = (type(recipe), first) == (self.recipe_type, self.first_op_requiring_backward)
        if same and (not history or history == self._last_amax_history_len):
            return
        for op in self._basic_ops:
            op.reset_recipe_state(recipe=recipe)
        if self.recipe_type is None:
            for op in self._basic_ops:
                op.pre_first_fuser_forward()
        self._forward_ops = self._fuse_ops(self._basic_ops, self.forward_fusion_functions, recipe)
        self._backward_ops = self._fuse_ops(self._basic_ops, self.backward_fusion_functions, recipe)
        self.recipe_type, self.first_op_requiring_backward = type(recipe), first
        self._last_amax_history_len = history

    def __call__(
        self,
        input: torch.Tensor,
        *extra_inputs: torch.Tensor,
        basic_op_kwargs: list[dict[str, Any]] | None = None,
    ) -> Any:
        """Run the chain.

        :returns: the output, followed by extra outputs where operations make some.
        :raises ValueError: another number of extra inputs than the operations take.
        """
        if len(extra_inputs) != self.num_extra_inputs:
            raise ValueError(
                f"Expected {self.num_extra_inputs} extra inputs but got {len(extra_inputs)}"
            )
        recipe = None
        if FP8GlobalStateManager.is_fp8_enabled():
            recipe = FP8GlobalStateManager.get_fp8_recipe()
        is_grad_enabled = torch.is_grad_enabled()
        per_op = _parts(extra_inputs, self._basic_op_num_extra_inputs)
        self.maybe_fuse_ops(is_grad_enabled, recipe, input, per_op)
        for index, op in enumerate(self._basic_ops):
            op.pre_fuser_forward(requires_grad=index >= self.first_op_requiring_backward)
        kwargs = basic_op_kwargs or [{}] * self._num_basic_ops
        arguments: tuple[Any, ...] = (
            input,
            self,
            kwargs,
            *self._flat_basic_op_params,
            *extra_inputs,
        )
        if is_grad_enabled:
            return _OperationFuserAutogradFunction.apply(*arguments)  # type: ignore
        return _OperationFuserAutogradFunction.forward(None, *arguments)

    def _run(
        self,
        ctxs: list[OperationContext],
        x: torch.Tensor,
        extra_inputs: list[tuple[Any, ...]],
        kwargs: list[dict[str, Any]],
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The output and all extra outputs of the forward steps."""
        ops = self._basic_ops
        outputs: list[Any] = [None] * len(ops)
        for op, places in self._forward_ops:
            before, after = places[0] - 1, places[-1] + 1
            x, extras = op.fuser_forward(
                [ctxs[place] for place in places],
                x,
                basic_op_extra_inputs=[extra_inputs[place] for place in places],
                prev_op_grad_output_quantizer=(
                    ops[before].get_grad_output_quantizer() if before >= 0 else None
                ),
                next_op_input_quantizer=(
                    ops[after].get_input_quantizer() if after < len(ops) else None
                ),
                basic_op_kwargs=[kwargs[place] for place in places],
            )
            for place, made in zip(places, extras, strict=False):
                outputs[place] = list(made)
                for tensor in outputs[place]:
                    tensor.requires_grad_(ctxs[place].requires_grad)
        counts = [op.num_extra_outputs for op in ops]
        return x, _flat(outputs, counts, "extra outputs")

    def _save(self, func_ctx: Any, ctxs: list[OperationContext]) -> None:
        """Hand over to autograd what the operations save."""
        tensors: list[Any] = []
        for ctx in ctxs:
            start = len(tensors)
            tensors.extend(ctx.to_save or ())
            ctx.to_save = None
            ctx._saved_tensors_range = (start, len(tensors))
        to_save, objects = prepare_for_saving(*tensors)
        func_ctx.save_for_backward(*to_save)
        func_ctx.tensor_objects = objects
        # The first module of a step updates the scales at the end of its backward pass.
        func_ctx.is_first_module = (
            self.first_op_requiring_backward < self._num_basic_ops
            and FP8GlobalStateManager.is_first_fp8_module()
        )
        func_ctx.backward_ops = self._backward_ops
        func_ctx.basic_ops = self._basic_ops
        func_ctx.basic_op_ctxs = ctxs
        func_ctx.basic_op_num_params = self._basic_op_num_params


FusibleOperation._chain = OperationFuser


def _register(
    functions: list[OperationFusionFunction], function: OperationFusionFunction, prepend: bool
) -> None:
    functions.insert(0 if prepend else len(functions), function)


def register_forward_fusion(op_fusion_func: OperationFusionFunction, prepend: bool = False) -> None:
    """Let ``op_fusion_func`` fuse operations of forward passes.

    :param op_fusion_func: ``func(ops, *, recipe) -> ops``.
    :param prepend: before the others; default: after them.
    """
    _register(OperationFuser.forward_fusion_functions, op_fusion_func, prepend)


def register_backward_fusion(
    op_fusion_func: OperationFusionFunction, prepend: bool = False
) -> None:
    """Let ``op_fusion_func`` fuse operations of backward passes.

    :param op_fusion_func: ``func(ops, *, recipe) -> ops``.
    :param prepend: before the others; default: after them.
    """
    _register(OperationFuser.backward_fusion_functions, op_fusion_func, prepend)
