"""Activations, norms and the softmax of attention scores, both ways.

The first two are quantized if a quantizer is given. A gated activation (``geglu``) multiplies the
activation of the first half of the last dimension with the second half. Derivatives come from
autograd, so they are those of the kernels.

Legend: ... any leading dimensions (rows), f feed-forward size, h hidden size, b batch, n heads, sq
queries, sk keys. Scores are [b, n, sq, sk] or [b * n, sq, sk].
Source: activation.cpp and normalization.cpp of Transformer Engine 2.8 to 2.20.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch.nn import functional

from accel_bridge.kernels import GEGLU, NORM_BACKWARD, NORM_FORWARD, SWIGLU, active
from accel_bridge.kernels.activations import clamped
from accel_bridge.libraries import softmax
from accel_bridge.libraries.transformer_engine_torch.enums import TORCH_DTYPE

Function = Callable[..., torch.Tensor]


def _wide(function: Function) -> Function:
    """Computed in float32, rounded once."""

    def apply(x: torch.Tensor, *numbers: float, **options: float) -> torch.Tensor:
        return function(x.float(), *numbers, **options).to(x.dtype)

    return apply


def _gated(function: Function) -> Function:
    def apply(x: torch.Tensor) -> torch.Tensor:
        first, gate = x.chunk(2, -1)
        return function(first) * gate

    return _wide(apply)


def _quick_gelu(x: torch.Tensor, alpha: float = 1.702) -> torch.Tensor:
    return x * torch.sigmoid(alpha * x)


def _squared_relu(x: torch.Tensor) -> torch.Tensor:
    return functional.relu(x).square()


def _clamped(
    x: torch.Tensor, limit: float = 7.0, alpha: float = 1.702, glu_linear_offset: float = 1.0
) -> torch.Tensor:
    first, gate = x.chunk(2, -1)
    gate = clamped(gate, -limit, limit) + glu_linear_offset
    return _quick_gelu(clamped(first, None, limit), alpha) * gate


def _situ(x: torch.Tensor, beta1: float = 4.0, beta2: float = 25.0) -> torch.Tensor:
    first, gate = x.chunk(2, -1)
    bounded = beta1 * torch.tanh(first / beta1) * torch.sigmoid(first)
    return bounded * beta2 * torch.tanh(gate / beta2)


_PLAIN: Final[dict[str, Function]] = {
    "gelu": partial(functional.gelu, approximate="tanh"),
    "qgelu": _quick_gelu,
    "relu": functional.relu,
    "srelu": _squared_relu,
    "silu": functional.silu,
}
#: What is computed in float32 whatever the input's dtype is.
_WIDE: Final[dict[str, Function]] = {"clamped_swiglu": _wide(_clamped), "situglu": _wide(_situ)}
_FUNCTIONS: Final[dict[str, Function]] = {
    **{name: _wide(function) for name, function in _PLAIN.items()},
    **_WIDE,
    "glu": _gated(torch.sigmoid),
    "qgeglu": _gated(_quick_gelu),
    "reglu": _gated(functional.relu),
    "sreglu": _gated(_squared_relu),
    "geglu": lambda x: active.kernel(GEGLU)(x),
    "swiglu": lambda x: active.kernel(SWIGLU)(x),
}


def _quantized(output: torch.Tensor, quantizer: Any) -> Any:
    if quantizer is None:
        return output
    from accel_bridge.libraries.transformer_engine_torch.quantization import quantize

    return quantize(output, quantizer)


def _forward(
    function: Function, input: torch.Tensor, quantizer: Any, *numbers: float, **options: float
) -> Any:
    with torch.no_grad():
        return _quantized(function(input, *numbers, **options), quantizer)


def _gradient(
    function: Function,
    grad: torch.Tensor,
    input: torch.Tensor,
    *numbers: float,
    **options: float,
) -> torch.Tensor:
    with torch.enable_grad():
        x = input.detach().requires_grad_()
        output = function(x, *numbers, **options)
    return torch.autograd.grad(output, x, grad.view(output.shape).to(output.dtype))[0]


def _backward(
    function: Function,
    grad: torch.Tensor,
    fwd_input: torch.Tensor,
    quantizer: Any,
    *numbers: float,
    **options: float,
) -> Any:
    return _quantized(_gradient(function, grad, fwd_input, *numbers, **options), quantizer)


def _backward_with_bias(
    function: Function, grad: torch.Tensor, fwd_input: torch.Tensor, quantizer: Any
) -> list[Any]:
    """[the bias's gradient [f], the input's]."""
    made = _gradient(function, grad, fwd_input)
    return [made.reshape(-1, made.shape[-1]).sum(0), _quantized(made, quantizer)]


def _scaled(function: Function) -> Function:
    """``function(x) * scales`` for each row; interleaved halves are put in order first."""

    def apply(
        x: torch.Tensor,
        scales: torch.Tensor,
        *numbers: float,
        glu_interleave_size: int = 0,
        **options: float,
    ) -> torch.Tensor:
        if glu_interleave_size:
            x = x.unflatten(-1, (-1, 2, glu_interleave_size)).transpose(-3, -2).flatten(-3)
        return function(x, *numbers, **options) * scales.reshape(x.shape[:-1]).unsqueeze(-1)

    return apply


def _numbers(name: str, given: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """The further arguments of a scaled activation by name, in its own order."""
    order = {
        "clamped_swiglu": ("limit", "alpha", "glu_linear_offset", "glu_interleave_size"),
        "situglu": ("beta1", "beta2", "glu_interleave_size"),
        "swiglu": ("glu_interleave_size",),
        "srelu": (),
    }[name]
    return dict(zip((*order, "compute_scale_grad"), given, strict=False)) | options


_WIDE_FORM: Final[dict[str, Function]] = {
    "clamped_swiglu": _clamped,
    "situglu": _situ,
    "srelu": _squared_relu,
    "swiglu": lambda x: functional.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
}


def _scaled_forward(
    name: str,
    input: torch.Tensor,
    act_scales: torch.Tensor,
    quantizer: Any,
    *given: Any,
    **options: Any,
) -> Any:
    """``function(input) * act_scales``, in float32, rounded once.

    :param input: [..., 2 f], or [..., f] of an activation without a gate.
    :param act_scales: one number for each row.
    """
    with torch.no_grad():
        output = _scaled(_WIDE_FORM[name])(
            input.float(), act_scales.float(), **_numbers(name, given, options)
        )
        return _quantized(output.to(input.dtype), quantizer)


def _scaled_backward(
    name: str,
    grad: torch.Tensor,
    fwd_input: torch.Tensor,
    act_scales: torch.Tensor,
    quantizer: Any,
    *given: Any,
    **options: Any,
) -> tuple[Any, torch.Tensor | None]:
    """(the input's gradient, the scales'); the latter is None unless it is asked for."""
    numbers = _numbers(name, given, options)
    wanted = numbers.pop("compute_scale_grad", True)
    with torch.enable_grad():
        x = fwd_input.detach().float().requires_grad_()
        scales = act_scales.detach().float().requires_grad_()
        output = _scaled(_WIDE_FORM[name])(x, scales, **numbers)
    made, scaled = torch.autograd.grad(output, (x, scales), grad.float().view(output.shape))
    return (
        _quantized(made.to(fwd_input.dtype), quantizer),
        scaled.to(act_scales.dtype) if wanted else None,
    )


def __getattr__(name: str) -> Any:
    """``NAME(input, quantizer)``, ``dNAME``, ``dbias_dNAME``, ``scaled_NAME``, ``scaled_dNAME``.

    ``clamped_swiglu``'s derivatives are named ``clamped_dswiglu``.
    """
    plain = name.replace("clamped_dswiglu", "dclamped_swiglu")
    forms: tuple[tuple[str, Callable[..., Any], dict[str, Any]], ...] = (
        ("scaled_d", _scaled_backward, {one: one for one in _WIDE_FORM}),
        ("scaled_", _scaled_forward, {one: one for one in _WIDE_FORM}),
        ("dbias_d", _backward_with_bias, {one: _FUNCTIONS[one] for one in _PLAIN}),
        ("d", _backward, _FUNCTIONS),
        ("", _forward, _FUNCTIONS),
    )
    for prefix, form, functions in forms:
        function = functions.get(plain.removeprefix(prefix))
        if function is not None and plain.startswith(prefix):
            return partial(form, function)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _finished(output: torch.Tensor, ln_out: Any, quantizer: Any, otype: int) -> Any:
    """The output in its dtype, quantized or put where it is wanted."""
    output = output.to(TORCH_DTYPE[otype])
    if quantizer is not None:
        from accel_bridge.libraries.transformer_engine_torch.quantization import quantize

        return quantize(output, quantizer, ln_out)
    return output if ln_out is None else ln_out.copy_(output)


@torch.no_grad()
def layernorm_fwd(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    ln_out: Any,
    quantizer: Any,
    otype: int,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[Any]:
    """[output, mean [rows], 1 / deviation [rows]] of rows [..., h]; statistics in float32."""
    output, mean, rsigma = active.kernel(NORM_FORWARD)(
        input, weight, bias, eps=eps, zero_centered_gamma=zero_centered_gamma, centered=True
    )
    return [_finished(output, ln_out, quantizer, otype), mean, rsigma]


@torch.no_grad()
def rmsnorm_fwd(
    input: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    ln_out: Any,
    quantizer: Any,
    otype: int,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[Any]:
    """[output, None, 1 / root mean square [rows]] of rows [..., h]."""
    output, _, rsigma = active.kernel(NORM_FORWARD)(
        input, weight, None, eps=eps, zero_centered_gamma=zero_centered_gamma, centered=False
    )
    return [_finished(output, ln_out, quantizer, otype), None, rsigma]


@torch.no_grad()
def layernorm_bwd(
    dz: torch.Tensor,
    x: torch.Tensor,
    mu: torch.Tensor,
    rsigma: torch.Tensor,
    gamma: torch.Tensor,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[torch.Tensor | None]:
    """[dx, dgamma, dbeta] from the statistics of :func:`layernorm_fwd`."""
    return list(
        active.kernel(NORM_BACKWARD)(
            dz, x, gamma, mu, rsigma, zero_centered_gamma=zero_centered_gamma
        )
    )


@torch.no_grad()
def rmsnorm_bwd(
    dz: torch.Tensor,
    x: torch.Tensor,
    rsigma: torch.Tensor,
    gamma: torch.Tensor,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[torch.Tensor | None]:
    """[dx, dgamma] from the statistics of :func:`rmsnorm_fwd`."""
    return list(
        active.kernel(NORM_BACKWARD)(
            dz, x, gamma, None, rsigma, zero_centered_gamma=zero_centered_gamma
        )
    )[:2]


def rmsnorm_bwd_add(
    dz: torch.Tensor,
    x: torch.Tensor,
    add: torch.Tensor,
    rsigma: torch.Tensor,
    gamma: torch.Tensor,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[torch.Tensor | None]:
    """[dx + add, dgamma], the sum rounded once."""
    wide = dz.float(), x.float()
    dx, dgamma = rmsnorm_bwd(*wide, rsigma, gamma, sm_margin, zero_centered_gamma)
    assert dx is not None
    return [dx.add_(add.view(dx.shape)).to(x.dtype), dgamma]


def scaled_softmax_forward(scores: torch.Tensor, scale: float) -> torch.Tensor:
    """``softmax(scale * scores)`` over the keys, in float32, rounded once."""
    return softmax.forward(scores, None, scale)


def scaled_masked_softmax_forward(
    scores: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """The same over what is visible; rows that see nothing give zeros.

    :param mask: uint8 or bool, broadcastable to the scores; nonzero = hidden.
    """
    return softmax.forward(scores, mask.bool(), scale)


def scaled_upper_triang_masked_softmax_forward(scores: torch.Tensor, scale: float) -> torch.Tensor:
    """The same over the keys up to the query's own; as many queries as keys."""
    return softmax.forward(scores, None, scale, causal=True)


def scaled_aligned_causal_masked_softmax_forward(
    scores: torch.Tensor, scale: float
) -> torch.Tensor:
    """The same, the last query at the last key."""
    return softmax.forward(scores, None, scale, causal=True)


def scaled_softmax_backward(
    gradient: torch.Tensor, weights: torch.Tensor, scale: float
) -> torch.Tensor:
    """Gradient of the scores from that of the weights and the weights themselves."""
    return softmax.backward(gradient, weights, scale)


scaled_masked_softmax_backward = scaled_softmax_backward
scaled_upper_triang_masked_softmax_backward = scaled_softmax_backward
scaled_aligned_causal_masked_softmax_backward = scaled_softmax_backward
