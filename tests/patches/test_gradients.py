"""Gradients of weights that several ranks, layers or recomputed functions share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from patched_function import patched
from torch.nn import functional

from accel_bridge.libraries.main_grad import placeholder
from accel_bridge.patches import (
    delta_gradients,
    latent_gradients,
    loss_gradient,
    optimizer,
    placeholders,
    recompute_outputs,
    tensor_parallel,
)
from accel_bridge.patching.host import ArgumentError


class Linear(torch.nn.Linear):
    """Marks its weight as Transformer Engine does."""

    def __init__(self, width: int, *, parallel_mode: str | None) -> None:
        super().__init__(width, width)
        self.weight.tensor_model_parallel = True


@pytest.mark.megatron
@pytest.mark.parametrize(("mode", "is_part"), [("duplicated", False), ("column", True)])
def test_a_duplicated_weight_is_no_part(mode: str, is_part: bool) -> None:
    """What all tensor-parallel ranks have counts once in the norm of the gradients."""
    from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate

    layer = Linear.__new__(Linear)
    new = patched(tensor_parallel.PATCHES, Linear.__init__, "duplicated-linear")
    new(layer, 4, parallel_mode=mode)
    second: Any = SimpleNamespace(rank=lambda: 1)
    assert param_is_not_tensor_parallel_duplicate(layer.weight, second) is is_part


class Experts(torch.nn.Module):
    """A layer's experts as Megatron before 0.19 leaves them beside Transformer Engine's layers."""

    def __init__(self, parallel: int, ranks: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(
            tensor_model_parallel_size=2,
            expert_model_parallel_size=parallel,
            expert_tensor_parallel_size=ranks,
        )
        self.router = torch.nn.Linear(2, 2)
        names = ("linear_fc1", "linear_fc2")
        self.experts = torch.nn.ModuleDict({name: torch.nn.Module() for name in names})
        for layer in self.experts.values():
            for name in ("weight0", "bias0"):
                setattr(layer, name, torch.nn.Parameter(torch.zeros(2)))
        for parameter in self.experts.parameters():
            vars(parameter)["allreduce"] = parallel == 1


@pytest.mark.megatron
@pytest.mark.parametrize(
    ("parallel", "ranks", "apart", "not_counted"),
    [(1, 2, False, {"linear_fc2.bias0"}), (2, 1, True, set()), (1, 1, True, set())],
)
def test_the_gradients_of_experts_are_summed_and_counted(
    monkeypatch: pytest.MonkeyPatch, parallel: int, ranks: int, apart: bool, not_counted: set[str]
) -> None:
    """Over the ranks that have the same experts, and on every rank that has others or parts."""
    from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate

    new = patched(tensor_parallel.PATCHES, Experts.__init__, "expert-weights")
    monkeypatch.setattr(Experts, "__init__", new)
    layer = Experts(parallel, ranks)
    second: Any = SimpleNamespace(rank=lambda: 1)
    found = dict(layer.experts.named_parameters())
    assert [vars(one)["allreduce"] for one in found.values()] == [not apart] * 4
    assert not_counted == {
        name
        for name, one in found.items()
        if not param_is_not_tensor_parallel_duplicate(one, second)
    }
    assert not hasattr(layer.router.weight, "allreduce")


def test_experts_in_other_shards_are_apart() -> None:
    layer = Experts(1, 2)
    vars(layer.config).update(gtp_weight_remat_size=1, expert_gtp_weight_remat_size=2)
    tensor_parallel._experts(None, None, layer)  # type: ignore[arg-type]
    assert [vars(one)["allreduce"] for one in layer.experts.parameters()] == [False] * 4


class Attention(torch.nn.Module):
    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(tensor_model_parallel_size=ranks)
        self.linear_kv_down_proj = torch.nn.Identity()


@pytest.mark.parametrize("id", ["latent-gradients", "absorbed-latent-gradients"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_key_of_latent_attention_is_followed(
    monkeypatch: pytest.MonkeyPatch, id: str, ranks: int
) -> None:
    """Its projection gets the gradient of all ranks."""
    new = patched(latent_gradients.PATCHES, Attention.__init__, id)
    monkeypatch.setattr(Attention, "__init__", new)
    assert len(Attention(ranks).linear_kv_down_proj._forward_hooks) == ranks - 1


class Delta(torch.nn.Module):
    def __init__(self, ranks: int, parallel: bool) -> None:
        super().__init__()
        self.config = SimpleNamespace(tensor_model_parallel_size=ranks, sequence_parallel=parallel)
        self.pg_collection = SimpleNamespace(tp="heads")
        self.out_norm = torch.nn.LayerNorm(3)

    def forward(self, heads: torch.Tensor) -> Any:
        return self.out_norm(heads)


@pytest.mark.parametrize(
    ("ranks", "parallel", "times"), [(1, False, 1), (2, True, 1), (2, False, 2)]
)
def test_the_norm_of_a_delta_layer_gets_the_gradient_of_all_ranks(
    monkeypatch: pytest.MonkeyPatch, ranks: int, parallel: bool, times: int
) -> None:
    """In every step, and after its weights became others; sequence parallelism sums by itself."""

    def double(tensor: torch.Tensor, group: object) -> None:
        """Of two ranks with equal heads."""
        assert group == "heads"
        tensor.mul_(2)

    monkeypatch.setattr(torch.distributed, "all_reduce", double)
    layers = []
    for wrap in (False, True):
        if wrap:
            new = patched(delta_gradients.PATCHES[1:2], Delta.__init__)
            monkeypatch.setattr(Delta, "__init__", new)
        torch.manual_seed(0)
        layer = Delta(ranks, parallel)
        heads = torch.randn(5, 3)
        layer(heads).square().sum().backward()
        layer.out_norm.weight = torch.nn.Parameter(layer.out_norm.weight.detach().clone())
        for _ in range(2):
            layer(heads).square().sum().backward()
        layers.append(layer.out_norm)
    plain, followed = layers
    for one, other in zip(plain.parameters(), followed.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad * times)


class Wrapped:
    """Megatron's wrapper on two ranks: it divides by those that the dense layers' shards leave."""

    def __init__(self, shards: int, experts: int, per_token: bool, stages: Any = None) -> None:
        self.ddp_config = SimpleNamespace(overlap_grad_reduce=True)
        self.config = SimpleNamespace(
            virtual_pipeline_model_parallel_size=stages,
            gtp_weight_remat_size=shards,
            expert_gtp_weight_remat_size=experts,
            calculate_per_token_loss=per_token,
        )
        scale = 1.0 if per_token else shards / 2
        bucket = SimpleNamespace(gradient_scaling_factor=scale)
        self.bucket = bucket
        self.expert_parallel_buffers = [
            SimpleNamespace(gradient_scaling_factor=scale, buckets=[bucket])
        ]


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("experts", [1, 2])
@pytest.mark.parametrize("per_token", [False, True])
def test_experts_in_other_shards_learn_from_the_mean_over_all_ranks(
    shards: int, experts: int, per_token: bool
) -> None:
    """An expert's shards divide by their number, unless losses are sums."""
    init = patched(tensor_parallel.PATCHES, Wrapped.__init__, "expert-shard-gradients")
    made = Wrapped.__new__(Wrapped)
    init(made, shards, experts, per_token)
    (buffer,) = made.expert_parallel_buffers
    for one in (buffer, made.bucket):
        assert one.gradient_scaling_factor / (1 if per_token else experts) == (
            1 if per_token else 0.5
        )


def test_interleaved_stages_do_not_sum_shards_that_are_incomplete() -> None:
    init = patched(tensor_parallel.PATCHES, Wrapped.__init__, "expert-shard-gradients")
    init(Wrapped.__new__(Wrapped), 1, 1, False, 2)
    for shards in ((2, 1), (1, 2)):
        with pytest.raises(ArgumentError, match="remove --overlap-grad-reduce"):
            init(Wrapped.__new__(Wrapped), *shards, False, 2)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_hook_that_starts_communication_needs_a_gradient(overlap: bool) -> None:
    """Other weights whose gradient is in main_grad get no placeholder."""
    parallel: Any = SimpleNamespace(ddp_config=SimpleNamespace(overlap_grad_reduce=overlap))
    weight: Any = torch.nn.Parameter(torch.zeros(2, 3))
    weight.grad_added_to_main_grad = False
    hook = patched(placeholders.PATCHES, lambda self, param: (self, param))
    assert hook(parallel, weight) == (parallel, weight)
    assert (placeholder(weight, torch.zeros(2, 3)) is None) is not overlap
    assert weight.grad_added_to_main_grad


def reduce(input_: torch.Tensor, group: object) -> torch.Tensor:
    """What Megatron before 0.19 does, for two ranks with equal tensors."""
    input_.contiguous().mul_(2)
    return input_


def test_a_view_is_summed_and_returned() -> None:
    """A sum over ranks reaches whoever gets a tensor that is not contiguous."""
    new = patched(tensor_parallel.PATCHES, reduce, "strided-reduction")
    view = torch.ones(4, 6)[:, 2:]
    assert torch.equal(reduce(view, None), torch.ones(4, 4)), "upstream is as the patch takes it"
    assert torch.equal(new(view, None), torch.full((4, 4), 2.0))
    assert torch.equal(new(input_=view, group=None), torch.full((4, 4), 2.0))
    whole = torch.ones(3)
    assert new(whole, None) is whole
    assert torch.equal(whole, torch.full((3,), 2.0))


@pytest.mark.megatron
def test_a_parameter_among_recomputed_results_keeps_no_history(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from megatron.core.tensor_parallel import random

    # Random states are a device's; nothing here draws numbers.
    monkeypatch.setattr(random, "_get_all_rng_states", tuple)
    monkeypatch.setattr(random, "_set_all_rng_states", lambda *_: None)
    monkeypatch.setattr(random, "_fork_rng", nullcontext)
    checkpoint = patched(recompute_outputs.PATCHES, random.checkpoint, "recompute-outputs")
    bias = torch.nn.Parameter(torch.ones(3))
    value = torch.ones(3, requires_grad=True)

    def run(inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        return inputs * 2, bias, None

    result, given, nothing = checkpoint(run, False, value)
    assert bias.is_leaf
    assert nothing is None
    (result * 3 + given * 5).sum().backward()
    assert value.grad is not None
    assert bias.grad is not None
    assert value.grad.tolist() == [6.0] * 3
    assert bias.grad.tolist() == [5.0] * 3
    assert torch.equal(checkpoint(lambda one: one * 2, False, value), value * 2)
    # What is fixed: the backward pass would now run itself again, without an end.
    random.checkpoint(run, False, value)
    assert not bias.is_leaf


def gradient(logits: torch.Tensor, target: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Of the sum of scaled losses, by the patched function, [s, b, v]."""
    from megatron.core.fusions import fused_cross_entropy as fused

    new = patched(loss_gradient.PATCHES, fused.calculate_gradients, module=fused)
    softmax = logits.detach().float().softmax(-1)
    hidden = torch.zeros_like(target, dtype=torch.bool)

    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
            return values.float().logsumexp(-1)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = new(softmax, grad, hidden, target.view(-1))
            return found

    (found,) = torch.autograd.grad((Loss.apply(logits) * scale).sum(), logits)
    return found


@pytest.mark.megatron
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_losss_gradient_is_rounded_to_the_dtype_of_the_logits_alone(dtype: torch.dtype) -> None:
    draws = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 2, 40, generator=draws).to(dtype).requires_grad_()
    target = torch.randint(40, (6, 2), generator=draws)
    scale = torch.rand(6, 2, generator=draws)
    found = gradient(logits, target, scale)
    exact = logits.detach().double().requires_grad_()
    losses = functional.cross_entropy(exact.flatten(0, 1), target.flatten(), reduction="none")
    (expected,) = torch.autograd.grad((losses.view(6, 2) * scale).sum(), exact)
    assert found.dtype == dtype
    limit = torch.finfo(dtype).eps
    error = ((found.double() - expected).norm() / expected.norm()).item()
    assert error < limit
    if dtype == torch.float32:  # what upstream does to it is found
        rounded = ((expected.bfloat16().double() - expected).norm() / expected.norm()).item()
        assert rounded > 1000 * limit


@pytest.mark.parametrize("large", [1, 10, 2**23])
def test_main_parameters_are_copied_however_large(
    monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    """To each its own, rounded once, and the flag of an overflow is cleared."""
    monkeypatch.setattr(optimizer, "_LARGE", large)

    def upstream(this: Any, that: Any, overflow_buf: Any = None) -> None:
        raise AssertionError

    copy = patched(optimizer.PATCHES, upstream, "parameter-copy")
    main = [torch.randn(size) for size in (3, 12, 0, 10)]
    model = [torch.zeros_like(one, dtype=torch.bfloat16) for one in main]
    flag = torch.ones(1, dtype=torch.int32)
    copy(main, model, flag)
    assert flag.item() == 0
    for one, other in zip(main, model, strict=True):
        assert torch.equal(one.bfloat16(), other)
    copy([], [])


@pytest.mark.parametrize("name", optimizer._COPIED)
@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("held", ["whole", "quantized", "moved"])
def test_what_the_step_has_written_is_not_copied(
    name: str, told: bool, held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is asked of the step where a parameter has no main parameter or no shard any more."""
    asked: list[dict[Any, Any]] = []

    @contextmanager
    def copies_in_step(_: Any, copies: dict[Any, Any]) -> Iterator[None]:
        asked.append(copies)
        yield

    step = SimpleNamespace(copies_in_step=copies_in_step, has_written_copies=lambda _: told)
    monkeypatch.setitem(sys.modules, optimizer._STEP, step)
    model, main = torch.ones(3, dtype=torch.bfloat16, requires_grad=True), torch.zeros(3)
    id, _, of_model, of_main, *of_whole = optimizer._COPIED[name]
    groups = {of_model: [[model], []], of_main: [[None if held == "quantized" else main], []]}
    groups |= {name: [[model.clone() if held == "moved" else model], []] for name in of_whole}
    one = type(name, (), {"optimizer": object(), **groups})()
    calls: list[str] = []
    copy = patched(optimizer.PATCHES, lambda self: calls.append("copy"), id)
    patched(optimizer.PATCHES, lambda self: copy(self), "copy-in-step")(one)
    assert calls == ([] if told else ["copy"])
    (found,) = asked
    assert bool(found) == (held == "whole" or (held == "moved" and not of_whole))
    if found:
        found[main].fill_(5.0)
        assert torch.equal(model, torch.full_like(model, 5.0)), "the model's memory"
