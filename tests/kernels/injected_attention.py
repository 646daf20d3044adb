"""Attention kernels with one error each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import torch

from accel_bridge.kernels import AttentionMask

from . import injected
from .injected import by_name

Function = Callable[..., Any]


def reference(inputs: dict[str, Any]) -> Any:
    """What the reference gives for inputs by name."""
    return injected.reference("attention", inputs)


def like_attention(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Function:
    """The reference, called with changed arguments."""

    def attention(**options: Any) -> Any:
        return reference(change(by_name(options)))

    return attention


def _scale_of_the_values(options: dict[str, Any]) -> dict[str, Any]:
    """1 / sqrt(dv) for 1 / sqrt(d), as a kernel that knows one head size."""
    if options.get("scale") is not None or options.get("heads"):
        return options
    return {**options, "scale": options["value"].shape[-1] ** -0.5}


def _narrower(options: dict[str, Any]) -> dict[str, Any]:
    """The last column of narrower values is lost, as by a kernel whose tiles are wider than dv."""
    value = options["value"]
    if value.shape[-1] == options["query"].shape[-1]:
        return options
    kept = torch.ones(value.shape[-1], dtype=value.dtype)
    kept[-1] = 0.0
    return {**options, "value": value * kept}


def _mask(options: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**options, "mask": replace(options["mask"], **changes)}


def _window(options: dict[str, Any], left: int, right: int) -> dict[str, Any]:
    """Both ends of the window moved, where they are limited."""
    window = options["mask"].window
    if window is None:
        return options
    moved = tuple(
        side if side is None else side + by for side, by in zip(window, (left, right), strict=True)
    )
    return _mask(options, window=moved)


def _future(options: dict[str, Any]) -> dict[str, Any]:
    """A causal mask that lets a query see one key after it."""
    mask: AttentionMask = options["mask"]
    if not mask.causal:
        return options
    left = mask.window[0] if mask.window else None
    right = 1 if mask.window is None or mask.window[1] is None else min(mask.window[1], 1)
    return _mask(options, causal=False, window=(left, right))


def _heads_in_turn(options: dict[str, Any]) -> dict[str, Any]:
    """Query head i reads key head i mod g instead of i // (n / g)."""
    axis = {"SBHD": 2, "BSHD": 2, "BNSD": 1, "TND": 1}.get(options["layout"])
    if axis is None:
        return options
    times = options["query"].shape[axis] // options["key"].shape[axis]
    repeats = [times if dim == axis else 1 for dim in range(options["key"].dim())]
    return {**options, **{name: options[name].repeat(repeats) for name in ("key", "value")}}


def _one_document(options: dict[str, Any]) -> dict[str, Any]:
    """Packed sequences see each other."""
    if options["layout"] != "TND":
        return options
    ends = {name: options[name][[0, -1]] for name in ("cu_seqlens_q", "cu_seqlens_kv")}
    return {**options, **ends}


def mean_where_nothing_is_seen(**options: Any) -> Any:
    """A fully hidden row gives the mean of all values, as a fill of -10000 does."""
    options = by_name(options)
    output = reference(options)
    masked = options["mask"].masked
    if masked is None or isinstance(output, tuple) or options["layout"] != "BSHD":
        return output
    alone = masked.all(-1).any(1)[..., None, None]  # [b, sq, 1, 1]
    mean = options["value"].mean(1, keepdim=True)
    times = output.shape[2] // mean.shape[2]
    return torch.where(alone, mean.repeat_interleave(times, 2), output)


def unscaled_dropout(**options: Any) -> Any:
    """What is kept is not multiplied by 1 / (1 - dropout)."""
    options = by_name(options)
    output = reference(options)
    return output * (1 - options["dropout"]) if options.get("dropout") else output


def _weights(options: dict[str, Any]) -> torch.Tensor:
    """What the values are multiplied by, [b, n, sq, sk]; the layout is BNSD and d is sk."""
    eye = torch.eye(options["key"].shape[2], dtype=options["key"].dtype)
    weights = reference({**options, "value": eye.expand_as(options["value"])})
    assert isinstance(weights, torch.Tensor)
    return weights


class _OtherMaskBackward(torch.autograd.Function):
    """Dropout whose backward pass draws another mask."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dropout: float) -> torch.Tensor:
        ctx.dropout = dropout
        return torch.nn.functional.dropout(x, dropout)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.nn.functional.dropout(gradient, ctx.dropout), None


def other_mask_in_backward(**options: Any) -> Any:
    """As a recomputation without the random state of the forward pass."""
    options = by_name(options)
    dropout = options.pop("dropout", 0.0)
    if not dropout:
        return reference(options)
    return _OtherMaskBackward.apply(_weights(options), dropout) @ options["value"]


def generator_left_where_it_was(**options: Any) -> Any:
    """Every call draws the same mask until somebody else draws."""
    options = by_name(options)
    state = torch.get_rng_state()
    output = reference(options)
    torch.set_rng_state(state)
    return output


def one_mask_for_all_heads(**options: Any) -> Any:
    options = by_name(options)
    dropout = options.pop("dropout", 0.0)
    if not dropout:
        return reference(options)
    weights = _weights(options)
    kept = torch.rand_like(weights[:, :1].float()) >= dropout
    return (weights * kept / (1 - dropout)) @ options["value"]


class _GradientTakenForContiguous(torch.autograd.Function):
    """A backward pass that reads the gradient's memory as if it had the output's strides."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor) -> torch.Tensor:
        ctx.strides = output.stride()
        return output.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0].as_strided(gradients[0].shape, ctx.strides)


def strides_of_the_gradient_ignored(**options: Any) -> Any:
    """What cuDNN's attention does in torch 2.11."""
    options = by_name(options)
    output = reference(options)
    return output if isinstance(output, tuple) else _GradientTakenForContiguous.apply(output)


#: name -> (kernel, part that must be named, words of a case that must fail).
INJECTED: Final[dict[str, tuple[Function, str, str]]] = {
    "scale of the values' head size": (
        like_attention(_scale_of_the_values),
        "output",
        "d=192 dv=128",
    ),
    "last column of narrower values lost": (
        like_attention(_narrower),
        "grad value",
        "d=96 dv=64",
    ),
    "a key of the future": (like_attention(_future), "output", "SBHD causal b=2"),
    "window one short": (like_attention(lambda o: _window(o, -1, 0)), "output", "window 8,0"),
    "window one long": (like_attention(lambda o: _window(o, 1, 0)), "output", "legacy 8,0"),
    "window one long to the right": (
        like_attention(lambda o: _window(o, 0, 1)),
        "output",
        "window 5,3",
    ),
    "heads in turn": (like_attention(_heads_in_turn), "output", "BNSD full b=2 n=6 g=2"),
    "sequences seen as one": (like_attention(_one_document), "output", "TND full"),
    "mean for hidden rows": (mean_where_nothing_is_seen, "output", "BSHD causal, a hidden row"),
    "sink that nobody asked for": (
        like_attention(
            lambda o: (
                {**o, "softmax_offset": torch.tensor(0.0)} if o["softmax_offset"] is None else o
            )
        ),
        "output",
        "BNSD full",
    ),
    "dropout without scaling": (unscaled_dropout, "output", "dropout 0.2"),
    "same mask at every call": (generator_left_where_it_was, "next call", "dropout 0.2"),
    "same mask for all heads": (
        one_mask_for_all_heads,
        "neighbours in dimension 1",
        "dropout 0.2",
    ),
    "strides of the gradient ignored": (
        strides_of_the_gradient_ignored,
        "grad value",
        "sliced gradient",
    ),
    "another mask in backward": (other_mask_in_backward, "grad query", "dropout 0.2"),
}
