"""Further cases for te_compare.py: operations, experts, and functions without modules."""

from __future__ import annotations

from typing import Any

import torch
import transformer_engine.pytorch as te
from te_cases import BOTH, Problem, Sizes, Tensors, activate, case, normalize, on_x, randn, x_input
from torch.nn import functional
from transformer_engine.pytorch.attention import RotaryPositionEmbedding
from transformer_engine.pytorch.attention.rope import apply_rotary_pos_emb
from transformer_engine.pytorch.cross_entropy import parallel_cross_entropy
from transformer_engine.pytorch.optimizers import FusedAdam
from transformer_engine.pytorch.router import fused_topk_with_score_function

WIDE = (torch.float32,)


def in_order(p: Tensors) -> list[torch.Tensor]:
    """A chain's parameters: their names differ between versions."""
    return list(p.values())


@case("ops[RMSNorm, Linear, SwiGLU, Linear]", recipes=("tensorwise", "delayed"))
def ops_mlp(z: Sizes, dtype: torch.dtype) -> Problem:
    options: Any = {"device": "cuda", "dtype": dtype}
    chain = te.ops.Sequential(
        te.ops.RMSNorm(z.hidden, **options),
        te.ops.Linear(z.hidden, 2 * z.ffn, **options),
        te.ops.SwiGLU(),
        te.ops.Linear(z.ffn, z.hidden, **options),
    )

    def exact(p: Tensors, i: Tensors) -> torch.Tensor:
        gamma, first, bias, second, last = in_order(p)
        x = functional.linear(normalize("RMSNorm", i["x"], {"weight": gamma}), first, bias)
        return functional.linear(activate("swiglu", x), second, last)

    return Problem(chain, x_input(z, dtype), on_x, exact)


@case("ops[MakeExtraOutput, LayerNorm, Linear, GELU, Linear, Scale, Add]")
def ops_residual(z: Sizes, dtype: torch.dtype) -> Problem:
    options: Any = {"device": "cuda", "dtype": dtype}
    chain = te.ops.Sequential(
        te.ops.LayerNorm(z.hidden, **options),
        te.ops.Linear(z.hidden, z.ffn, **options),
        te.ops.GELU(),
        te.ops.Linear(z.ffn, z.hidden, bias=False, **options),
        te.ops.ConstantScale(0.5),
        te.ops.AddExtraInput(),
    )

    def exact(p: Tensors, i: Tensors) -> torch.Tensor:
        gamma, beta, first, bias, second = in_order(p)
        x = normalize("LayerNorm", i["x"], {"weight": gamma, "bias": beta})
        x = activate("gelu", functional.linear(x, first, bias))
        return 0.5 * functional.linear(x, second) + i["residual"]

    inputs = x_input(z, dtype)
    inputs["residual"] = randn(2, *inputs["x"].shape, dtype=dtype)
    return Problem(chain, inputs, lambda m, i: m(i["x"], i["residual"]), exact)


@case("ops[GroupedLinear, ScaledSwiGLU, GroupedLinear]")
def ops_experts(z: Sizes, dtype: torch.dtype) -> Problem:
    options: Any = {"device": "cuda", "dtype": dtype, "bias": False}
    counts = [z.tokens // z.experts] * z.experts
    splits = torch.tensor(counts, device="cuda")
    chain = te.ops.Sequential(
        te.ops.GroupedLinear(z.experts, z.hidden, 2 * z.ffn, **options),
        te.ops.ScaledSwiGLU(),
        te.ops.GroupedLinear(z.experts, z.ffn, z.hidden, **options),
    )

    def exact(p: Tensors, i: Tensors) -> torch.Tensor:
        weights = in_order(p)
        pairs = zip(weights[: z.experts], weights[z.experts :], strict=True)
        parts = zip(i["x"].split(counts), i["scale"].split(counts), pairs, strict=True)
        return torch.cat(
            [
                functional.linear(activate("swiglu", functional.linear(x, a)) * s[:, None], b)
                for x, s, (a, b) in parts
            ]
        )

    inputs = {
        "x": randn(1, z.tokens, z.hidden, dtype=dtype),
        "scale": randn(2, z.tokens, dtype=dtype).abs(),
    }
    return Problem(chain, inputs, lambda m, i: m(i["x"], splits, i["scale"], splits), exact)


def routing(z: Sizes) -> torch.Tensor:
    """Two experts for each token."""
    scores = randn(5, z.tokens, z.experts, dtype=torch.float32)
    return torch.zeros_like(scores, dtype=torch.bool).scatter(1, scores.topk(2).indices, True)


@case("moe_permute, moe_unpermute")
def permutation(z: Sizes, dtype: torch.dtype) -> Problem:
    routed = routing(z)

    def call(module: Any, i: Tensors) -> torch.Tensor:
        count = 2 * z.tokens
        rows, places = te.moe_permute(i["x"], routed, num_out_tokens=count, map_type="mask")
        output: torch.Tensor = te.moe_unpermute(
            rows * rows, places, i["probs"], restore_shape=i["x"].shape, map_type="mask"
        )
        return output

    def exact(p: Tensors, i: Tensors) -> torch.Tensor:
        return i["x"].square() * (i["probs"] * routed).sum(1, keepdim=True)

    inputs = {
        "x": randn(1, z.tokens, z.hidden, dtype=dtype),
        "probs": randn(2, z.tokens, z.experts, dtype=torch.float32).abs() * routed,
    }
    return Problem(None, inputs, call, exact)


@case("moe_sort_chunks_by_index")
def chunks(z: Sizes, dtype: torch.dtype) -> Problem:
    counts = [z.tokens // z.experts] * z.experts
    order = list(reversed(range(z.experts)))

    def call(module: Any, i: Tensors) -> torch.Tensor:
        splits = torch.tensor(counts, dtype=torch.int32, device="cuda")
        index = torch.tensor(order, dtype=torch.int32, device="cuda")
        output: Any = te.moe_sort_chunks_by_index(i["x"], splits, index)
        return output[0] if isinstance(output, tuple) else output

    def exact(p: Tensors, i: Tensors) -> torch.Tensor:
        parts = i["x"].split(counts)
        return torch.cat([parts[index] for index in order])

    return Problem(None, {"x": randn(1, z.tokens, z.hidden, dtype=dtype)}, call, exact)


for _function in ("softmax", "sigmoid"):
    for _before in (False, True):

        @case(f"router[{_function}, {'before' if _before else 'after'} topk]", dtypes=WIDE)
        def router(
            z: Sizes, dtype: torch.dtype, function: str = _function, before: bool = _before
        ) -> Problem:
            def call(module: Any, i: Tensors) -> torch.Tensor:
                output: torch.Tensor = fused_topk_with_score_function(
                    i["logits"], 2, before, None, None, 1.5, function, None
                )[0]
                return output

            def exact(p: Tensors, i: Tensors) -> torch.Tensor:
                logits = i["logits"]
                if function == "sigmoid":
                    scores, places = logits.sigmoid().topk(2)
                    scores = scores / (scores.sum(-1, keepdim=True) + 1e-20)
                elif before:
                    scores, places = logits.softmax(-1).topk(2)
                else:
                    scores, places = logits.topk(2)
                    scores = scores.softmax(-1)
                return torch.zeros_like(logits).scatter(1, places, 1.5 * scores)

            inputs = {"logits": randn(1, z.tokens, z.experts, dtype=dtype)}
            return Problem(None, inputs, call, exact)


@case("apply_rotary_pos_emb")
def rotary(z: Sizes, dtype: torch.dtype) -> Problem:
    angles = RotaryPositionEmbedding(z.head)(z.sequence).cuda()

    def call(module: Any, i: Tensors) -> torch.Tensor:
        output: torch.Tensor = apply_rotary_pos_emb(
            i["x"], angles, tensor_format="sbhd", fused=True
        )
        return output

    def exact(p: Tensors, i: Tensors) -> torch.Tensor:
        a, b = i["x"].chunk(2, -1)
        turned = torch.cat([-b, a], -1)
        return i["x"] * angles.double().cos() + turned * angles.double().sin()

    inputs = {"x": randn(1, z.sequence, z.batch, z.heads, z.head, dtype=dtype)}
    return Problem(None, inputs, call, exact)


for _smoothing in (0.0, 0.1):

    @case(f"parallel_cross_entropy[{_smoothing}]")
    def cross_entropy(z: Sizes, dtype: torch.dtype, smoothing: float = _smoothing) -> Problem:
        target = torch.arange(z.tokens, device="cuda").view(z.batch, z.sequence) % z.vocabulary

        def call(module: Any, i: Tensors) -> torch.Tensor:
            # It may overwrite its input.
            output: torch.Tensor = parallel_cross_entropy(i["x"] * 1, target, smoothing)
            return output

        def exact(p: Tensors, i: Tensors) -> torch.Tensor:
            loss = functional.cross_entropy(
                i["x"].flatten(0, 1),
                target.flatten(),
                reduction="none",
                label_smoothing=smoothing,
            )
            return loss.view(target.shape)

        inputs = {"x": randn(1, z.batch, z.sequence, z.vocabulary, dtype=dtype, scale=2.0)}
        return Problem(None, inputs, call, exact)


@case("FusedAdam", dtypes=BOTH)
def adam(z: Sizes, dtype: torch.dtype) -> Problem:
    lr, decay, eps, betas, steps = 1e-2, 0.1, 1e-8, (0.9, 0.95), 5
    start = randn(1, z.hidden, z.hidden, dtype=dtype)

    def call(module: Any, i: Tensors) -> torch.Tensor:
        parameter = torch.nn.Parameter(start.clone())
        optimizer = FusedAdam(
            [parameter],
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=decay,
            master_weights=dtype != torch.float32,
        )
        for step in range(steps):
            parameter.grad = (i["g"].detach() * (step - 2)).to(dtype)
            optimizer.step()
        # A sum with zero gradient: there is nothing to differentiate.
        return parameter.detach() + 0 * i["g"]

    def exact(p: Tensors, i: Tensors) -> torch.Tensor:
        value = start.double()
        first, second = torch.zeros_like(value), torch.zeros_like(value)
        for step in range(steps):
            gradient = (i["g"].detach().to(dtype) * (step - 2)).double()
            first = betas[0] * first + (1 - betas[0]) * gradient
            second = betas[1] * second + (1 - betas[1]) * gradient.square()
            root = (second / (1 - betas[1] ** (step + 1))).sqrt() + eps
            update = first / (1 - betas[0] ** (step + 1)) / root + decay * value
            value = value - lr * update
        return value + 0 * i["g"]

    return Problem(None, {"g": randn(2, z.hidden, z.hidden, dtype=dtype)}, call, exact)
