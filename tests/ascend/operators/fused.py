"""Later versions of the fused attention, norms fused with their neighbours, and routing."""

from __future__ import annotations

import math
from itertools import pairwise
from operator import itemgetter
from typing import Any

import torch
import torch_npu
from cases import Case, beside, leaf, rand, wide, with_gradients
from torch.nn import functional

BATCH, HEADS, LENGTH, SIZE, ROPE = 2, 4, 8, 16, 8
QKV = [(BATCH, HEADS, LENGTH, SIZE)] * 3
ENDS = [3, 8]


def alibi(slopes: torch.Tensor, root: bool, shift: int) -> torch.Tensor:
    distance = (torch.arange(LENGTH) + shift - torch.arange(LENGTH)[:, None]).abs().float()
    return -slopes.view(-1, 1, 1) * (distance.sqrt() if root else distance)


def attend(q: Any, k: Any, v: Any, bias: Any = None, sink: Any = None, kind: int = 1) -> Any:
    """[b, n, s, d]; the sink is one more score, for which there is no value."""
    scale = 1 / math.sqrt(q.shape[-1])
    scores = wide(q) @ wide(k).transpose(-1, -2)
    if bias is not None:
        scores = (scores + bias) if kind == 1 else scores + bias / scale
    scores = scores * scale
    if sink is not None:
        column = sink.view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, column), -1)
    weights = scores.softmax(-1)
    return (weights[..., :-1] if sink is not None else weights) @ wide(v)


def second(kind: int, start: int = 0) -> Case:
    """npu_fusion_attention_v2, which adds its bias in four ways."""

    def case(device: str) -> Any:
        q, k, v = (leaf(device, BATCH, HEADS, LENGTH, SIZE) for _ in range(3))
        slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
        bias = rand(device, BATCH, HEADS, LENGTH, LENGTH)
        if device == "npu":
            y = torch_npu.npu_fusion_attention_v2(
                *(q, k, v, HEADS, "BNSD"),
                pse=bias if kind < 2 else slopes.npu(),
                scale=1 / math.sqrt(SIZE),
                pse_type=kind,
                kv_start_idx=[start] if start else None,
            )[0]
        else:
            y = attend(q, k, v, bias if kind < 2 else alibi(slopes, kind == 3, start), None, kind)
        return with_gradients(y, (q, k, v))

    return case


def packed(version: str) -> Case:
    """TND in the versions that add a bias's kind, rotated parts, the softmax's layout, a sink."""

    def case(device: str) -> Any:
        q, k = (leaf(device, ENDS[-1], HEADS, SIZE) for _ in range(2))
        v = leaf(device, ENDS[-1], HEADS, SIZE)
        inputs = [q, k, v]
        options: dict[str, Any] = {}
        if version == "rope":
            inputs += [leaf(device, ENDS[-1], HEADS, ROPE) for _ in range(2)]
            options = {"query_rope": inputs[3], "key_rope": inputs[4]}
        if version == "sink":
            inputs.append(leaf(device, HEADS))
            options = {"sink": inputs[3]}
        if version == "layout":
            options = {"softmax_layout": "TND"}
        if device == "npu":
            first = version in ("layout", "sink")
            call = torch_npu.npu_fusion_attention if first else torch_npu.npu_fusion_attention_v2
            size = SIZE + (ROPE if version == "rope" else 0)
            y = call(
                *(q, k, v, HEADS, "TND"),
                scale=1 / math.sqrt(size),
                actual_seq_qlen=ENDS,
                actual_seq_kvlen=ENDS,
                **options,
            )[0]
            return with_gradients(y, inputs)
        if version == "rope":
            q, k = torch.cat((q, inputs[3]), -1), torch.cat((k, inputs[4]), -1)
        rows = []
        for start, end in pairwise([0, *ENDS]):
            part = [x[start:end].transpose(0, 1).unsqueeze(0) for x in (q, k, v)]
            y = attend(*part, sink=options.get("sink"))
            rows.append(y.squeeze(0).transpose(0, 1))
        return with_gradients(torch.cat(rows), inputs)

    return case


def packed_softmax(device: str) -> Any:
    """Without a layout, the softmax of each sequence has its heads one after the other."""
    q, k, v = (rand(device, ENDS[-1], HEADS, SIZE) for _ in range(3))
    if device == "npu":
        return torch_npu.npu_fusion_attention(
            *(q, k, v, HEADS, "TND"),
            scale=1 / math.sqrt(SIZE),
            actual_seq_qlen=ENDS,
            actual_seq_kvlen=ENDS,
        )[1]
    rows = []
    for start, end in pairwise([0, *ENDS]):
        part = [x[start:end].transpose(0, 1) for x in (q, k)]
        largest = (part[0] @ part[1].transpose(-1, -2) / math.sqrt(SIZE)).amax(-1)
        rows.append(largest.reshape(-1, 1).expand(-1, 8))
    return torch.cat(rows).view(ENDS[-1], HEADS, 8)


def ring(device: str) -> Any:
    """Two halves of the keys, joined, give the whole; so do the gradients of each half."""
    q, k, v, dy = (rand(device, LENGTH, BATCH, HEADS * SIZE) for _ in range(4))
    scale = 1 / math.sqrt(SIZE)
    if device == "cpu":
        q, k, v = (x.requires_grad_() for x in (q, k, v))
        split = [x.unflatten(-1, (HEADS, SIZE)).permute(1, 2, 0, 3) for x in (q, k, v)]
        y = attend(*split).permute(2, 0, 1, 3).flatten(-2)
        return y.detach(), *torch.autograd.grad(y, (q, k, v), dy)
    halves = list(zip(k.chunk(2), v.chunk(2), strict=True))
    parts = [
        torch_npu.npu_fusion_attention(q, a, b, HEADS, "SBH", scale=scale)[:3] for a, b in halves
    ]
    y, maximum, total = torch_npu.npu_ring_attention_update(*parts[0], *parts[1])
    gradients = [
        torch_npu.npu_fusion_attention_grad(
            *(q, a, b, dy, HEADS, "SBH"),
            softmax_max=maximum,
            softmax_sum=total,
            attention_in=y,
            scale_value=scale,
        )[:3]
        for a, b in halves
    ]
    dq = gradients[0][0] + gradients[1][0]
    return y, dq, *(torch.cat([one[i] for one in gradients]) for i in (1, 2))


def add_layer_norm(one: Any, other: Any, weight: Any, bias: Any) -> Any:
    return functional.layer_norm(one + other, (8,), weight, bias), one + other


def gemma_norm(x: Any, weight: Any) -> Any:
    scale = (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    return x * scale * (1 + weight), scale


def norm_and_cast(one: Any, other: Any, weight: Any) -> Any:
    total = one + other
    y = total * (total.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight
    return y.half().float(), y.half(), total.half()


def group_norm(x: Any, weight: Any, bias: Any) -> Any:
    y = functional.group_norm(x, 3, weight, bias)
    return y * torch.sigmoid(1.5 * y)


def gelu_gemm(x: Any) -> Any:
    gate, value = x.chunk(2, -1)
    return functional.gelu(gate, approximate="tanh") * value


def scatter_pairs(device: str) -> Any:
    x, values = rand(device, 4, 3), rand(device, 2)
    places = torch.tensor([[0, 2], [3, 1]])
    if device == "npu":
        return torch_npu.npu_scatter_nd_update(x, places.npu(), values)
    x[places[:, 0], places[:, 1]] = values
    return x


def cross_entropy(reduction: str) -> Case:
    target, weight = torch.tensor([0, 4, 2, 3, 3, 1]), torch.tensor([0.3, 2.0, 0.7, 1.1, 0.1])
    options: Any = {"reduction": reduction, "ignore_index": 2, "label_smoothing": 0.1}
    return beside(
        lambda x: torch_npu.npu_cross_entropy_loss(x, target.npu(), weight.npu(), **options)[0],
        lambda x: functional.cross_entropy(x, target, weight, **options).reshape(-1),
        (6, 5),
    )


def gate(device: str) -> Any:
    x, done = rand(device, 6, 8), torch.tensor([False, True, False, False, True, False])
    if device == "npu":
        return torch_npu.npu_moe_gating_top_k_softmax(x, done.npu(), 2)
    weights, experts = x.softmax(-1).topk(2)
    rows = torch.arange(12, dtype=torch.int32).view(2, 6).t()
    return weights, experts.masked_fill(done[:, None], 8).int(), rows


def init_routing(device: str) -> Any:
    x = rand(device, 6, 4)
    rows = torch.arange(12, dtype=torch.int32).view(2, 6).t().contiguous()
    experts = torch.randint(0, 5, (6, 2), dtype=torch.int32)
    if device == "npu":
        return torch_npu.npu_moe_init_routing(x, rows.npu(), experts.npu(), 6)
    ordered, order = experts.flatten().sort(stable=True)
    source = rows.flatten()[order]
    places = torch.empty(12, dtype=torch.int32)
    places[source.long()] = torch.arange(12, dtype=torch.int32)
    return x[source.long() % 6], places, ordered


def by_map(weighted: bool) -> Case:
    """Tokens sorted by expert and back again, by a map with two experts a token."""

    def case(device: str) -> Any:
        copies, weights = leaf(device, 12, 4), leaf(device, 6, 5)
        chosen = torch.zeros(6, 5, dtype=torch.bool)
        chosen.scatter_(1, torch.rand(6, 5).topk(2).indices, True)
        rows = chosen.t().nonzero()[:, 1].argsort(stable=True)
        inputs = (copies, weights) if weighted else (copies,)
        if device == "npu":
            y = torch_npu.npu_moe_token_unpermute_with_routing_map(
                *(copies, rows.int().npu(), [6, 4]),
                probs=weights if weighted else None,
                routing_map=chosen.npu(),
            )
        else:
            each = copies[rows].view(6, 2, 4)
            y = each * weights[chosen].view(6, 2, 1) if weighted else each
            y = y.sum(1)
        return with_gradients(y, inputs)

    return case


def add_group_gemms(device: str) -> Any:
    """Onto the gradients of experts' weights, in float32."""
    x, dy = (rand(device, 7, n, dtype=torch.bfloat16) for n in (6, 4))
    total = rand(device, 2, 6, 4)
    if device == "npu":
        ends = torch.tensor([3, 7]).npu()
        torch_npu.npu_grouped_matmul_add_(total.view(12, 4), x, dy, ends)
        return total
    gemms = [
        a.float().t() @ b.float() for a, b in zip(x.split((3, 4)), dy.split((3, 4)), strict=True)
    ]
    return total + torch.stack(gemms)


CASES: dict[str, Case] = {
    **{f"fused-attention-bias{kind}": second(kind) for kind in range(4)},
    "fused-attention-bias-start": second(2, 3),
    "fused-attention-bias-gradient": beside(
        lambda q, k, v, bias: torch_npu.npu_fusion_attention(
            *(q, k, v, HEADS, "BNSD"), pse=bias, scale=1 / math.sqrt(SIZE)
        )[0],
        attend,
        *(*QKV, (1, HEADS, LENGTH, LENGTH)),
    ),
    "fused-attention-sink": beside(
        lambda q, k, v, sink: torch_npu.npu_fusion_attention(
            *(q, k, v, HEADS, "BNSD"), scale=1 / math.sqrt(SIZE), sink=sink
        )[0],
        lambda q, k, v, sink: attend(q, k, v, sink=sink),
        *(*QKV, (HEADS,)),
    ),
    **{f"fused-packed-{name}": packed(name) for name in ("plain", "rope", "layout", "sink")},
    "fused-packed-softmax": packed_softmax,
    "fused-ring": ring,
    "fused-add_layer_norm": beside(
        lambda *given: torch_npu.npu_add_layer_norm(*given, 1e-5, True)[::3],
        add_layer_norm,
        *((4, 8), (4, 8), (8,), (8,)),
    ),
    "fused-deep_norm": beside(
        lambda x, gx, bias, weight: torch_npu.npu_deep_norm(x, gx, bias, weight, 0.7, 1e-5)[2],
        lambda x, gx, bias, weight: functional.layer_norm(0.7 * x + gx, (8,), weight, bias),
        *((4, 8), (4, 8), (8,), (8,)),
    ),
    "fused-gemma_norm": beside(
        lambda x, weight: torch_npu.npu_gemma_rms_norm(x, weight, 1e-5),
        gemma_norm,
        *((4, 8), (8,)),
        gradients=False,
    ),
    "fused-norm_and_cast": beside(
        lambda *given: itemgetter(0, 1, 3)(torch_npu.npu_add_rms_norm_cast(*given, 1e-5)),
        norm_and_cast,
        *((4, 8), (4, 8), (8,)),
        dtype=torch.half,
        gradients=False,
    ),
    "fused-group_norm": beside(
        lambda x, weight, bias: torch_npu.npu_group_norm_swish(
            x, 3, weight, bias, eps=1e-5, swish_scale=1.5
        )[0],
        group_norm,
        *((2, 6, 5), (6,), (6,)),
    ),
    "fused-gelu_gemm": beside(
        lambda x: torch_npu.npu_gelu_mul(x, approximate="tanh"), gelu_gemm, (5, 8), gradients=False
    ),
    "fused-scatter_pairs": scatter_pairs,
    **{f"fused-cross_entropy-{name}": cross_entropy(name) for name in ("mean", "sum", "none")},
    "fused-gate": gate,
    "fused-init_routing": init_routing,
    "fused-by_map": by_map(False),
    "fused-by_map-weighted": by_map(True),
    "fused-add_group_gemms": add_group_gemms,
}
