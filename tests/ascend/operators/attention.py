"""npu_fusion_attention in every layout and sparse mode, against scores, masks and softmax by hand.

The masks are made from the sentences and examples of op-plugin's sequence, not from the emulator's
formulas: each says which keys ``j`` a query ``i`` may attend to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch_npu
from cases import FLOATS, Case, rand, with_gradients

UNLIMITED = 2147483647
TO_BNSD = {"SBH": (1, 2, 0, 3), "BSH": (0, 2, 1, 3), "BSND": (0, 2, 1, 3), "BNSD": (0, 1, 2, 3)}
FROM_BNSD = {"SBH": (2, 0, 1, 3), "BSH": (0, 2, 1, 3), "BSND": (0, 2, 1, 3), "BNSD": (0, 1, 2, 3)}


def triangle(device: str = "npu") -> torch.Tensor:
    return torch.ones(2048, 2048, dtype=torch.bool, device=device).triu(1)


def prefix_mask() -> torch.Tensor:
    """The compressed mask of mode 6."""
    rectangle = torch.zeros(1024, 2048, dtype=torch.bool)
    rectangle[:, 1024:] = True
    return torch.cat((triangle("cpu"), rectangle)).to("npu")


@dataclass(frozen=True)
class Problem:
    """One call. ``lengths`` are those of packed sequences, as pairs of queries and keys."""

    layout: str = "BNSD"
    batch: int = 2
    queries: int = 8
    keys: int = 8
    heads: int = 4
    kv_heads: int = 4
    size: int = 8
    mode: int = 0
    before: int = UNLIMITED
    after: int = UNLIMITED
    prefix: Sequence[int] | None = None
    lengths: Sequence[tuple[int, int]] = ()
    mask: str = ""  # of modes 0 and 1: "full", "causal", "band", "random", "row"
    dims: int = 2
    dtype: torch.dtype = torch.float32
    bias: bool = False
    precise: int = 0

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.size)

    def allowed(self, sq: int, sk: int, number: int, count: int) -> torch.Tensor | None:
        """Bool [b or 1, 1, sq, sk]; ``number`` is a packed sequence's, of ``count``."""
        i, j = torch.arange(sq)[:, None], torch.arange(sk)[None, :]
        right_down = i + sk - sq  # the key that the last query, and so on upwards, ends with
        band = (j >= right_down - self.before) & (j <= right_down + self.after)
        if self.mode in (0, 1):
            return given(self, sq, sk)
        if self.mode == 2:
            return (j <= i)[None, None]
        if self.mode == 3:
            return (j <= right_down)[None, None]
        if self.mode == 4:
            return band[None, None]
        if self.mode in (5, 6):
            assert self.prefix is not None
            free = self.prefix[number : number + 1] if self.lengths else self.prefix
            return torch.stack([(j <= right_down) | (j < n) for n in free]).unsqueeze(1)
        if self.mode == 7:
            return (band if number == count - 1 else j <= right_down)[None, None]
        return (band if number == 0 else j <= i)[None, None]

    def mask_argument(self) -> torch.Tensor | None:
        """What the NPU is given: True is hidden."""
        if self.mode == 6:
            return prefix_mask()
        if self.mode in (2, 3, 4, 7, 8):
            return triangle()
        if self.mode == 5:
            allowed = self.allowed(self.queries, self.keys, 0, 1)
            assert allowed is not None
            return allowed.logical_not().to("npu")
        sides = [max(side) for side in zip(*self.lengths, strict=True)]
        sq, sk = sides if self.lengths else (self.queries, self.keys)
        allowed = given(self, sq, sk)
        if allowed is None:
            return None
        hidden = allowed.logical_not().to("npu")
        return hidden[0, 0] if self.dims == 2 else hidden


def given(p: Problem, sq: int, sk: int) -> torch.Tensor | None:
    """The mask of modes 0 and 1, True is allowed."""
    if not p.mask:
        return None
    i, j = torch.arange(sq)[:, None], torch.arange(sk)[None, :]
    if p.mask == "causal":
        allowed = j <= i
    elif p.mask == "band":
        allowed = (j >= i - p.before) & (j <= i + p.after)
    elif p.mask == "random":
        allowed = (i * 7 + j * 3) % 5 != 0
    else:  # two rows see nothing
        allowed = (j <= i) & (i != 2) & (i != 5)
    if p.dims == 4:
        return allowed.expand(p.batch, 1, sq, sk)
    return allowed[None, None]


def attend(
    p: Problem, q: Any, k: Any, v: Any, bias: Any, number: int = 0, count: int = 1
) -> torch.Tensor:
    """[b, n, s, d] in float32."""
    times = q.shape[1] // k.shape[1]
    k, v = k.float().repeat_interleave(times, 1), v.float().repeat_interleave(times, 1)
    scores = q.float() @ k.transpose(-1, -2)
    if bias is not None:
        scores = scores + bias.float()
    scores = scores * p.scale
    allowed = p.allowed(q.shape[2], k.shape[2], number, count)
    if allowed is None:
        return scores.softmax(-1) @ v
    # Rows that see nothing average all values, unless the kernel looks for them. The kernel's
    # backward starts from the probabilities: it knows no mask.
    fill = (-1e30 - scores).detach().masked_fill(allowed, 0)
    weights = (scores + fill).softmax(-1)
    looks = p.precise == 2 or (p.mode == 3 and q.shape[2] > k.shape[2])
    if looks:
        weights = weights * allowed.any(-1, keepdim=True)
    return weights @ v


def dense(p: Problem) -> Case:
    def case(device: str) -> Any:
        inputs = []
        for length, heads in ((p.queries, p.heads), (p.keys, p.kv_heads), (p.keys, p.kv_heads)):
            x = rand(device, p.batch, heads, length, p.size, dtype=p.dtype)
            x = x.permute(FROM_BNSD[p.layout])
            if p.layout in ("SBH", "BSH"):
                x = x.flatten(-2)
            inputs.append(x.detach().contiguous().requires_grad_())
        bias = rand(device, p.batch, p.heads, p.queries, p.keys, dtype=p.dtype) if p.bias else None
        if device == "npu":
            y = torch_npu.npu_fusion_attention(
                *inputs,
                p.heads,
                p.layout,
                pse=bias,
                atten_mask=p.mask_argument(),
                scale=p.scale,
                pre_tockens=p.before,
                next_tockens=p.after,
                inner_precise=p.precise,
                prefix=p.prefix,
                sparse_mode=p.mode,
            )[0]
            return with_gradients(y, inputs)
        split = [x.unflatten(-1, (-1, p.size)) if x.dim() == 3 else x for x in inputs]
        y = attend(p, *(x.permute(TO_BNSD[p.layout]) for x in split), bias)
        y = y.permute(FROM_BNSD[p.layout]).to(p.dtype)
        return with_gradients(y.flatten(-2) if p.layout in ("SBH", "BSH") else y, inputs)

    return case


def packed(p: Problem) -> Case:
    """TND: sequences one after the other, their ends without a leading zero."""

    def case(device: str) -> Any:
        ends = [torch.tensor(side).cumsum(0).tolist() for side in zip(*p.lengths, strict=True)]
        inputs = [
            rand(device, total[-1], heads, p.size, dtype=p.dtype).requires_grad_()
            for total, heads in ((ends[0], p.heads), (ends[1], p.kv_heads), (ends[1], p.kv_heads))
        ]
        if device == "npu":
            y = torch_npu.npu_fusion_attention(
                *inputs,
                p.heads,
                "TND",
                atten_mask=p.mask_argument(),
                scale=p.scale,
                pre_tockens=p.before,
                next_tockens=p.after,
                prefix=p.prefix,
                actual_seq_qlen=ends[0],
                actual_seq_kvlen=ends[1],
                sparse_mode=p.mode,
            )[0]
            return with_gradients(y, inputs)
        parts = []
        places = zip(*(pairwise([0, *side]) for side in ends), strict=True)
        for number, ((q0, q1), (k0, k1)) in enumerate(places):
            bounds = ((q0, q1), (k0, k1), (k0, k1))
            one = [x[a:b].transpose(0, 1)[None] for x, (a, b) in zip(inputs, bounds, strict=True)]
            y = attend(p, *one, None, number, len(p.lengths))
            parts.append(y[0].transpose(0, 1))
        return with_gradients(torch.cat(parts).to(p.dtype), inputs)

    return case


def dropout(layout: str) -> Callable[[], None]:
    """With the identity as values, the output is the dropped softmax itself."""

    def check() -> None:
        n, length, keep = 4, 64, 0.75
        shape = (1, n, length, length) if layout == "BNSD" else (length, n, length)
        q, k, dy = (torch.randn(shape).npu() for _ in range(3))
        identity = torch.eye(length).expand(1, n, length, length)
        v = (identity if layout == "BNSD" else identity[0].transpose(0, 1)).contiguous().npu()
        for tensor in (q, k, v):
            tensor.requires_grad_()
        ends = {}
        if layout == "TND":
            ends = {"actual_seq_qlen": [24, 64], "actual_seq_kvlen": [24, 64]}
        y = torch_npu.npu_fusion_attention(q, k, v, n, layout, keep_prob=keep, scale=0.1, **ends)[0]
        found = torch.autograd.grad(y, (q, k, v), dy)
        ours = [t.detach().cpu().requires_grad_() for t in (q, k, v)]
        one = [t if layout == "BNSD" else t.transpose(0, 1)[None] for t in ours]
        scores = one[0] @ one[1].transpose(-1, -2) * 0.1
        if ends:
            group = torch.arange(64) < 24
            scores = scores.masked_fill(group[:, None] != group[None, :], -math.inf)
        p = scores.softmax(-1)
        drawn = y.detach().cpu() if layout == "BNSD" else y.detach().cpu().transpose(0, 1)[None]
        kept = drawn != 0
        possible = p.detach() > 0
        share = kept[possible].float().mean().item()
        assert abs(share - keep) < 0.02, f"{share} of the probabilities are kept"
        want = p * kept / keep @ one[2]
        want = want if layout == "BNSD" else want[0].transpose(0, 1)
        torch.testing.assert_close(y.detach().cpu(), want.detach())
        for gradient, other in zip(found, torch.autograd.grad(want, ours, dy.cpu()), strict=True):
            torch.testing.assert_close(gradient.cpu(), other, rtol=1e-4, atol=1e-5)

    return check


def statistics() -> None:
    """Maximum and sum of each row, eight times, as the backward wants them."""
    q, k, v = (torch.randn(1, 2, 5, 8).npu() for _ in range(3))
    _, maximum, total, *_ = torch_npu.npu_fusion_attention(q, k, v, 2, "BNSD", scale=0.5)
    scores = q.cpu() @ k.cpu().transpose(-1, -2) * 0.5
    assert maximum.shape == total.shape == (1, 2, 5, 8)
    torch.testing.assert_close(maximum.cpu()[..., 3:4], scores.amax(-1, True))
    torch.testing.assert_close(
        total.cpu()[..., 5:6], (scores - scores.amax(-1, True)).exp().sum(-1, True)
    )


ROUND = {"queries": 6, "keys": 10}
HIGH = {"queries": 10, "keys": 6}
BAND = {"before": 3, "after": 1}
DENSE: dict[str, Problem] = {
    **{f"{layout}-full": Problem(layout) for layout in TO_BNSD},
    **{f"{layout}-2": Problem(layout, mode=2) for layout in TO_BNSD},
    **{f"{layout}-grouped": Problem(layout, mode=3, kv_heads=2, **ROUND) for layout in TO_BNSD},
    **{f"full-{str(d)[6:]}": Problem("SBH", mode=2, dtype=d) for d in FLOATS[1:]},
    "0-causal": Problem("BSND", mask="causal", after=0),
    "0-legacy": Problem("SBH", mask="causal", before=65536, after=0),
    "0-band": Problem(mask="band", **BAND),
    "0-batches": Problem(mask="random", dims=4),
    "0-row": Problem(mask="row"),
    "0-row-looked_for": Problem(mask="row", precise=2),
    "1": Problem(mask="random", mode=1),
    "1-band_ignored": Problem(mask="random", mode=1, before=1, after=0),
    "2-wide": Problem(mode=2, **ROUND),
    "3-wide": Problem(mode=3, **ROUND),
    "3-high": Problem(mode=3, **HIGH),
    "4": Problem(mode=4, **BAND),
    "4-wide": Problem(mode=4, **BAND, **ROUND),
    "4-inclusive": Problem(mode=4, before=2, after=0),
    "4-negative": Problem(mode=4, before=4, after=-1),
    "5": Problem(mode=5, prefix=(3, 5), dims=4),
    "6": Problem(mode=6, prefix=(3, 5)),
    "6-wide": Problem(mode=6, prefix=(5, 7), **ROUND),
    "bias": Problem(bias=True),
    "bias-2": Problem(mode=2, bias=True),
}
THREE = ((3, 3), (5, 5), (2, 2))
UNEVEN = ((2, 4), (3, 6), (1, 2))
PACKED: dict[str, Problem] = {
    "full": Problem(lengths=UNEVEN),
    "grouped": Problem(lengths=UNEVEN, kv_heads=2),
    "bfloat16": Problem(lengths=THREE, mode=3, dtype=torch.bfloat16),
    "0": Problem(lengths=THREE, mask="causal", after=0),
    "2": Problem(lengths=THREE, mode=2),
    "3": Problem(lengths=UNEVEN, mode=3),
    "4": Problem(lengths=THREE, mode=4, **BAND),
    "6": Problem(lengths=THREE, mode=6, prefix=(1, 4, 2)),
    # The sequence's own examples of sequences that were cut between cards.
    "7": Problem(lengths=((3, 3), (2, 6)), mode=7, before=6, after=-2),
    "8": Problem(lengths=((3, 4), (5, 5), (4, 4)), mode=8, before=4, after=1),
    "empty": Problem(lengths=((2, 2), (0, 0), (3, 3)), mode=3),
}
CASES: dict[str, Case] = {
    **{f"attention-{name}": dense(problem) for name, problem in DENSE.items()},
    **{f"attention-TND-{name}": packed(problem) for name, problem in PACKED.items()},
}
CHECKS: dict[str, Callable[[], None]] = {
    "attention-dropout-BNSD": dropout("BNSD"),
    "attention-dropout-TND": dropout("TND"),
    "attention-statistics": statistics,
}
