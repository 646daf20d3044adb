"""A device that is nearly full gets one line, with the flag that helps."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from accel_bridge.patches import memory_limit


def use(monkeypatch: pytest.MonkeyPatch, reserved: float, allocated: float) -> None:
    """A device of 80 GB with so many of them reserved and allocated at most."""
    for name, size in (("max_memory_reserved", reserved), ("max_memory_allocated", allocated)):
        monkeypatch.setattr(torch.cuda, name, lambda size=size: int(size * 2**30))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, 80 * 2**30))


def made(said: list[str], **settings: Any) -> Any:
    args = Namespace(recompute_granularity=None, micro_batch_size=2, **settings)
    context = SimpleNamespace(
        original=lambda: None,
        module=SimpleNamespace(get_args=lambda: args),
        host=SimpleNamespace(say=said.append),
    )
    return memory_limit._make(context)  # type: ignore[arg-type]


@pytest.mark.parametrize(("reserved", "lines"), [(79.0, 1), (70.0, 0), (0.0, 0)])
def test_it_is_said_once_and_only_when_nearly_full(
    monkeypatch: pytest.MonkeyPatch, reserved: float, lines: int
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    use(monkeypatch, reserved, reserved)
    said: list[str] = []
    step = made(said)
    for _ in range(200):
        step()
    assert len(said) == lines
    assert not said or "79.0 of 80.0 GB (99%) were reserved; --recompute-activations" in said[0]


def test_the_advice_is_what_is_not_yet_used() -> None:
    args = Namespace(recompute_granularity=None, micro_batch_size=4, data_parallel_size=8)
    found = [memory_limit.advice(args, 0.5), memory_limit.advice(args, 1.0)]
    args.recompute_granularity = "selective"
    found.append(memory_limit.advice(args, 1.0))
    args.use_distributed_optimizer = True
    found.append(memory_limit.advice(args, 1.0))
    args.micro_batch_size = 1
    found.append(memory_limit.advice(args, 1.0))
    args.recompute_granularity = "full"
    found.append(memory_limit.advice(args, 1.0))
    assert [text.split()[0] for text in found] == [
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "--recompute-activations",
        "--use-distributed-optimizer",
        "a",
        "--recompute-granularity",
        "more",
    ]
