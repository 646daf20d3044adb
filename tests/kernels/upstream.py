"""Megatron's own functions on fixed inputs; run as a script: ``upstream.py OUT``.

A process of its own, because the test process must stay free of Megatron: other tests look at what
happens when it is imported.
"""

from __future__ import annotations

import sys
from typing import Any

import torch


def random(*size: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Normally distributed numbers, the same in every call with the same arguments."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)


def rotary_inputs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Input [s, b, n, d] and angles [s, 1, 1, r]."""
    return random(6, 2, 3, 10, dtype=dtype), random(6, 1, 1, 8, seed=1, dtype=torch.float32)


def gated_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    """Input and bias."""
    return random(3, 8, dtype=torch.float32), random(8, seed=1, dtype=torch.float32)


QUICK: dict[str, Any] = {"offset": 1.0, "clamp": 0.9}


def with_gradients(weighted: Any, *options: Any, **more: Any) -> list[torch.Tensor]:
    """Result and gradients of a gated activation of an input, no bias and weights of rows."""
    x = gated_inputs()[0].requires_grad_()
    weights = random(3, 1, seed=5, dtype=torch.float32).sigmoid().requires_grad_()
    output = weighted(x, None, weights, *options, **more)
    return [output.detach(), *torch.autograd.grad(output, (x, weights), torch.ones_like(output))]


def bias_dropout_add_inputs(
    bias: bool, residual: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Input, bias and residual."""
    return (
        random(4, 8, dtype=torch.bfloat16),
        random(8, seed=2, dtype=torch.bfloat16) if bias else None,
        random(4, 8, seed=1, dtype=residual),
    )


def routing_inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, router's weights and map: 7 tokens, 5 experts, top 2."""
    probs = random(7, 5, seed=1).float().softmax(-1)
    routing = torch.zeros(7, 5, dtype=torch.bool).scatter(1, probs.topk(2).indices, True)
    return random(7, 4, dtype=torch.bfloat16), probs, routing


DTYPES = (torch.float64, torch.float32, torch.bfloat16)
RESIDUALS = (torch.bfloat16, torch.float32)


def compute() -> dict[str, Any]:
    """What Megatron gives."""
    from megatron.core.fusions.fused_bias_dropout import bias_dropout_add_unfused
    from megatron.core.fusions.fused_bias_geglu import bias_geglu, weighted_bias_quick_geglu_impl
    from megatron.core.fusions.fused_bias_swiglu import bias_swiglu, weighted_bias_swiglu_impl
    from megatron.core.models.common.embeddings.rope_utils import _apply_rotary_pos_emb_bshd
    from megatron.core.transformer.moe.moe_utils import permute, unpermute

    found: dict[str, Any] = {}
    for dtype in DTYPES:
        for interleaved in (False, True):
            found[f"rotary {dtype} {interleaved}"] = _apply_rotary_pos_emb_bshd(
                *rotary_inputs(dtype), rotary_interleaved=interleaved
            )
    x, bias = gated_inputs()
    with torch.compiler.set_stance("force_eager"):  # Megatron compiles both
        found |= {"swiglu": bias_swiglu(x, bias), "geglu": bias_geglu(bias, x)}
        found |= {
            "weighted silu": with_gradients(weighted_bias_swiglu_impl),
            "weighted quick_gelu": with_gradients(
                weighted_bias_quick_geglu_impl, False, QUICK["offset"], QUICK["clamp"]
            ),
        }
    for with_bias in (False, True):
        for residual_dtype in RESIDUALS:
            for training in (False, True):
                x, shift, residual = bias_dropout_add_inputs(with_bias, residual_dtype)
                torch.manual_seed(3)
                # Without gradients Megatron works in place when it is not training.
                output = bias_dropout_add_unfused(training)(
                    (x.requires_grad_(), shift), residual, 0.3
                )
                found[f"bda {with_bias} {residual_dtype} {training}"] = output.detach()
    tokens, probs, routing = routing_inputs()
    for weighted in (False, True):
        given = probs if weighted else None
        permuted, weights, indices, *_ = permute(tokens, routing, given, num_out_tokens=14)
        back = unpermute(permuted, indices, tokens.shape, probs=given, routing_map=routing)
        found[f"permute {weighted}"] = (permuted, weights, indices, back)
    return found


if __name__ == "__main__":
    torch.save(compute(), sys.argv[1])
