"""torch_npu's operators in plain PyTorch, after their sequences: a shim without torch_npu.

The schemas are those of torch_npu 2.14.0; ``test_schemas`` compares them with the real wheel's.
Masks are built here from the sequences' formulas, by another way than the kernels choose modes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

SCHEMAS = {
    "npu_fusion_attention": "(Tensor query, Tensor key, Tensor value, int head_num, "
    "str input_layout, Tensor? pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None, "
    "float scale=1., float keep_prob=1., int pre_tockens=2147483647, "
    "int next_tockens=2147483647, int inner_precise=0, int[]? prefix=None, "
    "int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None, int sparse_mode=0, "
    "bool gen_mask_parallel=True, bool sync=False, str softmax_layout='', Tensor? sink=None, "
    "Tensor? dropout_mask=None, int seed=0, int offset=0) "
    "-> (Tensor, Tensor, Tensor, Tensor, int, int, int)",
    "npu_rms_norm": "(Tensor input, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor)",
    "npu_rotary_mul": "(Tensor input, Tensor r1, Tensor r2, str rotary_mode='half', "
    "Tensor? rotate=None) -> Tensor",
    "npu_swiglu": "(Tensor input, int dim=-1) -> Tensor",
    "npu_gelu": "(Tensor input, *, str approximate='none') -> Tensor",
    "npu_scaled_masked_softmax": "(Tensor x, Tensor mask, Scalar scale=1, "
    "bool fixed_triu_mask=False) -> Tensor",
    "npu_grouped_matmul": "(Tensor[] x, Tensor[] weight, *, Tensor[]? bias=None, "
    "Tensor[]? scale=None, Tensor[]? offset=None, Tensor[]? antiquant_scale=None, "
    "Tensor[]? antiquant_offset=None, Tensor[]? per_token_scale=None, Tensor? group_list=None, "
    "Tensor[]? activation_input=None, Tensor[]? activation_quant_scale=None, "
    "Tensor[]? activation_quant_offset=None, int? split_item=0, int? group_type=None, "
    "int? group_list_type=0, int? act_type=0, int[]? tuning_config=None, "
    "int? output_dtype=None) -> Tensor[]",
    "npu_grouped_matmul_add_": "(Tensor(a!) input, Tensor x, Tensor weight, Tensor group_list, *, "
    "bool transpose_x=True, bool transpose_weight=False, int group_type=2, "
    "int? group_list_type=0) -> Tensor(a!)",
}
BATCHES = {"SBH": (1, 2, 0, 3), "BSH": (0, 2, 1, 3), "BSND": (0, 2, 1, 3), "BNSD": (0, 1, 2, 3)}
BACK = {"SBH": (2, 0, 1, 3), "BSH": (0, 2, 1, 3), "BSND": (0, 2, 1, 3), "BNSD": (0, 1, 2, 3)}
TRIANGLE = torch.ones(2048, 2048, dtype=torch.bool).triu(1)


def hidden(sq: int, sk: int, mode: int, pre: int, after: int, mask: Any) -> torch.Tensor | None:
    """Bool [.., sq, sk], True = hidden. Without a mask nothing is, whatever the mode."""
    if mask is None:
        return None
    if mode in (2, 3, 4):
        assert torch.equal(mask, TRIANGLE), "modes 2, 3 and 4 take the compressed mask"
    distance = torch.arange(sk)[None, :] - torch.arange(sq)[:, None]
    if mode == 2:
        return distance > 0
    if mode == 3:
        return distance > sk - sq
    if mode == 4:
        assert pre + after >= 0, "the band has no width"
        from_bottom_right = distance - (sk - sq)
        return (from_bottom_right < -pre) | (from_bottom_right > after)
    assert mode == 0, f"sparse_mode {mode}"
    assert tuple(mask.shape[-2:]) == (sq, sk), f"mask {list(mask.shape)} for {sq} x {sk}"
    assert mask.dim() in (2, 4)
    return mask  # type: ignore[no-any-return]


def scores(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, scale: float, keep: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """BNSD attention in float32: output, and the maximum and sum of each row [b, n, sq, 8]."""
    dtype, group = q.dtype, q.shape[1] // k.shape[1]
    q, k, v = q.float(), *(part.float().repeat_interleave(group, 1) for part in (k, v))
    s = q @ k.transpose(-1, -2) * scale
    if mask is not None:
        s = s.masked_fill(mask, -1e30)
    maximum = s.amax(-1, keepdim=True)
    weights = (s - maximum).exp()
    total = weights.sum(-1, keepdim=True)
    p = functional.dropout(weights / total, 1 - keep) if keep < 1 else weights / total
    stats = [part.expand(*part.shape[:-1], 8).clone() for part in (maximum, total)]
    return (p @ v).to(dtype), stats[0], stats[1]


def npu_fusion_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    pse: Any = None,
    padding_mask: Any = None,
    atten_mask: Any = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = 2147483647,
    next_tockens: int = 2147483647,
    inner_precise: int = 0,
    prefix: Any = None,
    actual_seq_qlen: Any = None,
    actual_seq_kvlen: Any = None,
    sparse_mode: int = 0,
    *unused: Any,
) -> tuple[Any, ...]:
    assert query.dtype == key.dtype == value.dtype
    assert 0 < keep_prob <= 1
    band = (sparse_mode, pre_tockens, next_tockens, atten_mask)
    if input_layout == "TND":
        outputs, start_q, start_k = [], 0, 0
        assert actual_seq_qlen[-1] == query.shape[0]
        assert actual_seq_kvlen[-1] == key.shape[0]
        for end_q, end_k in zip(actual_seq_qlen, actual_seq_kvlen, strict=True):
            parts = (
                query[start_q:end_q].transpose(0, 1)[None],
                key[start_k:end_k].transpose(0, 1)[None],
                value[start_k:end_k].transpose(0, 1)[None],
            )
            mask = hidden(end_q - start_q, end_k - start_k, *band)
            outputs.append(scores(*parts, mask, scale, keep_prob)[0][0].transpose(0, 1))
            start_q, start_k = end_q, end_k
        empty = query.new_zeros(0)
        return torch.cat(outputs), empty, empty, empty, 0, 0, 0
    parts = [query, key, value]
    if input_layout in ("SBH", "BSH"):
        size = query.shape[-1] // head_num
        parts = [part.unflatten(-1, (-1, size)) for part in parts]
    q, k, v = (part.permute(BATCHES[input_layout]) for part in parts)
    assert q.shape[1] == head_num
    assert k.shape == v.shape, "key and value have one shape"
    output, maximum, total = scores(
        q, k, v, hidden(q.shape[2], k.shape[2], *band), scale, keep_prob
    )
    output = output.permute(BACK[input_layout])
    if input_layout in ("SBH", "BSH"):
        output = output.flatten(-2)
    return output, maximum, total, query.new_zeros(0), 0, 0, 0


def npu_rms_norm(x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> tuple[Any, Any]:
    assert gamma.dtype in (torch.float32, x.dtype)
    assert 2 <= x.dim() <= 8
    rstd = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + epsilon)
    return (x.float() * rstd * gamma.float()).to(x.dtype), rstd


def npu_rotary_mul(
    x: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, rotary_mode: str = "half", *unused: Any
) -> torch.Tensor:
    assert r1.shape[-1] == x.shape[-1]
    assert x.shape[-1] % 2 == 0
    assert x.shape[-1] < 896
    assert r1.abs().max() <= 1
    assert r2.abs().max() <= 1
    if rotary_mode == "half":
        first, second = x.chunk(2, -1)
        rotated = torch.cat((-second, first), -1)
    else:
        assert rotary_mode == "interleave"
        rotated = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return (x.float() * r1.float() + rotated.float() * r2.float()).to(x.dtype)


def npu_swiglu(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    assert x.is_contiguous()
    assert x.numel()
    a, b = x.float().chunk(2, dim)
    return (functional.silu(a) * b).to(x.dtype)


def npu_gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    return functional.gelu(x, approximate=approximate)


def npu_scaled_masked_softmax(
    x: torch.Tensor, mask: torch.Tensor, scale: float = 1, fixed_triu_mask: bool = False
) -> torch.Tensor:
    assert mask.dtype == torch.bool
    assert not fixed_triu_mask
    assert all(32 <= side <= 4096 and side % 32 == 0 for side in x.shape[-2:])
    torch.broadcast_to(mask, x.shape)
    return (x.float() * scale).masked_fill(mask, -10000.0).softmax(-1).to(x.dtype)


def npu_grouped_matmul(
    x: list[torch.Tensor],
    weight: list[torch.Tensor],
    *,
    group_list: Any = None,
    split_item: int = 0,
    group_type: Any = None,
    group_list_type: int = 0,
    **unused: Any,
) -> list[torch.Tensor]:
    assert split_item in (2, 3)
    assert group_list_type == 0
    assert group_list.dtype == torch.int64
    ends = group_list.tolist()
    starts = [0, *ends[:-1]]
    (left,), (right,) = x, weight
    if group_type == 0:
        assert ends[-1] == left.shape[0]
        parts = [left[a:b] @ right[i] for i, (a, b) in enumerate(zip(starts, ends, strict=True))]
        return [torch.cat(parts)]
    assert group_type == 2
    assert ends[-1] == left.shape[1]
    gemms = [
        # What an empty group gets is not documented.
        left[:, a:b] @ right[a:b]
        if b > a
        else left.new_full((left.shape[0], right.shape[1]), math.nan)
        for a, b in zip(starts, ends, strict=True)
    ]
    return [torch.stack(gemms)]


def npu_grouped_matmul_add_(
    input: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    group_list: torch.Tensor,
    *,
    transpose_x: bool = True,
    transpose_weight: bool = False,
    group_type: int = 2,
    group_list_type: int = 0,
) -> torch.Tensor:
    assert transpose_x
    assert not transpose_weight
    assert (group_type, group_list_type) == (2, 0)
    assert input.dtype == torch.float32
    assert x.dtype in (torch.float16, torch.bfloat16)
    ends = group_list.tolist()
    assert ends[-1] == x.shape[0]
    sums = input.view(len(ends), x.shape[1], weight.shape[1])
    for total, a, b in zip(sums, [0, *ends[:-1]], ends, strict=True):
        total.add_(x[a:b].float().t() @ weight[a:b].float())
    return input


OPERATORS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        npu_fusion_attention,
        npu_rms_norm,
        npu_rotary_mul,
        npu_swiglu,
        npu_gelu,
        npu_scaled_masked_softmax,
        npu_grouped_matmul,
        npu_grouped_matmul_add_,
    )
}


def register() -> torch.library.Library:
    """Define the operators in this process; they go when the library is destroyed."""
    library = torch.library.Library("npu", "DEF")
    for name, schema in SCHEMAS.items():
        library.define(f"{name}{schema}")
        library.impl(name, OPERATORS[name], "CompositeImplicitAutograd")
    return library
