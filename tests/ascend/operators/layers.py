"""Fused layers of transformers against plain PyTorch: values, gradients, dtypes and strides."""

from __future__ import annotations

from typing import Any

import torch
import torch_npu
from cases import FLOATS, Case, leaf, rand, wide, with_gradients
from torch.nn import functional


def rms_norm(dtype: torch.dtype, strided: bool = False) -> Case:
    def case(device: str) -> Any:
        x, weight = leaf(device, 4, 6, 8, dtype=dtype), leaf(device, 8, dtype=dtype)
        value = x.transpose(0, 1) if strided else x
        if device == "npu":
            y, scale = torch_npu.npu_rms_norm(value, weight, 1e-5)
        else:
            scale = (value.float().square().mean(-1, keepdim=True) + 1e-5).rsqrt()
            y = (value.float() * scale * weight.float()).to(dtype)
        return *with_gradients(y, (x, weight)), scale.detach()

    return case


def add_rms_norm(device: str) -> Any:
    one, other, weight = rand(device, 4, 8), rand(device, 4, 8), rand(device, 8)
    if device == "npu":
        return torch_npu.npu_add_rms_norm(one, other, weight, 1e-5)
    total = one + other
    scale = (total.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    return total * scale * weight, scale, total


def swiglu(dtype: torch.dtype, dim: int = -1) -> Case:
    def case(device: str) -> Any:
        x = leaf(device, 4, 6, 8, dtype=dtype)
        if device == "npu":
            return with_gradients(torch_npu.npu_swiglu(x, dim), (x,))
        gate, value = wide(x).chunk(2, dim)
        return with_gradients((functional.silu(gate) * value).to(dtype), (x,))

    return case


def gelu(kind: str, dtype: torch.dtype) -> Case:
    def case(device: str) -> Any:
        x = leaf(device, 5, 7, dtype=dtype)
        if device == "npu":
            return with_gradients(torch_npu.npu_gelu(x, approximate=kind), (x,))
        return with_gradients(functional.gelu(wide(x), approximate=kind).to(dtype), (x,))

    return case


def dropped_argument(device: str) -> Any:
    """torch_npu's own ``F.gelu`` computes the tanh form whatever ``approximate`` says."""
    x = leaf(device, 5, 7)
    kind = "none" if device == "npu" else "tanh"
    return with_gradients(functional.gelu(x, approximate=kind), (x,))


def fast_gelu(device: str) -> Any:
    x = leaf(device, 5, 7)
    if device == "npu":
        return with_gradients(torch_npu.fast_gelu(x), (x,))
    return with_gradients(x * torch.sigmoid(1.702 * x), (x,))


def rotary(mode: str, dtype: torch.dtype, learned: bool = False) -> Case:
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


def layer_norm(dtype: torch.dtype) -> Case:
    def case(device: str) -> Any:
        x, weight, bias = (leaf(device, *s, dtype=dtype) for s in ((4, 6, 8), (8,), (8,)))
        if device == "npu":
            return with_gradients(functional.layer_norm(x, (8,), weight, bias), (x, weight, bias))
        y = functional.layer_norm(x.float(), (8,), weight.float(), bias.float()).to(dtype)
        return with_gradients(y, (x, weight, bias))

    return case


def embedding(dtype: torch.dtype, padding: int | None) -> Case:
    def case(device: str) -> Any:
        weight = leaf(device, 10, 4, dtype=dtype)
        words = torch.randint(0, 10, (3, 5)).to(device)
        return with_gradients(functional.embedding(words, weight, padding_idx=padding), (weight,))

    return case


def cross_entropy(dtype: torch.dtype, **options: Any) -> Case:
    def case(device: str) -> Any:
        x = leaf(device, 6, 10, dtype=dtype)
        target = torch.randint(0, 10, (6,))
        target[2] = -100
        if device == "npu":
            loss = functional.cross_entropy(x, target.to(device), **options)
        else:
            loss = functional.cross_entropy(wide(x), target, **options).to(dtype)
        return with_gradients(loss, (x,))

    return case


def loss(name: str, *options: Any, positive: bool = False) -> Case:
    """One of torch's losses in each reduction, gradients of both sides."""

    def case(device: str) -> Any:
        results = []
        for reduction in ("mean", "sum", "none"):
            x, target = rand(device, 4, 6), rand(device, 4, 6).sigmoid()
            if positive:
                x = x.sigmoid()
            x.requires_grad_()
            value = getattr(functional, name)(x, target, *options, reduction=reduction)
            results += with_gradients(value, (x,))
        return results

    return case


def with_logits(device: str) -> Any:
    """Its gradient is npu_binary_cross_entropy_with_logits_backward."""
    results = []
    for reduction in ("mean", "sum"):
        x, target = leaf(device, 4, 6), rand(device, 4, 6).sigmoid()
        y = functional.binary_cross_entropy_with_logits(
            x, target, weight=rand(device, 4, 6).abs(), reduction=reduction
        )
        results += with_gradients(y, (x,))
    return results


def softmax(dtype: torch.dtype) -> Case:
    def case(device: str) -> Any:
        x = leaf(device, 4, 6, dtype=dtype)
        value = x if device == "npu" else wide(x)
        outputs = [value.softmax(-1).to(dtype), value.log_softmax(0).to(dtype)]
        return with_gradients(outputs, (x,))

    return case


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

    def case(device: str) -> Any:
        inputs = [leaf(device, 2, 3, 8, 16) for _ in range(3)]
        mask = torch.rand(2, 1, 8, 8).gt(0.3).logical_or(torch.eye(8).bool()).to(device)
        options: Any = {"attn_mask": mask} if masked else {"is_causal": True}
        return with_gradients(functional.scaled_dot_product_attention(*inputs, **options), inputs)

    return case


def named(name: str, case: Any, *arguments: Any) -> dict[str, Case]:
    """One case for each floating dtype."""
    return {f"layers-{name}-{str(d)[6:]}": case(*arguments, d) for d in FLOATS}


CASES: dict[str, Case] = {
    **named("rms_norm", rms_norm),
    "layers-rms_norm-strided": rms_norm(torch.float32, True),
    "layers-add_rms_norm": add_rms_norm,
    **named("swiglu", swiglu),
    "layers-swiglu-first": swiglu(torch.float32, 0),
    **named("gelu-tanh", gelu, "tanh"),
    **named("gelu-exact", gelu, "none"),
    "layers-gelu-dropped_argument": dropped_argument,
    "layers-fast_gelu": fast_gelu,
    **named("rotary-half", rotary, "half"),
    **named("rotary-interleave", rotary, "interleave"),
    "layers-rotary-learned": rotary("half", torch.float32, True),
    **{
        f"layers-masked_softmax-{triangle}-{str(dtype)[6:]}": masked_softmax(dtype, triangle)
        for triangle in (False, True)
        for dtype in FLOATS
    },
    **named("layer_norm", layer_norm),
    "layers-embedding": embedding(torch.float32, None),
    "layers-embedding-padding": embedding(torch.float32, 3),
    "layers-embedding-bfloat16": embedding(torch.bfloat16, None),
    **named("cross_entropy", cross_entropy),
    "layers-cross_entropy-none": cross_entropy(torch.float32, reduction="none"),
    "layers-cross_entropy-smooth": cross_entropy(torch.float32, label_smoothing=0.1),
    "layers-mse": loss("mse_loss"),
    "layers-l1": loss("l1_loss"),
    "layers-smooth_l1": loss("smooth_l1_loss"),
    "layers-binary_cross_entropy": loss("binary_cross_entropy", positive=True),
    "layers-kl": loss("kl_div"),
    "layers-with_logits": with_logits,
    **named("softmax", softmax),
    **named("accumulated", accumulated),
    "layers-attention_of_torch-causal": torch_attention(False),
    "layers-attention_of_torch-mask": torch_attention(True),
}
