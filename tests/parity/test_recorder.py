"""The recorder on plain torch modules: right numbers, from any split, at any layout of calls."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from accel_bridge.recording import Observation, Plan
from accel_bridge.recording.recorder import (
    RankRecord,
    Recorder,
    Slice,
    Watched,
    measure,
    merge,
    sample,
)


class Model(torch.nn.Module):
    """Two linear layers; the second one returns (output, bias) as Megatron's do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(8, 16)
        self.second = Pair(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())[0]  # type: ignore[no-any-return]


class Pair(torch.nn.Linear):
    """A linear layer that returns a tuple."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return super().forward(x), None


def recorder(model: Model, plan: Plan | None = None, **arguments: bool) -> Recorder:
    def slices() -> Iterator[Slice]:
        for name, weight in model.named_parameters():
            gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
            yield Slice(name, 0, weight.data, gradient, True)

    modules = [
        Watched(name, 0, module, ("x",) if name == "second" else ())
        for name, module in model.named_modules()
        if name
    ]
    counts = {"counts_data": True, **arguments}
    return Recorder(plan or Plan("unused"), modules, slices, lambda: None, **counts)


def train(model: Model, record: Recorder, batches: list[torch.Tensor], step: int = 1) -> None:
    """One step over micro batches, as a framework would."""
    model.zero_grad()
    record.begin(step, gradient_scale=0.5)
    for batch in batches:
        model(batch).square().sum().backward()
    record.gradients_ready()
    record.end(1.0, 2.0)


def found(record: RankRecord, kind: str, name: str, step: int = 1) -> Observation:
    (item,) = (
        item
        for item in record.observations
        if (item.step, item.kind, item.name) == (step, kind, name)
    )
    return item


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1,), (7, 3), (4, 5, 6)])
def test_measure(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    total, norm, largest = (float(number) for number in measure(tensor))
    exact = tensor.double()
    assert total == pytest.approx(float(exact.sum()), abs=1e-5)
    assert norm == pytest.approx(float(exact.norm()), rel=1e-6)
    assert largest == float(exact.abs().max())


def test_sample_takes_both_ends_and_no_more_than_asked() -> None:
    tensor = torch.arange(1000.0).reshape(10, 100)
    values = sample(tensor, 256)
    assert values.numel() == 256
    assert (values[0], values[-1]) == (0, 999)
    assert sample(tensor[:1, :5], 256).tolist() == [0, 1, 2, 3, 4]


def test_outputs_gradients_weights_and_inputs() -> None:
    model, batch = Model(), torch.randn(3, 8)
    record = recorder(model)
    train(model, record, [batch])
    hidden = model.first(batch)
    output = model.second(hidden.relu())[0]
    for kind, name, tensor in (
        ("output", "first", hidden),
        ("output", "second", output),
        ("output", "second.x", hidden.relu()),
        # d(sum of squares)/d(output), times the scale 0.5
        ("gradient", "second", output),
        ("weight", "first.weight", model.first.weight),
        ("weight gradient", "second.bias", model.second.bias.grad),
    ):
        item = found(record.record, kind, name)
        exact = tensor.detach().double()
        assert item.shape == tuple(tensor.shape)
        assert item.moments.mean == pytest.approx(float(exact.mean()), rel=1e-5, abs=1e-6)
        assert item.moments.rms == pytest.approx(float(exact.square().mean().sqrt()), rel=1e-5)
        assert item.moments.std == pytest.approx(float(exact.std(correction=0)), rel=1e-4)
        assert item.moments.largest == pytest.approx(float(exact.abs().max()), rel=1e-6)
        assert item.sample is not None
        assert list(item.sample) == pytest.approx(exact.flatten().tolist(), rel=1e-5)


def test_micro_batches_are_one_tensor() -> None:
    model, batch = Model(), torch.randn(6, 8)
    whole, parts = recorder(model), recorder(model)
    train(model, whole, [batch])
    train(model, parts, list(batch.split(2)))
    for item in whole.record.observations:
        other = found(parts.record, item.kind, item.name)
        assert other.moments.rms == pytest.approx(item.moments.rms, rel=1e-5)
        assert other.moments.mean == pytest.approx(item.moments.mean, rel=1e-4, abs=1e-6)
        assert other.order == item.order


def test_ranks_are_one_tensor() -> None:
    model, batch = Model(), torch.randn(6, 8)
    whole, ranks = recorder(model), [recorder(model), recorder(model)]
    train(model, whole, [batch])
    for record, part in zip(ranks, batch.split(3), strict=True):
        train(model, record, [part])
    steps, observations = merge([record.record for record in ranks])
    assert [step.number for step in steps] == [1]
    merged = RankRecord(list(steps), list(observations))
    for name in ("first", "second"):
        one, two = found(whole.record, "output", name), found(merged, "output", name)
        assert two.moments.count == one.moments.count
        assert two.moments.rms == pytest.approx(one.moments.rms, rel=1e-6)


def test_the_loss_comes_from_a_rank_that_knows_it() -> None:
    first, last = recorder(Model()), recorder(Model())
    for record, loss in ((first, None), (last, 3.5)):
        record.begin(1)
        record.end(loss, 1.0)
    assert math.isnan(first.record.steps[0].loss)
    steps, _ = merge([first.record, last.record])
    assert steps[0].loss == 3.5


def test_the_fingerprint_of_a_batch_does_not_depend_on_its_split() -> None:
    tokens = torch.randint(0, 1000, (4, 16))
    positions = torch.arange(16).expand(4, 16)

    def fingerprint(parts: list[tuple[torch.Tensor, torch.Tensor]], counts: bool = True) -> int:
        record = recorder(Model(), counts_data=counts)
        record.begin(1)
        for part in parts:
            record.batch(*part)
        record.end(None, 0.0)
        return record.record.steps[0].data

    whole = fingerprint([(tokens, positions)])
    rows = list(zip(tokens.split(1), positions.split(1), strict=True))
    columns = list(zip(tokens.split(8, 1), positions.split(8, 1), strict=True))
    assert fingerprint(rows[::-1]) == whole
    assert fingerprint(columns) == whole
    swapped = tokens.clone()
    swapped[0, 0], swapped[0, 1] = tokens[0, 1] + 1, tokens[0, 0]
    assert fingerprint([(swapped, positions)]) != whole
    assert fingerprint([(tokens, positions)], counts=False) == 0


def test_other_steps_have_no_hooks_and_no_observations() -> None:
    model = Model()
    record = recorder(model, Plan("unused", every=5))
    for step in range(1, 8):
        train(model, record, [torch.randn(2, 8)], step)
        assert not any(module._forward_hooks for module in model.modules())
    assert {item.step for item in record.record.observations} == {1, 2, 5}
    assert {item.step for item in record.record.observations if item.sample} == {1, 2}


def test_recomputation_changes_nothing() -> None:
    from torch.utils.checkpoint import checkpoint

    class Recomputed(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(super().forward, x, use_reentrant=True)  # type: ignore[no-any-return]

    batch = torch.randn(3, 8)
    plain, recomputed = Model(), Recomputed()
    records = [recorder(plain), recorder(recomputed)]
    train(plain, records[0], [batch])
    train(recomputed, records[1], [batch.clone().requires_grad_()])
    for item in records[0].record.observations:
        other = found(records[1].record, item.kind, item.name)
        assert other.moments.rms == pytest.approx(item.moments.rms, rel=1e-6)


def test_a_call_that_is_not_its_own_is_not_counted_and_hooks_of_others_come_after() -> None:
    model, batch = Model(), torch.randn(3, 8)
    calls = iter((True, False))
    watched = Watched("first", 0, model.first, (), lambda: next(calls))
    record = Recorder(Plan("unused"), [watched], lambda: (), lambda: None, counts_data=False)
    model.first.register_forward_hook(lambda module, inputs, output: output * 2.0)
    record.begin(1)
    outputs = [model.first(batch).detach() for _ in range(2)]
    record.end(None, 0.0)
    (item,) = record.record.observations
    assert item.moments.count == outputs[0].numel()
    assert item.moments.largest == float(outputs[0].abs().max()) / 2


@pytest.mark.megatron
def test_a_distributed_optimizers_part_begins_where_the_buffer_says() -> None:
    """Parameters of 3 and 5 at 0 and 64, on two ranks; buckets of 0.12 do not know their places."""
    from types import SimpleNamespace

    from accel_bridge.patches.modules.recorded_run import own_parts

    one, two = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.arange(5.0))
    bucket = SimpleNamespace(params_list=[two, one], offset=100, grad_data=torch.arange(128.0))
    places = {one: (100, 103, 0), two: (164, 169, 0)}

    def parts(rank: int) -> list[tuple[torch.Tensor, list[float], list[float]]]:
        group = SimpleNamespace(buckets=[bucket])
        group.intra_distributed_optimizer_instance_size = 2
        group.intra_distributed_optimizer_instance_rank = rank
        wrapped = SimpleNamespace(
            buffers=[SimpleNamespace(param_index_map=places)], expert_parallel_buffers=[]
        )
        wrapped.bucket_groups, wrapped.expert_parallel_bucket_groups = [group], []
        return [(p, weight.tolist(), grad.tolist()) for p, weight, grad in own_parts(wrapped)]

    assert parts(0) == [(one, [1.0] * 3, [0.0, 1.0, 2.0])]
    assert parts(1) == [(two, [0.0, 1.0, 2.0, 3.0, 4.0], [64.0, 65.0, 66.0, 67.0, 68.0])]


@pytest.mark.megatron
def test_weights_are_asked_for_with_the_group_that_a_pipeline_of_mtp_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from megatron.core import parallel_state

    from accel_bridge.patches.modules.recorded_weights import shards

    group = object()
    monkeypatch.setattr(parallel_state, "get_data_parallel_group", lambda **_: group)
    asked = []

    class Chunk(torch.nn.Module):
        def sharded_state_dict(self, metadata: dict[str, object]) -> dict[str, object]:
            asked.append(metadata["dp_cp_group"])
            return {}

    assert list(shards(Chunk())) == []
    assert asked == [group]
