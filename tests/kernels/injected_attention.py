"""Attention kernels with one error each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

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


#: name -> (kernel, part that must be named, words of a case that must fail).
INJECTED: Final[dict[str, tuple[Function, str, str]]] = {
    "scale of the values' head size": (
        like_attention(_scale_of_the_values),
        "output",
        "d=192 dv=128",
    ),
    "sequences seen as one": (like_attention(_one_document), "output", "TND full"),
    "mean for hidden rows": (mean_where_nothing_is_seen, "output", "BSHD causal, a hidden row"),
    "dropout without scaling": (unscaled_dropout, "output", "dropout 0.2"),
    "same mask at every call": (generator_left_where_it_was, "next call", "dropout 0.2"),
    "same mask for all heads": (
        one_mask_for_all_heads,
        "neighbours in dimension 1",
        "dropout 0.2",
    ),
    "another mask in backward": (other_mask_in_backward, "grad query", "dropout 0.2"),
}
