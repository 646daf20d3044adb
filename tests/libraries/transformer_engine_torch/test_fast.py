"""Short ways through Transformer Engine's classes: the same to the last bit."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from accel_bridge.libraries.main_grad import needs_no_placeholder

BFLOAT16 = {"params_dtype": torch.bfloat16}


def _randn(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, device="cuda", requires_grad=grad)


def _fused(layer: Any) -> Any:
    """Weight gradients are added to ``main_grad``."""
    for name, parameter in layer.named_parameters():
        if name.startswith("weight"):
            parameter.main_grad = torch.ones_like(parameter, dtype=torch.float32)
            parameter.grad_added_to_main_grad = False
    return layer


def _unwatched(layer: Any) -> Any:
    """Nobody waits for the weights' gradients."""
    for parameter in _fused(layer).parameters():
        needs_no_placeholder(parameter)
    return layer


LAYERS: dict[str, Callable[[ModuleType], Any]] = {
    "linear": lambda te: te.Linear(16, 24, **BFLOAT16),
    "linear-returned-bias": lambda te: te.Linear(16, 24, return_bias=True, **BFLOAT16),
    "linear-fused": lambda te: _fused(te.Linear(16, 24, fuse_wgrad_accumulation=True, **BFLOAT16)),
    "layernorm-linear": lambda te: te.LayerNormLinear(16, 24, **BFLOAT16),
    "rmsnorm-linear-fused": lambda te: _fused(
        te.LayerNormLinear(
            16, 24, normalization="RMSNorm", fuse_wgrad_accumulation=True, **BFLOAT16
        )
    ),
    "rmsnorm": lambda te: te.RMSNorm(16, zero_centered_gamma=True, **BFLOAT16),
    "layernorm": lambda te: te.LayerNorm(16, **BFLOAT16),
    "grouped": lambda te: te.GroupedLinear(3, 16, 24, **BFLOAT16),
    "grouped-fused": lambda te: _fused(
        te.GroupedLinear(3, 16, 24, bias=False, fuse_wgrad_accumulation=True, **BFLOAT16)
    ),
    "grouped-unwatched": lambda te: _unwatched(
        te.GroupedLinear(3, 16, 24, fuse_wgrad_accumulation=True, **BFLOAT16)
    ),
}


def _functions(tensor: torch.Tensor) -> Iterator[str]:
    """Modules of the Python functions behind a tensor."""
    nodes = [tensor.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None:
            made = getattr(type(node), "_forward_cls", None)
            if made is not None:
                yield made.__module__
            nodes += [one for one, _ in node.next_functions]


def _run(layer: Any, forward: Callable[..., Any], *args: Any) -> tuple[list[Any], set[str]]:
    """Outputs and gradients of two calls, and where their functions are from."""
    torch.manual_seed(5)
    for parameter in layer.parameters():
        parameter.grad = None
        if hasattr(parameter, "main_grad"):
            parameter.main_grad.fill_(1.0)
    x = _randn(3, 4, 16, dtype=torch.bfloat16)
    x = x.flatten(0, 1) if args else x
    x.requires_grad_()
    found, modules = [], set()
    for _ in range(2):
        result = forward(layer, x, *args)
        output = result[0] if isinstance(result, tuple) else result
        modules |= set(_functions(output))
        output.backward(torch.randn_like(output))
        found.append(output.detach())
    sums = [one.main_grad.clone() for one in layer.parameters() if hasattr(one, "main_grad")]
    rest = [one.grad for one in layer.parameters() if not hasattr(one, "main_grad")]
    rest = [one for one in rest if one is not None]  # a bias that was returned
    return [*found, x.grad, *sums, *rest], modules


@pytest.mark.parametrize("name", LAYERS)
def test_layers(te: ModuleType, name: str) -> None:
    layer = LAYERS[name](te)
    torch.manual_seed(4)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    args = ([5, 0, 7],) if name.startswith("grouped") else ()
    short = type(layer).forward
    own = inspect.unwrap(short)
    assert own is not short
    fast, modules = _run(layer, short, *args)
    slow, others = _run(layer, own, *args)
    assert not any(one.startswith("transformer_engine.") for one in modules), modules
    assert any(one.startswith("transformer_engine.") for one in others), others
    assert all(torch.equal(one, other) for one, other in zip(fast, slow, strict=True))


FP8_LAYERS: dict[str, Callable[[ModuleType], Any]] = {
    "linear": lambda te: te.Linear(32, 48, **BFLOAT16),
    "linear-fused": lambda te: _fused(te.Linear(32, 48, fuse_wgrad_accumulation=True, **BFLOAT16)),
    "linear-kept": lambda te: te.Linear(32, 48, save_original_input=True, **BFLOAT16),
    "layernorm-linear": lambda te: te.LayerNormLinear(32, 48, **BFLOAT16),
    "rmsnorm-linear-fused": lambda te: _fused(
        te.LayerNormLinear(
            32, 48, normalization="RMSNorm", fuse_wgrad_accumulation=True, **BFLOAT16
        )
    ),
}


def _run_fp8(te: ModuleType, name: str, recipe: Any, short: bool) -> tuple[list[Any], set[str]]:
    """Outputs, gradients and scales of three calls, and where their functions are from."""
    te.quantization.FP8GlobalStateManager.reset()
    torch.manual_seed(5)
    layer = FP8_LAYERS[name](te)
    forward = type(layer).forward if short else inspect.unwrap(type(layer).forward)
    x = _randn(4, 4, 32, dtype=torch.bfloat16, grad=True)
    found, modules = [], set()
    for first in (True, False, True):
        with te.autocast(enabled=True, recipe=recipe):
            output = forward(layer, x, is_first_microbatch=first)
        modules |= set(_functions(output))
        output.backward(torch.randn_like(output))
        found.append(output.detach())
    sums = [one.main_grad for one in layer.parameters() if hasattr(one, "main_grad")]
    rest = [one.grad for one in layer.parameters() if not hasattr(one, "main_grad")]
    states = [layer.fp8_meta[f"scaling_{way}"] for way in ("fwd", "bwd")]
    scales = [one.scale.clone() for one in states if hasattr(one, "scale")]
    return [*found, x.grad, *sums, *rest, *scales], modules


def test_a_weight_that_changed_before_the_long_way(te: ModuleType) -> None:
    """The short way's copy of it is older than the one that the long way has made since."""
    from transformer_engine.common import recipe

    layer = te.Linear(32, 48, bias=False, **BFLOAT16)
    long, x = inspect.unwrap(type(layer).forward), _randn(16, 32, dtype=torch.bfloat16, grad=True)

    def run(forward: Callable[..., Any], first: bool) -> torch.Tensor:
        with te.autocast(enabled=True, recipe=recipe.Float8CurrentScaling()):
            return forward(layer, x, is_first_microbatch=first).detach()  # type: ignore[no-any-return]

    old = run(type(layer).forward, True)
    with torch.no_grad():
        layer.weight.mul_(2)
    new = run(long, True)
    assert not torch.equal(old, new)
    assert torch.equal(run(type(layer).forward, False), new)


@pytest.mark.parametrize("name", FP8_LAYERS)
@pytest.mark.parametrize("kind", ["DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling"])
def test_layers_in_fp8(
    te: ModuleType, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first call on: Transformer Engine's own keeps a gradient of the weight's size."""
    from transformer_engine.common import recipe

    from accel_bridge.libraries.transformer_engine_torch.fast import linear

    if name == "linear-kept" and kind == "DelayedScaling":
        pytest.skip("Transformer Engine refuses it")
    made = getattr(recipe, kind)()
    fast, modules = _run_fp8(te, name, made, True)
    slow, others = _run_fp8(te, name, made, False)
    assert not any(one.startswith("transformer_engine.") for one in modules), modules
    assert any(one.startswith("transformer_engine.") for one in others), others
    assert all(torch.equal(one, other) for one, other in zip(fast, slow, strict=True))
    true = linear.gemm
    monkeypatch.setattr(linear, "gemm", lambda *args, **named: true(*args, **named) * 1.01)
    spoiled, _ = _run_fp8(te, name, made, True)
    assert not torch.equal(spoiled[1], slow[1])


@pytest.mark.parametrize("kind", ["causal", "no_mask", "padding_causal"])
@pytest.mark.parametrize("form", ["sbhd", "thd"])
def test_attention(te: ModuleType, form: str, kind: str) -> None:
    if form == "thd" and "padding" not in kind:
        pytest.skip("thd has padding masks")
    layer = te.DotProductAttention(4, 16, num_gqa_groups=2, qkv_format=form)
    own = inspect.unwrap(type(layer).forward)
    lengths = torch.tensor([0, 5, 11], dtype=torch.int32, device="cuda")
    named: dict[str, Any] = {"attn_mask_type": kind}
    if "padding" in kind:
        named |= {"cu_seqlens_q": lengths, "cu_seqlens_kv": lengths}
        named |= {"max_seqlen_q": 8, "max_seqlen_kv": 8}
    shape = (11,) if form == "thd" else (8, 2)
    found = []
    for forward in (type(layer).forward, own):
        torch.manual_seed(6)
        q, k, v = (_randn(*shape, n, 16, dtype=torch.bfloat16, grad=True) for n in (4, 2, 2))
        output = forward(layer, q, k, v, **named)
        # Not randn_like: the outputs may lie differently in memory.
        output.backward(_randn(output.shape, dtype=output.dtype))
        found.append([output, q.grad, k.grad, v.grad])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_attention_of_a_first_call_in_fp8(te: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is that of the later ones, to the bit, also where the long way would take another one."""
    from transformer_engine.common import recipe

    monkeypatch.setenv("NVTE_FUSED_ATTN", "0")
    layer = te.DotProductAttention(4, 16, num_gqa_groups=2, qkv_format="sbhd")
    tensors = [_randn(8, 2, n, 16, dtype=torch.bfloat16) for n in (4, 2, 2)]
    found = []
    for _ in range(2):
        with te.autocast(enabled=True, recipe=recipe.Float8CurrentScaling()):
            found.append(layer(*tensors, attn_mask_type="causal"))
    assert torch.equal(*found)
    assert layer.fp8_initialized


def test_experts(te: ModuleType) -> None:
    """Tokens to their experts, in another order and back; and Triton's map of rows."""
    from transformer_engine.pytorch import permutation

    tokens, experts = 12, 5
    torch.manual_seed(7)
    chosen = torch.rand(tokens, experts, device="cuda").topk(2, -1).indices
    routing = torch.zeros(tokens, experts, dtype=torch.int32, device="cuda").scatter_(1, chosen, 1)
    sizes, order = routing.sum(0), torch.tensor([3, 1, 0, 4, 2], dtype=torch.int32, device="cuda")
    x = _randn(tokens, 8, dtype=torch.bfloat16)
    probs = torch.rand(tokens, experts, device="cuda") * routing
    gradient = _randn(tokens, 8, dtype=torch.bfloat16)
    found, maps = [], []
    for way in (lambda function: function, inspect.unwrap):
        one, weight = x.clone().requires_grad_(), probs.clone().requires_grad_()
        moved, weights, rows = way(permutation.moe_permute_with_probs)(one, weight, routing, 24)
        sort = way(permutation.moe_sort_chunks_by_index_with_probs)
        moved, weights = sort(moved, weights, sizes, order)
        back = way(permutation.moe_sort_chunks_by_index)
        moved = back(moved * weights[:, None].bfloat16(), sizes[order], order.argsort().int())
        output = way(permutation.moe_unpermute)(moved, rows, weight, restore_shape=x.shape)
        output.backward(gradient)
        found.append([output, one.grad, weight.grad])
        maps.append(rows)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert maps[0].dim() == 3
    count, own = maps[1][:, -1], maps[1][:, :2]
    assert (count == 2).all()
    assert torch.equal(own.sort(1).values, maps[0].squeeze(-1).sort(1).values[:, -2:])


@pytest.mark.parametrize("moments", [torch.float32, torch.bfloat16])
def test_adam(te: ModuleType, moments: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps of two groups, one parameter of which has no gradient."""
    from transformer_engine.pytorch.optimizers import FusedAdam

    short = FusedAdam.step
    counted: list[int] = []

    def train(step: Callable[..., Any]) -> list[torch.Tensor]:
        torch.manual_seed(3)
        weights = [torch.nn.Parameter(_randn(5, 4)) for _ in range(4)]
        groups = [{"params": weights[:2]}, {"params": weights[2:], "lr": 0.1, "weight_decay": 0.5}]
        optimizer = FusedAdam(groups, lr=0.01, exp_avg_dtype=moments)
        own = optimizer.get_unscaled_state
        monkeypatch.setattr(
            optimizer, "get_unscaled_state", lambda *a, **k: counted.append(1) or own(*a, **k)
        )
        for number in range(3):
            for weight in weights[:-1]:
                weight.grad = _randn(5, 4)
            step(optimizer)
            assert [group["step"] for group in optimizer.param_groups] == [number + 1] * 2
        states = [optimizer.state[one] for one in weights[:-1]]
        return [*(one.detach() for one in weights), *(one["exp_avg_sq"] for one in states)]

    fast = train(short)
    calls = len(counted)
    slow = train(inspect.unwrap(short))
    assert all(torch.equal(one, other) for one, other in zip(fast, slow, strict=True))
    assert (calls < len(counted) - calls) == (moments == torch.float32), "the way that it took"


@pytest.mark.parametrize("closure", [None, lambda: None], ids=["short", "long"])
def test_adam_writes_copies(te: ModuleType, closure: Any) -> None:
    """Rounded once, also where a parameter has no copy of its own, or no gradient."""
    from transformer_engine.pytorch.optimizers import FusedAdam

    from accel_bridge.libraries.transformer_engine_torch.fast import optimizer as fast

    torch.manual_seed(3)
    weights = [torch.nn.Parameter(_randn(5, 4)) for _ in range(4)]
    copies = {one: torch.zeros_like(one, dtype=torch.bfloat16) for one in weights[1:]}
    optimizer = FusedAdam([{"params": weights[:2]}, {"params": weights[2:], "lr": 0.1}], lr=0.01)
    for number in range(3):
        for weight in weights[:-1]:
            weight.grad = _randn(5, 4)
        with fast.copies_in_step(optimizer, copies):
            assert not fast.has_written_copies(optimizer)
            optimizer.step(closure)
            written = fast.has_written_copies(optimizer)
        assert not fast.has_written_copies(optimizer)
        assert written == (number > 1 and closure is None), "two steps make what it needs"
        for one, copy in copies.items():
            assert torch.equal(copy, one.detach().bfloat16() if written else torch.zeros_like(copy))
    with fast.copies_in_step(None, copies):  # a rank without parameters has no optimizer
        assert not fast.has_written_copies(None)


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("ratio", [0.25, 4.0, float("nan")])
@pytest.mark.parametrize("closure", [None, lambda: None], ids=["short", "long"])
def test_adam_clips(te: ModuleType, on_device: bool, ratio: float, closure: Any) -> None:
    """As Megatron clips before the step, also where the step then goes the long way."""
    from transformer_engine.pytorch.optimizers import FusedAdam

    from accel_bridge.libraries.transformer_engine_torch.fast.optimizer import clip_in_step

    def upstream(weights: list[torch.nn.Parameter], largest: float, norm: Any) -> None:
        scale = largest / (norm + 1.0e-6)
        if on_device:
            scale = scale.clamp(max=1.0).reshape(())
        elif not scale < 1.0:
            return
        torch._foreach_mul_([one.grad for one in weights if one.grad is not None], scale)

    def train(clip: Callable[..., Any]) -> list[torch.Tensor]:
        torch.manual_seed(3)
        weights = [torch.nn.Parameter(_randn(5, 4)) for _ in range(4)]
        groups = [{"params": weights[:2]}, {"params": weights[2:], "lr": 0.1}]
        optimizer = FusedAdam(groups, lr=0.01, weight_decay=0.1)
        for number in range(4):
            for weight in weights[:-1]:
                weight.grad = _randn(5, 4)
            norm = torch.full((1,), ratio, device="cuda")
            clip(weights, 1.0, norm if on_device else ratio)
            # The third step only clips, and the fourth clips anew.
            if number != 2:
                optimizer.step(closure if number == 3 else None)
        return [one.detach() for one in weights]

    clipped: list[bool] = []

    def in_step(weights: list[torch.nn.Parameter], largest: float, norm: Any) -> None:
        assert not clip_in_step(weights[:-1], largest, norm)
        assert not clip_in_step([*weights, weights[0]], largest, norm)
        clipped.append(clip_in_step(weights, largest, norm))
        if not clipped[-1]:
            upstream(weights, largest, norm)

    fast, slow, unclipped = train(in_step), train(upstream), train(lambda *_: None)
    assert all(
        torch.equal(one.nan_to_num(9.0), other.nan_to_num(9.0))
        for one, other in zip(fast, slow, strict=True)
    )
    assert clipped == [False, False, True, True], "the first step makes the moments"
    same = all(torch.equal(one, other) for one, other in zip(fast, unclipped, strict=True))
    assert same == (ratio < 1.0 or (ratio != ratio and not on_device))
