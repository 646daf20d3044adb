"""Which of torch's attention implementations serves a call, and why.

Legend: s sequence (sq queries, sk keys), d head size of queries and keys, dv of values.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

import torch

from accel_bridge.backends.cuda.kernels._choice import Choice, missing
from accel_bridge.backends.cuda.kernels._flash import Band
from accel_bridge.backends.cuda.kernels._flash4 import missing as without_flash4
from accel_bridge.backends.cuda.kernels._frontend import missing as without_frontend
from accel_bridge.kernels import AttentionMask

_HALF: Final = (torch.float16, torch.bfloat16)
#: The largest head size of FlashAttention-2 and of cuDNN.
_WIDEST: Final = 256
#: What a mask comes down to for given lengths.
Kind = Literal["full", "causal", "band", "explicit"]


@dataclass(frozen=True, slots=True)
class Call:
    """What decides which implementation serves a call.

    :param kind: what the mask comes down to.
    :param window: a band that ends at the query itself and begins behind it.
    :param packed: sequences behind one another, with cumulative lengths.
    :param extras: there is a sink, or the log-sum-exp is requested.
    """

    dtype: torch.dtype
    d: int
    dv: int
    grouped: bool
    sq: int
    sk: int
    kind: Kind
    window: bool = False
    packed: bool = False
    extras: bool = False
    dropout: bool = False


@lru_cache(maxsize=256)
def choose(call: Call, compute: tuple[int, int]) -> Choice:
    """The implementation for ``call`` on a device of capability ``compute``.

    cuDNN runs where it was proven against float64 (docs/results.md): half precision, no
    explicit mask, gradients in the output's strides. FlashAttention-2 takes everything else in half
    precision except explicit masks; head sizes that it lacks are filled up with zeros.
    """
    if call.dtype not in _HALF:
        return Choice("sdpa", f"{call.dtype}: only SDPA has fused kernels for it")
    if compute < (8, 0):
        return Choice("sdpa", "FlashAttention needs compute capability 8.0")
    if max(call.d, call.dv) > _WIDEST:
        return Choice("sdpa", f"FlashAttention and cuDNN take head sizes up to {_WIDEST}")
    if call.kind == "explicit":
        return Choice("sdpa", "a mask that is no band, or a bias: SDPA's memory-efficient kernel")
    if call.packed:
        return Choice("flash", "packed sequences in one launch, by cumulative lengths")
    if call.kind == "band":
        return _windowed(call, compute)
    if call.extras:
        return Choice("flash", "it returns the log-sum-exp, which a sink needs too")
    return _dense(call, compute)


def _windowed(call: Call, compute: tuple[int, int]) -> Choice:
    """A band that hides keys."""
    if call.extras or call.dropout:
        return Choice("flash", "a band window: FlexAttention has neither dropout nor a sink")
    odd = call.sq != call.sk or call.sq % 128 or call.sq < 1024
    if odd or call.d != call.dv or call.d not in (64, 128):
        return Choice("flash", "a band window: FlexAttention is for long, even shapes")
    if call.window and compute >= (9, 0):
        without = without_frontend()
        if without is None:
            return Choice("frontend", "a window on cuDNN, which torch's operator does not pass on")
    else:
        without = "nvidia-cudnn-frontend serves causal windows from Hopper on"
    reason = missing()
    if reason is not None:
        return Choice("flash", f"a band window: {reason}, which FlexAttention needs")
    why = "a band window: 1.24 times FlashAttention-2 on an H200 (1024 of 4096)"
    return Choice("flex", f"{why}; {without}")


def _dense(call: Call, compute: tuple[int, int]) -> Choice:
    """Full or plain causal attention without extras."""
    if compute < (9, 0):
        return Choice("flash", "cuDNN's attention is faster from compute capability 9.0 on")
    if call.sq < 64 or min(call.d, call.dv) < 32:
        return Choice("flash", "cuDNN is proven for head sizes from 32 on and 64 or more queries")
    if call.d % 8 or call.dv % 8:
        return Choice("flash", "cuDNN takes multiples of 8; zeros fill the head up to one")
    if call.d != call.dv:
        return Choice(
            "cudnn",
            "d 192, dv 128 on an H200 at 4096 tokens, there and back: 1.39 ms; FlashAttention-2 "
            "with dv filled up 3.21, memory-efficient 13.1",
        )
    measured = compute == (9, 0) and call.d in (64, 128) and call.sq == call.sk >= 2048
    if measured and not call.dropout and without_flash4() is None:
        return Choice("flash4", "1.1 to 1.2 times cuDNN on an H200 at 4096 to 32768 tokens")
    if call.dropout:
        return Choice("cudnn", "1.13 to 1.4 times FlashAttention-2 on an H200 with dropout")
    return Choice("cudnn", "1.2 to 1.9 times FlashAttention-2 on an H200 at 4096 tokens")


@lru_cache(maxsize=256)
def shape_of(
    causal: bool,
    window: tuple[int | None, int | None] | None,
    alignment: Literal["top_left", "bottom_right"],
    sq: int,
    sk: int,
) -> tuple[Kind, Band]:
    """What a mask of positions comes down to, and its band from the bottom right."""
    mask = AttentionMask(causal=causal, window=window, alignment=alignment)
    if mask.is_full(sq, sk):
        return "full", Band()
    if mask.is_plain_causal(sq, sk):
        return "causal", Band(-1, 0)
    low, high = mask.bounds(sq, sk)
    shift = sk - sq
    left = None if low is None else shift - low
    right = None if high is None else high - shift
    if (left is not None and left < 0) or (right is not None and right < 0):
        return "explicit", Band()  # FlashAttention reads a negative end as unlimited
    if right is not None and right >= sk:
        return "explicit", Band()  # and one beyond the keys, also where queries start before them
    return "band", Band(-1 if left is None else left, -1 if right is None else right)


def examples(compute: tuple[int, int] = (9, 0)) -> list[tuple[str, str, str]]:
    """Usual calls with what serves them: (call, implementation, why)."""
    forms = (
        ("causal, s 4096, d 64 or 128", Call(torch.bfloat16, 64, 64, False, 4096, 4096, "causal")),
        ("causal, s 512, d 64", Call(torch.float16, 64, 64, False, 512, 512, "causal")),
        ("causal, d 256", Call(torch.bfloat16, 256, 256, False, 4096, 4096, "causal")),
        ("causal, d 192, dv 128", Call(torch.bfloat16, 192, 128, False, 4096, 4096, "causal")),
        ("causal, d 576, dv 512", Call(torch.bfloat16, 576, 512, False, 4096, 4096, "causal")),
        ("band window", Call(torch.bfloat16, 64, 64, False, 4096, 4096, "band", window=True)),
        ("other band", Call(torch.bfloat16, 64, 64, False, 4096, 4096, "band")),
        ("packed sequences", Call(torch.bfloat16, 64, 64, False, 4096, 4096, "band", packed=True)),
        ("explicit mask", Call(torch.bfloat16, 64, 64, False, 4096, 4096, "explicit")),
        ("sink", Call(torch.bfloat16, 64, 64, False, 4096, 4096, "causal", extras=True)),
        ("float32", Call(torch.float32, 64, 64, False, 4096, 4096, "causal")),
    )
    return [(name, (choice := choose(call, compute)).name, choice.why) for name, call in forms]
