"""A watched run logs what its progress line needs, where Megatron prints its own line."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from accel_bridge.patches import progress as patch
from accel_bridge.patching import Argument
from accel_bridge.process.progress.lines import FACTS, LogReader


@pytest.mark.parametrize(
    ("last", "iteration", "lines"), [(True, 4, 1), (True, 5, 0), (False, 4, 0)]
)
def test_the_facts_of_an_iteration(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    last: bool,
    iteration: int,
    lines: int,
) -> None:
    def upstream(loss_dict: Any, iteration: int) -> str:
        print(f" iteration {iteration}/10 | elapsed time per iteration (ms): 500.0 |")
        return "kept"

    settings = SimpleNamespace(
        log_interval=2,
        train_iters=10,
        micro_batch_size=2,
        data_parallel_size=4,
        world_size=8,
        rank=7 if last else 0,
    )
    module = SimpleNamespace(
        get_args=lambda: settings,
        get_num_microbatches=lambda: 3,
        num_floating_point_operations=lambda args, batch: batch * 8e12,
    )
    signature = inspect.signature(upstream)
    context = SimpleNamespace(
        original=upstream, module=module, argument=lambda name: Argument.find(signature, name)
    )
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 3 * 2**30)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, 80 * 2**30))
    assert patch._make(context)({}, iteration) == "kept"  # type: ignore[arg-type]
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 1 + lines
    reader = LogReader()
    found = [reader.read(line) for line in printed][-1]
    assert found is not None
    # 24 samples of 8 TFLOP on 8 devices in half a second.
    assert (found.tflops, found.memory) == ((48.0, 3.0) if lines else (None, None))


def test_nobody_else_gets_those_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FACTS, raising=False)
    armed = [one.armed_when for one in patch.PATCHES]
    assert [when is not None and when() for when in armed] == [False]
    monkeypatch.setenv(FACTS, "1")
    assert [when is not None and when() for when in armed] == [True]


def test_a_fork_that_counts_otherwise_goes_on_training() -> None:
    def upstream(iteration: int) -> str:
        return "kept"

    said: list[str] = []
    settings = SimpleNamespace(
        log_interval=1, micro_batch_size=1, data_parallel_size=1, world_size=1, rank=0
    )
    context = SimpleNamespace(
        original=upstream,
        module=SimpleNamespace(get_args=lambda: settings),
        argument=lambda name: Argument.find(inspect.signature(upstream), name),
        host=SimpleNamespace(say_once=said.append),
    )
    assert patch._make(context)(1) == "kept"  # type: ignore[arg-type]
    assert "get_num_microbatches" in said[0]
