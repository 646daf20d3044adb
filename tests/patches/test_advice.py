"""Errors of torch get a note with the flags that bear on them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from end_to_end.launcher import train

from accel_bridge.patches.advice import advise

ARGS = SimpleNamespace(
    micro_batch_size=4,
    seq_length=4096,
    recompute_granularity=None,
    use_distributed_optimizer=True,
    tensor_model_parallel_size=1,
)


def note(error: BaseException, args: object = ARGS) -> str:
    advise(error, args)
    return "\n".join(getattr(error, "__notes__", ()))


def test_a_device_without_memory() -> None:
    for error in (torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("NPU out of memory")):
        text = note(error)
        assert (
            "evidence: --micro-batch-size 4 --seq-length 4096 --use-distributed-optimizer "
            "--tensor-model-parallel-size 1\n" in text
        )
        assert "next:     a smaller --micro-batch-size" in text


def test_a_machine_without_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50)
    assert "this machine's memory is full" in note(caught.value)
    full = type("OutOfMemoryError", (Exception,), {})  # Ray's
    said = "1 worker(s) were killed due to the node running low on memory."
    assert "this machine's memory is full" in note(full(said))


def test_no_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed.distributed_c10d, "is_nccl_available", lambda: False)
    store = torch.distributed.HashStore()
    with pytest.raises(RuntimeError) as caught:
        torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
    assert "has no NCCL" in note(caught.value)


@pytest.mark.parametrize(
    "message",
    [
        "Number of layers (3) must be evenly divisible by pipeline-model-parallel-size (2) when no "
        "pipe separators are specified in the pattern.",
        "The number of pipe-delimited segments (3) in hybrid_layer_pattern must be evenly "
        "divisible by pipeline_model_parallel_size (2).",
    ],
)
def test_a_pattern_that_is_not_divided_among_the_stages(message: str) -> None:
    """Megatron's own words, of a rank that builds its part of a hybrid model."""
    args = SimpleNamespace(hybrid_layer_pattern="M*-", pipeline_model_parallel_size=2)
    text = note(ValueError(message), args)
    assert "--hybrid-layer-pattern M*- --pipeline-model-parallel-size 2" in text
    assert "into as many segments as stages" in text


@pytest.mark.megatron
def test_it_is_printed_in_place_of_the_traceback_of_a_run() -> None:
    """A vocabulary that no machine has the memory for; the traceback comes with debug."""
    run = train("--vocab-size", str(2**44))
    assert run.returncode != 0
    lines = run.output.splitlines()
    start = "accel-bridge: error: this machine's memory is full"
    found = next(i for i, line in enumerate(lines) if line.startswith(start))
    assert "can't allocate memory" in lines[found + 1]
    assert "evidence: --micro-batch-size 2" in lines[found + 2]
    assert lines[found + 3].startswith("  next:")
    assert "Traceback" not in run.output
