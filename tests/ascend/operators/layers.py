"""Fused layers of transformers against plain PyTorch: values, gradients, dtypes and strides."""

from __future__ import annotations

from typing import Any

import torch
import torch_npu
from cases import FLOATS, Case, beside, leaf, rand, same, with_gradients
from torch.nn import functional


def rms_norm(x: Any, weight: Any) -> Any:
    scale = (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    return x * scale * weight, scale.detach()


def swiglu(x: Any, dim: int = -1) -> Any:
    gate, value = x.chunk(2, dim)
    return functional.silu(gate) * value


def rotary(mode: str, learned: bool = False, dtype: torch.dtype = torch.float32) -> Case:
    def case(device: str) -> Any:
        x = leaf(device, 2, 6, 3, 8, dtype=dtype)
        angles = rand("cpu", 1, 6, 1, 8)
        cosine, sine = angles.cos().to(dtype).to(device), angles.sin().to(dtype).to(device)
        inputs = [x]
        if learned:
            inputs += [cosine.requires_grad_(), sine.requires_grad_()]
        if device == "npu":
            return with_gradients(torch_npu.npu_rotary_mul(x, cosine, sine, mode), inputs)
        value = x.float()
        if mode == "half":
            first, second = value.chunk(2, -1)
            turned = torch.cat((-second, first), -1)
        else:
            turned = torch.stack((-value[..., 1::2], value[..., ::2]), -1).flatten(-2)
        return with_gradients((value * cosine + turned * sine).to(dtype), inputs)

    return case


def masked_softmax(dtype: torch.dtype, triangle: bool) -> Case:
    def case(device: str) -> Any:
        x = leaf(device, 2, 3, 32, 64, dtype=dtype)
        mask = torch.rand(2, 1, 32, 64).gt(0.7)
        if triangle:
            mask = torch.ones(32, 64, dtype=torch.bool).triu(1).expand(2, 1, 32, 64).contiguous()
        mask = mask.to(device)
        if device == "npu":
            y = torch_npu.npu_scaled_masked_softmax(x, mask, 0.5, triangle)
        else:
            y = (x.float() * 0.5).masked_fill(mask, -10000.0).softmax(-1).to(dtype)
        return with_gradients(y, (x,))

    return case


def embedding(padding: int | None, **options: Any) -> Case:
    def function(weight: Any) -> Any:
        words = torch.randint(0, 10, (3, 5)).to(weight.device)
        return functional.embedding(words, weight, padding_idx=padding)

    return same(function, (10, 4), **options)


def cross_entropy(x: Any, **options: Any) -> Any:
    target = torch.randint(0, 10, (6,))
    target[2] = -100
    return functional.cross_entropy(x, target.to(x.device), **options)


def loss(name: str, positive: bool = False) -> Case:
    """One of torch's losses in each reduction."""

    def function(x: Any) -> Any:
        target = rand(x.device, 4, 6).sigmoid()
        x = x.sigmoid() if positive else x
        reductions = ("mean", "sum", "none")
        return [getattr(functional, name)(x, target, reduction=one) for one in reductions]

    return same(function, (4, 6))


def with_logits(x: Any) -> Any:
    """Its gradient is npu_binary_cross_entropy_with_logits_backward."""
    target, weight = rand(x.device, 4, 6).sigmoid(), rand(x.device, 4, 6).abs()
    each = functional.binary_cross_entropy_with_logits
    return [each(x, target, weight=weight, reduction=one) for one in ("mean", "sum")]


def accumulated(dtype: torch.dtype) -> Case:
    """Gradients of half precision added to float32 ones, as Megatron's weights do."""

    def case(device: str) -> Any:
        total = rand(device, 6, 4)
        gradient, x = rand(device, 5, 6, dtype=dtype), rand(device, 5, 4, dtype=dtype)
        if device == "npu":
            return total.addmm_(gradient.t(), x)
        return total.addmm_(gradient.float().t(), x.float())

    return case


def torch_attention(masked: bool) -> Case:
    """F.scaled_dot_product_attention, which torch_npu has an implementation of its own for."""

    def function(*inputs: Any) -> Any:
        mask = torch.rand(2, 1, 8, 8).gt(0.3).logical_or(torch.eye(8).bool()).to(inputs[0].device)
        options: Any = {"attn_mask": mask} if masked else {"is_causal": True}
        return functional.scaled_dot_product_attention(*inputs, **options)

    return same(function, *[(2, 3, 8, 16)] * 3)


def named(name: str, case: Any, *arguments: Any) -> dict[str, Case]:
    """One case for each floating dtype."""
    return {f"layers-{name}-{str(d)[6:]}": case(*arguments, dtype=d) for d in FLOATS}


ROWS, WIDTH = (4, 6, 8), (8,)
CASES: dict[str, Case] = {
    **named(
        *("rms_norm", beside, lambda x, w: torch_npu.npu_rms_norm(x, w, 1e-5), rms_norm),
        *(ROWS, WIDTH),
    ),
    "layers-rms_norm-strided": beside(
        lambda x, w: torch_npu.npu_rms_norm(x.transpose(0, 1), w, 1e-5),
        lambda x, w: rms_norm(x.transpose(0, 1), w),
        *(ROWS, WIDTH),
    ),
    "layers-add_rms_norm": beside(
        lambda one, other, w: torch_npu.npu_add_rms_norm(one, other, w, 1e-5),
        lambda one, other, w: (*rms_norm(one + other, w), one + other),
        *((4, 8), (4, 8), WIDTH),
        gradients=False,
    ),
    **named("swiglu", beside, torch_npu.npu_swiglu, swiglu, ROWS),
    "layers-swiglu-first": beside(
        lambda x: torch_npu.npu_swiglu(x, 0), lambda x: swiglu(x, 0), ROWS
    ),
    **{
        name: case
        for words, kind in (("tanh", "tanh"), ("exact", "none"))
        for name, case in named(
            f"gelu-{words}",
            beside,
            lambda x, kind=kind: torch_npu.npu_gelu(x, approximate=kind),
            lambda x, kind=kind: functional.gelu(x, approximate=kind),
            (5, 7),
        ).items()
    },
    # torch_npu's own `F.gelu` computes the tanh form whatever `approximate` says.
    "layers-gelu-dropped_argument": beside(
        functional.gelu, lambda x: functional.gelu(x, approximate="tanh"), (5, 7)
    ),
    "layers-fast_gelu": beside(torch_npu.fast_gelu, lambda x: x * torch.sigmoid(1.702 * x), (5, 7)),
    **named("rotary-half", rotary, "half"),
    **named("rotary-interleave", rotary, "interleave"),
    "layers-rotary-learned": rotary("half", True),
    **{
        f"layers-masked_softmax-{triangle}-{str(dtype)[6:]}": masked_softmax(dtype, triangle)
        for triangle in (False, True)
        for dtype in FLOATS
    },
    **named(
        *("layer_norm", same, lambda x, w, b: functional.layer_norm(x, WIDTH, w, b)),
        *(ROWS, WIDTH, WIDTH),
    ),
    "layers-embedding": embedding(None),
    "layers-embedding-padding": embedding(3),
    "layers-embedding-bfloat16": embedding(None, dtype=torch.bfloat16),
    **named("cross_entropy", same, cross_entropy, (6, 10)),
    "layers-cross_entropy-none": same(lambda x: cross_entropy(x, reduction="none"), (6, 10)),
    "layers-cross_entropy-smooth": same(lambda x: cross_entropy(x, label_smoothing=0.1), (6, 10)),
    "layers-mse": loss("mse_loss"),
    "layers-l1": loss("l1_loss"),
    "layers-smooth_l1": loss("smooth_l1_loss"),
    "layers-binary_cross_entropy": loss("binary_cross_entropy", positive=True),
    "layers-kl": loss("kl_div"),
    "layers-with_logits": same(with_logits, (4, 6)),
    **named("softmax", same, lambda x: (x.softmax(-1), x.log_softmax(0)), (4, 6)),
    **named("accumulated", accumulated),
    "layers-attention_of_torch-causal": torch_attention(False),
    "layers-attention_of_torch-mask": torch_attention(True),
}
