"""Kernels with one error each, by contract: layers and losses; others stand in injected_*."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final

import torch
from torch.nn import functional

from accel_bridge.apps.parity import as_arguments
from accel_bridge.kernels import CONTRACTS

Function = Callable[..., Any]


def by_name(arguments: dict[str, Any]) -> dict[str, Any]:
    """A call's arguments with each option by itself."""
    options = arguments.get("options")
    if options is None:
        return arguments
    own = {field.name: getattr(options, field.name) for field in fields(options)}
    return {**{name: value for name, value in arguments.items() if name != "options"}, **own}


def reference(contract: str, inputs: dict[str, Any]) -> Any:
    """What the reference gives for inputs by name."""
    return CONTRACTS[contract].reference(**as_arguments(contract, inputs))


def with_changes(contract: str, **changes: Callable[[dict[str, Any]], Any]) -> Function:
    """The reference, some arguments computed from all of them."""

    def kernel(**options: Any) -> Any:
        inputs = by_name(options)
        changed = {name: change(inputs) for name, change in changes.items()}
        return reference(contract, {**inputs, **changed})

    return kernel


def with_result(contract: str, change: Callable[[Any, dict[str, Any]], Any]) -> Function:
    """The reference, its result changed."""

    def kernel(**options: Any) -> Any:
        return change(CONTRACTS[contract].reference(**options), options)

    return kernel


def _sum_bfloat16(values: torch.Tensor) -> torch.Tensor:
    """A sum over the last dimension that is rounded to bfloat16 after every addition."""
    total = torch.zeros_like(values[..., 0], dtype=torch.bfloat16)
    for part in values.to(torch.bfloat16).unbind(-1):
        total = total + part
    return total.unsqueeze(-1).to(values.dtype)


def rms_norm_bfloat16(
    input: torch.Tensor, weight: torch.Tensor, *, eps: float, zero_centered_gamma: bool
) -> torch.Tensor:
    gamma = weight + 1 if zero_centered_gamma else weight
    mean = _sum_bfloat16(input.float().square()) / input.shape[-1]
    return (input.float() * torch.rsqrt(mean + eps) * gamma.float()).to(input.dtype)


def layer_norm_without_mean(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    eps: float,
    zero_centered_gamma: bool,
) -> torch.Tensor:
    output = CONTRACTS["rms_norm"].reference(
        input, weight, eps=eps, zero_centered_gamma=zero_centered_gamma
    )
    return output if bias is None else output + bias  # type: ignore[no-any-return]


def layer_norm_unbiased(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    eps: float,
    zero_centered_gamma: bool,
) -> torch.Tensor:
    x = input.float()
    gamma = weight.float() + (1 if zero_centered_gamma else 0)
    normal = (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True) + eps)
    output = normal * gamma + (0 if bias is None else bias.float())
    return output.to(input.dtype)


def _rotary_swapped(options: dict[str, Any]) -> Any:
    """The halves of the rotated part change places."""
    size = options["cos"].shape[-1]
    first, second, rest = options["input"].split(
        [size // 2, size // 2, options["input"].shape[-1] - size], dim=-1
    )
    return torch.cat((second, first, rest), dim=-1)


def _swapped(options: dict[str, Any]) -> torch.Tensor:
    return torch.cat(options["input"].chunk(2, -1)[::-1], -1)


def bias_after_dropout(**options: Any) -> Any:
    bias = options.pop("bias")
    output = CONTRACTS["bias_dropout_add"].reference(bias=None, **options)
    return output if bias is None else output + bias


def softmax_in_input_dtype(
    scores: torch.Tensor, mask: torch.Tensor | None = None, *, scale: float, causal: bool
) -> torch.Tensor:
    x = (scores * scale).to(torch.bfloat16)
    filled = CONTRACTS["scaled_masked_softmax"].reference(x, mask, causal=causal)
    return filled.to(scores.dtype)  # type: ignore[no-any-return]


def cross_entropy_without_maximum(
    logits: torch.Tensor, target: torch.Tensor, *, label_smoothing: float
) -> torch.Tensor:
    x = logits.float()
    loss = x.exp().sum(-1).log() - x.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    if not label_smoothing:
        return loss
    reference = CONTRACTS["cross_entropy"].reference
    return reference(logits, target, label_smoothing=label_smoothing)  # type: ignore[no-any-return]


def cross_entropy_bfloat16(
    logits: torch.Tensor, target: torch.Tensor, *, label_smoothing: float
) -> torch.Tensor:
    reference = CONTRACTS["cross_entropy"].reference
    rounded = logits.to(torch.bfloat16)
    return reference(rounded, target, label_smoothing=label_smoothing).bfloat16().float()  # type: ignore[no-any-return]


def permute_by_token(**options: Any) -> Any:
    """Copies in the order (token, expert)."""
    options = by_name(options)
    copies, weights, rows = reference("token_permute", options)
    return copies.index_select(0, rows[rows >= 0].long()), weights, rows


def last_copy_only(**options: Any) -> Any:
    """Copies overwrite each other instead of being added."""
    options = by_name(options)
    rows = options["rows"]
    last = torch.where(rows == rows.amax(1, keepdim=True), rows, -1)
    return reference("token_unpermute", {**options, "rows": last})


_CENTERED = "zero-centred gamma"

#: contract -> name -> (kernel, part that must be named, words of a case that must fail).
INJECTED: Final[dict[str, dict[str, tuple[Function, str, str]]]] = {
    "rms_norm": {
        "dropped eps": (with_changes("rms_norm", eps=lambda o: 0.0), "output", "small values"),
        "eps of another model": (with_changes("rms_norm", eps=lambda o: 1e-6), "output", "small"),
        "gamma not zero-centred": (
            with_changes("rms_norm", zero_centered_gamma=lambda o: False),
            "output",
            _CENTERED,
        ),
        "gamma always zero-centred": (
            with_changes("rms_norm", zero_centered_gamma=lambda o: True),
            "output",
            "rows=64",
        ),
        "sum in bfloat16": (rms_norm_bfloat16, "output", "rows=64"),
        "squares in float16": (
            with_changes("rms_norm", input=lambda o: o["input"].half().clamp(-255, 255)),
            "output",
            "large values",
        ),
        "weight gradient lost": (
            with_changes("rms_norm", weight=lambda o: o["weight"] * 0.5 + o["weight"].detach() / 2),
            "grad weight",
            "rows=64",
        ),
    },
    "layer_norm": {
        "dropped eps": (with_changes("layer_norm", eps=lambda o: 0.0), "output", "small values"),
        "gamma not zero-centred": (
            with_changes("layer_norm", zero_centered_gamma=lambda o: False),
            "output",
            _CENTERED,
        ),
        "bias ignored": (with_changes("layer_norm", bias=lambda o: None), "grad bias", "rows=64"),
        "mean not taken off": (layer_norm_without_mean, "output", "rows=64"),
        "unbiased variance": (layer_norm_unbiased, "output", "rows=64"),
    },
    "norm_forward": {
        "dropped eps": (with_changes("norm_forward", eps=lambda o: 0.0), "rsigma", "small values"),
        "mean of the other sign": (
            with_result("norm_forward", lambda r, o: (r[0], None if r[1] is None else -r[1], r[2])),
            "mean",
            "LayerNorm rows=64",
        ),
    },
    "norm_backward": {
        "gamma not zero-centred": (
            with_changes("norm_backward", zero_centered_gamma=lambda o: False),
            "grad input",
            _CENTERED,
        ),
        "statistics of another row": (
            with_changes("norm_backward", rsigma=lambda o: o["rsigma"].roll(1)),
            "grad weight",
            "rows=64",
        ),
    },
    "rotary": {
        "halves swapped": (
            with_changes("rotary", input=_rotary_swapped),
            "output",
            "half s=33 d=64 r=64",
        ),
        "direction turned": (with_changes("rotary", sin=lambda o: -o["sin"]), "output", "half"),
        "half for interleaved": (
            with_changes("rotary", interleaved=lambda o: False),
            "output",
            "interleaved s=33",
        ),
        "interleaved for half": (
            with_changes("rotary", interleaved=lambda o: True),
            "output",
            "half s=33",
        ),
        "cos and sin exchanged": (
            with_changes("rotary", cos=lambda o: o["sin"], sin=lambda o: o["cos"]),
            "output",
            "half s=1 ",
        ),
        "rest not passed on": (
            with_result(
                "rotary",
                lambda output, o: torch.cat(
                    (
                        output[..., : o["cos"].shape[-1]],
                        torch.zeros_like(output[..., o["cos"].shape[-1] :]),
                    ),
                    -1,
                ),
            ),
            "output",
            "half s=33 d=64 r=32",
        ),
    },
    "swiglu": {
        "halves swapped": (with_changes("swiglu", input=_swapped), "output", "rows=64"),
        "bias ignored": (with_changes("swiglu", bias=lambda o: None), "grad bias", "rows=64"),
        "result in bfloat16": (
            with_result("swiglu", lambda output, o: output.bfloat16().to(output.dtype)),
            "output",
            "rows=64",
        ),
    },
    "geglu": {
        "halves swapped": (with_changes("geglu", input=_swapped), "output", "tanh rows=64"),
        "other approximation": (
            with_changes("geglu", approximate=lambda o: "tanh"),
            "output",
            "erf rows=64",
        ),
    },
    "bias_gelu": {
        "bias ignored": (
            with_changes("bias_gelu", bias=lambda o: o["bias"] * 0),
            "output",
            "rows=64",
        ),
        "by the error function": (
            lambda input, bias: functional.gelu(input + bias),
            "output",
            "rows=64",
        ),
    },
    "bias_dropout_add": {
        "bias after dropout": (bias_after_dropout, "output", "dropout 0.2"),
        "residual dropped": (
            with_changes("bias_dropout_add", residual=lambda o: o["residual"] * 0),
            "output",
            "rows=64",
        ),
        "drops when not training": (
            with_changes("bias_dropout_add", training=lambda o: True),
            "output",
            "not training",
        ),
        "never drops": (
            with_changes("bias_dropout_add", training=lambda o: False),
            "dropped share",
            "dropout 0.2",
        ),
        "residual rounded": (
            with_changes("bias_dropout_add", residual=lambda o: o["residual"].to(o["input"])),
            "output",
            "float32 residual",
        ),
    },
    "scaled_masked_softmax": {
        "scale ignored": (
            with_changes("scaled_masked_softmax", scale=lambda o: 1.0),
            "output",
            "plain",
        ),
        "mask inverted": (
            with_changes(
                "scaled_masked_softmax",
                mask=lambda o: None if o["mask"] is None else ~o["mask"],
            ),
            "output",
            "masked",
        ),
        "not causal": (
            with_changes("scaled_masked_softmax", causal=lambda o: False),
            "output",
            "causal",
        ),
        "in bfloat16": (softmax_in_input_dtype, "output", "plain"),
    },
    "cross_entropy": {
        "maximum not taken off": (cross_entropy_without_maximum, "output", "large values"),
        "in bfloat16": (cross_entropy_bfloat16, "output", "v=1000"),
        "smoothing over all classes": (
            with_changes(
                "cross_entropy", label_smoothing=lambda o: o["label_smoothing"] * 333 / 334
            ),
            "output",
            "smoothing",
        ),
        "neighbouring target": (
            with_changes("cross_entropy", target=lambda o: (o["target"] - 1).clamp(min=0)),
            "output",
            "v=1000",
        ),
    },
    "linear_cross_entropy": {
        "logits not scaled": (
            with_changes("linear_cross_entropy", scale=lambda o: 1.0),
            "output",
            "scaled logits",
        ),
        "neighbouring target": (
            with_changes("linear_cross_entropy", target=lambda o: (o["target"] - 1).clamp(min=0)),
            "output",
            "v=1000",
        ),
        "weight without a gradient": (
            with_changes("linear_cross_entropy", weight=lambda o: o["weight"].detach()),
            "grad weight",
            "v=1000",
        ),
    },
    "grouped_matmul": {
        "groups moved by one row": (
            with_changes("grouped_matmul", input=lambda o: o["input"].roll(1, 0)),
            "output",
            "odd sizes",
        ),
        "experts in reverse": (
            with_changes("grouped_matmul", weight=lambda o: o["weight"].flip(0)),
            "output",
            "even",
        ),
    },
    "token_permute": {
        "order by token": (permute_by_token, "permuted", "t=37"),
        "weights of the next expert": (
            with_changes("token_permute", probs=lambda o: o["probs"].roll(1, 1)),
            "weights",
            "t=37",
        ),
        "padding of the expert before": (
            with_changes(
                "token_permute",
                pad_offsets=lambda o: (
                    None if o["pad_offsets"] is None else o["pad_offsets"].roll(1)
                ),
            ),
            "rows",
            "padded",
        ),
    },
    "token_unpermute": {
        "weights ignored": (
            with_changes("token_unpermute", weights=lambda o: None),
            "grad weights",
            "k=2, weights",
        ),
        "weights rounded": (
            with_changes(
                "token_unpermute",
                weights=lambda o: None if o["weights"] is None else o["weights"].to(o["permuted"]),
            ),
            "grad weights",
            "k=2, weights",
        ),
        "last copy only": (last_copy_only, "output", "k=2"),
    },
}
