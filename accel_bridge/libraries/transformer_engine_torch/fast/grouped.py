"""``GroupedLinear`` of one rank: the GEMMs of all groups, one after another or at once.

The weights of all experts lie in one storage, so that one launch serves them. In FP8 the rows of
all experts are quantized at once: only where the device has grouped FP8 kernels, the weights are
trained in higher precision, and their gradients lie in one storage. What it computes is what
Transformer Engine's own way computes expert by expert, but for the order of sums.

Legend: t rows sorted by group or expert, e groups or experts, k input size, m output size.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from operator import attrgetter, is_not
from typing import Any, Final, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from accel_bridge.kernels import GROUPED_MATMUL, GROUPED_WEIGHT_GRADIENT
from accel_bridge.kernels.active import kernel
from accel_bridge.kernels.float8 import (
    FLOAT8_BLOCK_QUANTIZE,
    GROUPED_FLOAT8_BLOCK_TRANSPOSE,
    GROUPED_FLOAT8_QUANTIZE,
    GROUPED_SCALED_MATMUL,
    GROUPED_SCALED_WEIGHT_GRADIENT,
    aligned,
)
from accel_bridge.kernels.weight_gradient import is_much
from accel_bridge.libraries.main_grad import add_to, are_unwatched, placeholder
from accel_bridge.libraries.transformer_engine_torch._tensors import (
    in_one_storage,
    is_capturing,
    stacked,
)
from accel_bridge.libraries.transformer_engine_torch.enums import TORCH_DTYPE
from accel_bridge.libraries.transformer_engine_torch.fast import (
    PLAIN,
    can_quantize,
    interferes,
    is_alone,
    is_plain,
    needs_fp8,
)


def reset_parameters(original: Callable[..., Any], module: Any) -> Callable[..., Any]:
    """``GroupedLinear.reset_parameters``; the weights then lie one after another.

    :param original: Transformer Engine's own.
    :param module: the module that defines it.
    """

    @functools.wraps(original)
    def reset(self: Any, defer_init: bool | None = False) -> Any:
        result = original(self, defer_init=defer_init)
        weights: list[Any] = [
            getattr(self, f"weight{index}", None) for index in range(self.num_gemms)
        ]
        if not defer_init and len(weights) > 1 and all(map(_is_plain, weights)):
            whole = torch.stack([weight.detach() for weight in weights])  # [e, m, k]
            for weight, place in zip(weights, whole, strict=True):
                # `data`: the parameters must not share a count of writes.
                weight.data = place.data
        return result

    return reset


def _is_plain(weight: Any) -> bool:
    return type(weight) in PLAIN and not weight.is_meta


#: A C function: there may be hundreds of experts.
_REQUIRES_GRAD: Final = attrgetter("requires_grad")
_DTYPE: Final = attrgetter("dtype")
#: What the rows of an expert in blocks and the sizes of its GEMM are multiples of.
_ROWS, _SIZE, _BLOCK = 8, 16, 128
_KINDS: Final = {"Float8Quantizer", "Float8CurrentScalingQuantizer", "Float8BlockQuantizer"}
#: Key under which a layer keeps its weights' FP8 copies between microbatches.
_CACHE: Final = "weights of all experts"
#: Where it keeps what was found of its quantizers.
_JUDGED: Final = "_accel_bridge_quantizers"
#: Whether sums are kept in float32 by a recipe that does not say it.
_PRECISE: Final = {"fprop": False, "dgrad": True, "wgrad": True}


class Operand(NamedTuple):
    """FP8 numbers of all experts.

    :param numbers: [t, k]; of weights [e, m, k].
    :param scale_inv: [e], or as the contracts of grouped GEMMs want those of blocks.
    :param transposed: the transposes, expert after expert, the rows of each aligned to ``_SIZE``
        where experts have one factor each; of weights [e, k, m]; or None.
    :param transposed_scale_inv: of ``transposed``.
    """

    numbers: torch.Tensor
    scale_inv: torch.Tensor
    transposed: torch.Tensor | None
    transposed_scale_inv: torch.Tensor | None


class Call(NamedTuple):
    """What the GEMMs of a call have in common.

    :param quantizers: of input, weight and gradient; those of all experts have the same options.
    :param recipe: says which sums are kept in float32.
    :param first: weight gradients replace what ``main_grad`` holds.
    :param updates: the weights have changed since they were quantized last; None: do not keep.
    """

    layer: Any
    splits: list[int]
    quantizers: tuple[Any, Any, Any]
    recipe: Any
    dtype: torch.dtype
    first: bool
    updates: bool | None

    def precise(self, gemm: str) -> bool:
        found = getattr(self.recipe, f"fp8_gemm_{gemm}", None)
        return _PRECISE[gemm] if found is None else bool(found.use_split_accumulator)


def by_block(quantizer: Any) -> bool:
    """Whether its tensors have a scale for each block."""
    return type(quantizer).__name__ == "Float8BlockQuantizer"


def _rule(quantizer: Any) -> dict[str, Any]:
    return {
        "power_of_2": bool(quantizer.force_pow_2_scales),
        "epsilon": float(quantizer.amax_epsilon),
    }


def quantize_rows(
    quantizer: Any,
    rows: torch.Tensor,
    splits: Sequence[int],
    state: tuple[torch.Tensor, torch.Tensor] | None,
    transposes: bool,
) -> Operand:
    """Rows [t, k] of all experts.

    :param state: delayed scaling's scales and newest largest magnitudes, [e] each.
    :param transposes: a GEMM needs the transposes.
    """
    dtype = TORCH_DTYPE[quantizer.dtype]
    rows = rows.contiguous()
    if by_block(quantizer):
        options = {"dtype": dtype, **_rule(quantizer)}
        numbers, scale_inv = kernel(FLOAT8_BLOCK_QUANTIZE)(rows, rows=1, **options)
        transposed = transposed_scale_inv = None
        if transposes:
            turn = kernel(GROUPED_FLOAT8_BLOCK_TRANSPOSE)
            transposed, transposed_scale_inv = turn(rows, splits, **options)
        return Operand(numbers, scale_inv, transposed, transposed_scale_inv)
    transposed = None
    if transposes:
        size = sum(aligned(splits, _SIZE)) * rows.shape[1]
        transposed = torch.empty(size, dtype=dtype, device=rows.device)
    rule, largest = _rule(quantizer) if state is None else {}, None
    if state is not None:
        largest = torch.zeros(len(splits), dtype=torch.float32, device=rows.device)
        rule = {"scale": state[0], "amax": largest}
    numbers, scale_inv = kernel(GROUPED_FLOAT8_QUANTIZE)(
        rows, splits, dtype=dtype, transposed=transposed, align_size=_SIZE, **rule
    )
    if state is not None and largest is not None:
        state[1].copy_(torch.maximum(state[1], largest))
    return Operand(numbers, scale_inv, transposed, scale_inv if transposes else None)


def _state(
    layer: Any, direction: str, place: int, step: int
) -> tuple[torch.Tensor, torch.Tensor] | None:
    state = layer.fp8_meta[direction]
    if not hasattr(state, "amax_history"):
        return None
    return state.scale[place::step], state.amax_history[0, place::step]


def _quantize_weights(call: Call, weights: Sequence[torch.Tensor]) -> Operand:
    """Weights [m, k] of all experts, from the layer's copy where that is up to date."""
    copies = call.layer._fp8_workspaces
    kept = copies.get(_CACHE)
    # A microbatch that went the long way, perhaps with new weights, left copies of its own.
    own = [copies.pop(f"weight{number}", None) for number in range(len(weights))]
    if kept is not None and call.updates is False and own[0] is None:
        return kept  # type: ignore[no-any-return]
    quantizer, experts, (m, k) = call.quantizers[1], len(weights), weights[0].shape
    whole = stacked(weights)
    if whole is None:
        whole = torch.stack([weight.detach() for weight in weights])
    flat = whole.reshape(-1, k)
    if by_block(quantizer):
        options = {"dtype": TORCH_DTYPE[quantizer.dtype], "rows": _BLOCK, **_rule(quantizer)}
        numbers, scale_inv = kernel(FLOAT8_BLOCK_QUANTIZE)(flat, **options)
        numbers = numbers.view(experts, m, k)
        scale_inv = scale_inv.view(experts, m // _BLOCK, -1)
        transposed = numbers.view(torch.uint8).transpose(1, 2).contiguous().view(numbers.dtype)
        made = Operand(numbers, scale_inv, transposed, scale_inv.transpose(1, 2).contiguous())
    else:
        state = _state(call.layer, "scaling_fwd", 1, 3)
        found = quantize_rows(quantizer, flat, [m] * experts, state, True)
        assert found.transposed is not None
        made = found._replace(
            numbers=found.numbers.view(experts, m, k),
            transposed=found.transposed.view(experts, k, m),
        )
    if call.updates is not None:
        copies[_CACHE] = made
    return made


def _watched(weights: tuple[Any, ...], fused: bool) -> tuple[Any, ...]:
    """The weights that autograd is told of: one is enough where nobody waits for the others.

    Autograd's way to a weight takes the host longer than many an expert's GEMM.

    :param fused: gradients are added to ``main_grad``.
    """
    return weights[:1] if fused and are_unwatched(weights) else weights


def _placeholders(ctx: Any, sums: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """What autograd gets for the weights that it is told of; their sums are in ``main_grad``."""
    for weight in ctx.weights[ctx.told :]:
        weight.grad_added_to_main_grad = True
    pairs = zip(ctx.weights[: ctx.told], sums[: ctx.told], strict=True)
    return [placeholder(weight, total) for weight, total in pairs]


class _GroupedFP8(torch.autograd.Function):
    """x [t, k], e weights of [m, k], e biases of [m] or none -> [t, m].

    :param weights: all; those that autograd is told of come again in ``parameters``.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Any, call: Call, states: Any, weights: Any, told: int, *parameters: Any
    ) -> Any:
        splits = call.splits
        biases = parameters[told:]
        trains = weights[0].requires_grad
        state = _state(call.layer, "scaling_fwd", 0, 3)
        rows = quantize_rows(call.quantizers[0], x.detach(), splits, state, trains)
        weight = _quantize_weights(call, weights)
        out = kernel(GROUPED_SCALED_MATMUL)(
            rows.numbers,
            weight.numbers,
            rows.scale_inv,
            weight.scale_inv,
            splits,
            dtype=call.dtype,
            precise=call.precise("fprop"),
        )
        for part, bias in zip(out.split(splits) if biases else (), biases, strict=True):
            part += bias.detach().to(call.dtype)
        ctx.save_for_backward(
            rows.transposed,
            rows.transposed_scale_inv,
            weight.transposed if x.requires_grad else None,
            weight.transposed_scale_inv if x.requires_grad else None,
        )
        ctx.call, ctx.states, ctx.weights, ctx.told = call, states, weights, told
        ctx.updates = (x.requires_grad or trains) and states.is_first_fp8_module()
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        x, x_scale_inv, weight, weight_scale_inv = ctx.saved_tensors
        call: Call = ctx.call
        splits, needs = call.splits, ctx.needs_input_grad
        gradient = gradients[0].contiguous()
        state = _state(call.layer, "scaling_bwd", 0, 2)
        rows = quantize_rows(call.quantizers[2], gradient, splits, state, needs[5])
        of_x = None
        if needs[0]:
            of_x = kernel(GROUPED_SCALED_MATMUL)(
                rows.numbers,
                weight,
                rows.scale_inv,
                weight_scale_inv,
                splits,
                dtype=call.dtype,
                precise=call.precise("dgrad"),
            )
        of_weights: list[Any] = [None] * ctx.told
        if needs[5]:
            sums = [one.main_grad for one in ctx.weights]
            first = call.first or getattr(ctx.weights[0], "overwrite_main_grad", False)
            whole = in_one_storage(sums)
            assert whole is not None, "main_grad was moved since the forward pass"
            kernel(GROUPED_SCALED_WEIGHT_GRADIENT)(
                x,
                rows.transposed,  # type: ignore[arg-type]
                x_scale_inv,
                rows.transposed_scale_inv,  # type: ignore[arg-type]
                splits if by_block(call.quantizers[2]) else aligned(splits, _SIZE),
                *whole,
                sizes=(ctx.weights[0].shape[1], ctx.weights[0].shape[0]),
                accumulate=not first,
            )
            of_weights = _placeholders(ctx, sums)
        if ctx.updates:
            ctx.states.reduce_and_update_fp8_tensors(forward=False)
        biased = len(needs) > 5 + ctx.told
        of_biases = [one.sum(0) for one in gradient.split(splits)] if biased else []
        return of_x, None, None, None, None, *of_weights, *of_biases


def grouped_fp8(
    layer: Any, states: Any, inp: torch.Tensor, splits: list[int], first: bool | None
) -> Any:
    """The layer's result, or NotImplemented where it needs Transformer Engine's own way.

    :param states: its ``FP8GlobalStateManager``.
    :param inp: [.., k].
    :param first: ``is_first_microbatch`` of the call.
    """
    numbers = range(layer.num_gemms)
    named = layer._parameters
    weights = tuple(named.get(f"weight{number}") for number in numbers)
    biases = tuple(named.get(f"bias{number}") for number in numbers) if layer.use_bias else ()
    if not _is_usual(layer, states, inp, weights, biases):
        return NotImplemented
    layer.init_fp8_metadata(num_gemms=layer.num_gemms)  # the first call makes the quantizers
    if not _quantizers(layer, splits, weights[0]):
        return NotImplemented
    x = layer.prepare_forward(inp, num_gemms=layer.num_gemms)
    try:
        kinds = _quantizers(layer, splits, weights[0])
        if not kinds:  # the recipe has changed
            return NotImplemented
        call = Call(
            layer,
            splits,
            kinds,
            states.get_fp8_recipe(),
            layer.activation_dtype,
            bool(first),
            first,
        )
        added = biases if layer.apply_bias else ()
        told = _watched(weights, fused=True)
        out = _GroupedFP8.apply(
            x.reshape(-1, x.shape[-1]), call, states, weights, len(told), *told, *added
        )
    finally:
        layer.end_forward()
    out = out.view(-1, *inp.shape[1:-1], out.shape[-1])
    return (out, list(biases)) if layer.return_bias else out


def quantizers_of_one_kind(layer: Any, kinds: Callable[[], Sequence[Sequence[Any]]]) -> Any:
    """The first quantizers of inputs, weights and gradients, if all are of one known kind.

    They change when the layer makes new ones, and are judged then.

    :param kinds: gives those of inputs, weights and gradients.
    """
    made = tuple(layer.quantizers.values())
    known = layer.__dict__.get(_JUDGED)
    if known is None or any(map(is_not, known[0], made)):
        known = layer.__dict__[_JUDGED] = (made, _judged(kinds()))
    return known[1]


def _judged(kinds: Sequence[Sequence[Any]]) -> tuple[Any, ...] | None:
    every = [one for kind in kinds for one in kind]
    names = {type(one).__name__ for one in every}
    if len(names) != 1 or not names <= _KINDS:
        return None
    for name in ("with_amax_reduction", "use_existing_amax"):
        if any(getattr(one, name, False) for one in every):
            return None
    if by_block(every[0]):
        dims = [{one.block_scaling_dim for one in kind} for kind in kinds]
        if dims != [{1}, {2}, {1}]:
            return None
    return tuple(kind[0] for kind in kinds)


def _quantizers(layer: Any, splits: Sequence[int], weight: torch.Tensor) -> Any:
    """Those of inputs, weights and gradients; None where one launch cannot do what all need."""
    firsts = quantizers_of_one_kind(layer, lambda: [layer._get_quantizers()[n] for n in (0, 1, -1)])
    if firsts is None or not by_block(firsts[0]):
        return firsts
    fits = weight.shape[0] % _BLOCK == 0 and not any(rows % _ROWS for rows in splits)
    return firsts if fits else None


def _is_usual(
    layer: Any,
    states: Any,
    inp: Any,
    weights: Sequence[Any],
    biases: Sequence[Any],
) -> bool:
    """Whether the layer trains plain weights with gradients in one storage, and nothing else."""
    if kernel(GROUPED_SCALED_MATMUL).is_reference or not can_quantize(states):
        return False
    options = ("single_grouped_weight", "single_grouped_bias", "use_grouped_tensor")
    if any(getattr(layer, name, False) for name in (*options, "save_original_input")):
        return False
    if not hasattr(layer, "end_forward") or not torch.is_grad_enabled() or interferes():
        return False
    if is_capturing(inp) or states.is_fp8_calibration() or not is_alone(layer) or not inp.is_cuda:
        return False
    if not (layer.fuse_wgrad_accumulation and _are_ordinary(inp, weights, biases)):
        return False
    sums = [one["main_grad"] for one in map(vars, weights) if one.get("main_grad") is not None]
    if len(sums) < len(weights) or set(map(_DTYPE, sums)) != {torch.float32}:
        return False
    if not all(map(_REQUIRES_GRAD, weights)):
        return False
    return in_one_storage(sums) is not None and not any(n % _SIZE for n in weights[0].shape)


def _in_one_launch(
    x: torch.Tensor, weights: Sequence[torch.Tensor], splits: list[int], transposed: bool
) -> torch.Tensor | None:
    """All GEMMs at once, or None where that is impossible or no faster."""
    found = kernel(GROUPED_MATMUL)
    if found.is_reference or is_much(x.shape[0], weights[0].numel(), len(splits)):
        return None
    whole = stacked(weights)
    if whole is None:
        return None
    given = (x, whole.transpose(1, 2) if transposed else whole, torch.tensor(splits, device="cpu"))
    return None if found.supports(*given) else found.function(*given)


def _gemms(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    splits: list[int],
    transposed: bool,
    biases: Sequence[torch.Tensor] = (),
) -> torch.Tensor:
    """``x[rows of group i] @ weights[i]^T + biases[i]`` (or ``@ weights[i]``): [t, m] or [t, k]."""
    together = _in_one_launch(x, weights, splits, transposed)
    if together is not None:
        for result, bias in zip(together.split(splits) if biases else (), biases, strict=True):
            result.add_(bias)
        return together
    output = x.new_empty(x.shape[0], weights[0].shape[0 if transposed else 1])
    parts, results = x.split(splits), output.split(splits)
    for index, (rows, result, weight) in enumerate(zip(parts, results, weights, strict=True)):
        factor = weight.t() if transposed else weight
        if biases:
            torch.addmm(biases[index], rows, factor, out=result)
        else:
            torch.mm(rows, factor, out=result)
    return output


class _GroupedLinear(torch.autograd.Function):
    """As :class:`_GroupedFP8`, in the precision of its operands."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Any,
        splits: list[int],
        fused: bool,
        first: bool,
        weights: Any,
        told: int,
        *parameters: Any,
    ) -> Any:
        biases = parameters[told:]
        ctx.save_for_backward(x)
        ctx.splits, ctx.fused, ctx.first = splits, fused, first
        ctx.weights, ctx.told = weights, told
        return _gemms(x.detach(), weights, splits, True, biases)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        (x,), weights = ctx.saved_tensors, ctx.weights
        needs = ctx.needs_input_grad
        gradient = gradients[0].contiguous()
        of_x = _gemms(gradient, weights, ctx.splits, False) if needs[0] else None
        of_weights: list[Any] = [None] * ctx.told
        of_biases: list[Any] = [None] * (len(needs) - 6 - ctx.told)
        if needs[6]:
            of_weights = _weight_gradients(ctx, x, gradient)
            if of_biases:
                outputs = gradient.split(ctx.splits)
                of_biases = [one.sum(0, dtype=torch.float32).to(one.dtype) for one in outputs]
        return of_x, None, None, None, None, None, *of_weights, *of_biases


def _weight_gradients(
    ctx: Any, x: torch.Tensor, gradient: torch.Tensor
) -> list[torch.Tensor | None]:
    """What autograd gets for the weights [m, k]."""
    sums = [weight.main_grad for weight in ctx.weights] if ctx.fused else []
    if not sums or not _added_at_once(ctx, x, gradient, sums):
        pairs = zip(x.split(ctx.splits), gradient.split(ctx.splits), strict=True)
        if not sums:
            return [torch.mm(one.t(), rows) for rows, one in pairs]
        for (rows, one), main_grad in zip(pairs, sums, strict=True):
            if rows.numel():
                add_to(main_grad, rows, one, ctx.first)
            elif ctx.first:
                main_grad.zero_()
    return _placeholders(ctx, sums)


def _added_at_once(
    ctx: Any, x: torch.Tensor, gradient: torch.Tensor, sums: Sequence[torch.Tensor]
) -> bool:
    """Add all weight gradients to their sums in one launch, if that is possible and faster."""
    found = kernel(GROUPED_WEIGHT_GRADIENT)
    if found.is_reference or is_much(x.shape[0], sums[0].numel(), len(sums)):
        return False
    if is_capturing(x):
        return False  # the numbers of rows would be those of the capture
    whole = in_one_storage(sums)
    if whole is None or found.supports(x, gradient, ctx.splits, *whole) is not None:
        return False
    found.function(x, gradient, ctx.splits, *whole, accumulate=not ctx.first)
    return True


def grouped_forward(original: Callable[..., Any], module: Any) -> Callable[..., Any]:
    """``GroupedLinear.forward``.

    :param original: Transformer Engine's own.
    :param module: the module that defines it.
    """
    states = module.FP8GlobalStateManager

    @functools.wraps(original)
    def forward(
        self: Any,
        inp: Any,
        m_splits: Any,
        is_first_microbatch: bool | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        splits = _counts(m_splits)
        if states.is_fp8_enabled() and splits is not None and not (args or kwargs):
            result = grouped_fp8(self, states, inp, splits, is_first_microbatch)
            if result is not NotImplemented:
                return result
            if inp.dim() == 2 and takes_any_rows(states, inp):
                return _by_padded(original, self, inp, splits, is_first_microbatch)
        parameters = None if args or kwargs or splits is None else _parameters(self, inp, states)
        if parameters is None or splits is None or len(splits) != self.num_gemms:
            return original(self, inp, m_splits, is_first_microbatch, *args, **kwargs)
        weights, biases = parameters
        x = inp.reshape(-1, inp.shape[-1])
        first = bool(is_first_microbatch) or getattr(weights[0], "overwrite_main_grad", False)
        added = biases if self.apply_bias else ()
        told = _watched(weights, self.fuse_wgrad_accumulation)
        out = _GroupedLinear.apply(
            *(x, splits, self.fuse_wgrad_accumulation, first),
            *(weights, len(told), *told, *added),
        )
        out = out.view(-1, *inp.shape[1:-1], out.shape[-1])
        return (out, list(biases)) if self.return_bias else out

    return forward


def takes_any_rows(states: Any, inp: torch.Tensor) -> bool:
    """Whether experts' rows need no padding: those with one factor are padded in their transposes.

    :param states: Transformer Engine's ``FP8GlobalStateManager``.
    """
    if not can_quantize(states) or kernel(GROUPED_SCALED_MATMUL).is_reference or is_capturing(inp):
        return False
    recipe = states.get_fp8_recipe()
    return bool(recipe.delayed() or recipe.float8_current_scaling())


def _by_padded(
    original: Callable[..., Any],
    layer: Any,
    inp: torch.Tensor,
    splits: list[int],
    first: bool | None,
) -> Any:
    """Transformer Engine's own way [t, m], whose GEMMs want rows that were not padded before."""
    layers = sys.modules["transformer_engine.pytorch.module"]
    pad, unpad = layers.Fp8Padding, layers.Fp8Unpadding
    x, longer = inspect.unwrap(pad.forward)(pad(len(splits)), inp, splits)
    result = original(layer, x, longer, first)
    out, *bias = result if isinstance(result, tuple) else (result,)
    out = inspect.unwrap(unpad.forward)(unpad(len(splits)), out, splits)
    return (out, *bias) if bias else out


def padding_forward(original: Callable[..., Any], module: Any) -> Callable[..., Any]:
    """``Fp8Padding.forward``: nothing, where :func:`takes_any_rows`.

    :param original: Transformer Engine's own.
    :param module: the package with the class.
    """
    states = sys.modules[module.Fp8Padding.__module__].FP8GlobalStateManager

    @functools.wraps(original)
    def forward(self: Any, inp: torch.Tensor, m_splits: list[int]) -> Any:
        return (inp, m_splits) if takes_any_rows(states, inp) else original(self, inp, m_splits)

    return forward


def unpadding_forward(original: Callable[..., Any], module: Any) -> Callable[..., Any]:
    """``Fp8Unpadding.forward``: nothing, where nothing was padded.

    :param original: Transformer Engine's own.
    :param module: the package with the class.
    """

    @functools.wraps(original)
    def forward(self: Any, inp: torch.Tensor, m_splits: list[int]) -> Any:
        return inp if len(inp) == sum(m_splits) else original(self, inp, m_splits)

    return forward


def _counts(m_splits: Any) -> list[int] | None:
    """Rows of each group, where they are on the host."""
    if isinstance(m_splits, list):
        return m_splits
    if isinstance(m_splits, FakeTensor) or not isinstance(m_splits, torch.Tensor):
        return None
    # A host tensor where devices are apart: `.device` is the redirected one, `.is_cuda` tells.
    return None if m_splits.is_cuda else [int(one) for one in m_splits.tolist()]


def _parameters(
    layer: Any, inp: Any, states: Any
) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """Weights and biases; None where the layer needs Transformer Engine's own way."""
    if (
        not is_alone(layer)
        or getattr(layer, "single_grouped_weight", False)
        or getattr(layer, "single_grouped_bias", False)
        or getattr(layer, "use_grouped_tensor", False)
        or needs_fp8(layer, states)
        or interferes()
        or not inp.is_cuda
    ):
        return None
    weight_names, bias_names = _names(layer.num_gemms)
    weights = tuple(map(layer._parameters.get, weight_names))
    biases = tuple(map(layer._parameters.get, bias_names)) if layer.use_bias else ()
    if not _are_ordinary(inp, weights, biases) or len(set(map(_REQUIRES_GRAD, weights))) > 1:
        return None
    return weights, biases


def _are_ordinary(inp: Any, weights: Sequence[Any], biases: Sequence[Any]) -> bool:
    """Whether all are plain, no weight is absent, and none is Megatron-FSDP's."""
    if type(None) in set(map(type, weights)) or not is_plain(inp, *weights, *biases):
        return False
    return not any("__fsdp_param__" in own for own in map(vars, weights))


@functools.cache
def _names(count: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of a layer's weights and biases."""
    numbers = range(count)
    return tuple(f"weight{i}" for i in numbers), tuple(f"bias{i}" for i in numbers)
