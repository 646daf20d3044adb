"""What a run logs: whole means, facts for the progress line, and the flags that would help."""

from __future__ import annotations

import json
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from patched_function import patched

from accel_bridge.backends.cpu import CpuBackend
from accel_bridge.backends.cuda import _nvml, _nvml_child
from accel_bridge.patches import hints, memory_limit, progress, training_log
from accel_bridge.patches.host_limit import report
from accel_bridge.patching.host import Host
from accel_bridge.process.progress.lines import FACTS, LogReader


def test_a_printed_hint_that_is_untrue_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    def _compile_dependencies() -> int:
        print("> compiling dataset index builder ...")
        print("WARNING: constraints are not met.", hints.SOFTMAX)
        print(f"WARNING: constraints for softmax are not met. {hints.SOFTMAX}", flush=True)
        print("")
        print(">>> done", end="\n", flush=True)
        return 7

    assert patched(hints.PATCHES, _compile_dependencies, "softmax-hint")() == 7
    told = capsys.readouterr().out
    assert hints.SOFTMAX not in told
    assert told.startswith("> compiling dataset index builder ...\n")
    assert told.endswith("\n>>> done\n")


def test_an_untrue_warning_is_left_out_and_others_are_not() -> None:
    def _compile_dependencies() -> None:
        warnings.warn(f"Constraints are not met. {hints.SOFTMAX}", stacklevel=1)
        warnings.warn("your data is wrong", stacklevel=1)

    with pytest.warns(UserWarning, match="your data") as seen:
        patched(hints.PATCHES, _compile_dependencies, "softmax-hint")()
    assert [str(one.message) for one in seen] == ["your data is wrong"]


@pytest.mark.parametrize(
    ("iteration", "interval", "first", "passed"),
    [(7, 1, True, False), (7, 2, True, True), (8, 2, True, False), (9, 1, False, False)],
)
def test_a_line_that_closes_an_interval_starts_a_new_mean(
    iteration: int, interval: int, first: bool, passed: bool
) -> None:
    """The logged losses of a run's first iterations are their own."""
    seen: list[bool] = []

    def upstream(loss: Any, iteration: int, is_first_iteration: bool = False) -> None:
        seen.append(is_first_iteration)

    module = SimpleNamespace(get_args=lambda: SimpleNamespace(log_interval=interval))
    made = patched(training_log.PATCHES, upstream, "first-logged-loss", module=module)
    made({}, iteration, is_first_iteration=first)
    made({}, iteration, first)
    assert seen == [passed, passed]


@pytest.mark.parametrize(("predicted", "size"), [(None, 6), (2, 8)])
def test_a_stage_without_experts_has_a_number_for_every_layer(
    monkeypatch: pytest.MonkeyPatch, predicted: int | None, size: int
) -> None:
    """Stages with experts record so many, whatever the training loop counts."""

    def upstream(self: object, name: str, num_layers: int, device: object = None) -> int:
        return num_layers

    made = patched(training_log.PATCHES, upstream, "expert-metrics")
    name = "megatron.training.global_vars"
    monkeypatch.delitem(sys.modules, name, raising=False)
    assert made(None, "z_loss", 1) == 1
    given = Namespace(num_layers=6, mtp_num_layers=predicted)
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(_GLOBAL_ARGS=given))
    assert made(None, "z_loss", 1) == size
    assert made(None, "z_loss", num_layers=2, device="cpu") == size


@pytest.mark.parametrize(
    ("share", "change", "words"),
    [
        (0.34, {}, "34% of the time (iteration 12): the host is the limit; --cuda-graph-impl full"),
        (0.34, {"num_experts": 8}, "--micro-batch-size"),
        (0.95, {}, None),
        (None, {}, None),
        (0.34, {"cuda_graph_impl": "local"}, None),
        (0.34, {"cuda_graph_impl": None, "enable_cuda_graph": True}, None),
    ],
)
def test_a_device_that_waited_is_reported(
    share: float | None, change: dict[str, object], words: str | None
) -> None:
    said: list[str] = []
    host = Host(CpuBackend(), lambda args: None, said.append, lambda: None)
    report(host, Namespace(**{"cuda_graph_impl": "none", **change}), lambda: share)
    assert len(said) == (words is not None)
    assert words is None or words in said[0]


def test_nvml_is_asked_in_the_background(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    child = tmp_path / "child.py"
    child.write_text("import json, sys\nprint(json.dumps({'busy': len(sys.argv[2])}))\n")
    monkeypatch.setattr(_nvml, "_CHILD", child)
    read = _nvml.watch_gpu("GPU-1")
    assert read is not None
    assert read() == 0.05
    child.write_text("print('no json')\n")
    broken = _nvml.watch_gpu("GPU-1")
    assert broken is not None
    assert broken() is None
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    assert _nvml.watch_gpu("GPU-1") is None


class _Library:
    """NVML's functions, as far as a busy share needs them."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: object) -> int:
            if name == "nvmlDeviceGetUtilizationRates":
                arguments[1]._obj.gpu = 42  # type: ignore[attr-defined]
            return 0

        return call


def test_the_child_reads_the_share_of_the_named_gpu() -> None:
    found = _nvml_child.answer(_Library(), ["--busy", "GPU-1"])  # type: ignore[arg-type]
    assert json.loads(json.dumps(found)) == {"busy": 42}


@pytest.mark.parametrize(("reserved", "lines"), [(79.0, 1), (70.0, 0), (0.0, 0)])
def test_a_device_that_is_nearly_full_gets_one_line(
    monkeypatch: pytest.MonkeyPatch, reserved: float, lines: int
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    for name in ("max_memory_reserved", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda: int(reserved * 2**30))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, 80 * 2**30))
    said: list[str] = []
    args = Namespace(recompute_granularity=None, micro_batch_size=2)
    step = patched(
        memory_limit.PATCHES,
        lambda: None,
        module=SimpleNamespace(get_args=lambda: args),
        host=SimpleNamespace(say=said.append),
    )
    for _ in range(200):
        step()
    assert len(said) == lines
    assert not said or "79.0 of 80.0 GB (99%) were reserved; --recompute-activations" in said[0]


def test_the_advice_is_what_is_not_yet_used() -> None:
    args = Namespace(recompute_granularity=None, micro_batch_size=4, data_parallel_size=8)
    found = [memory_limit.advice(args, 0.5), memory_limit.advice(args, 1.0)]
    for name, value in (
        ("recompute_granularity", "selective"),
        ("use_distributed_optimizer", True),
        ("micro_batch_size", 1),
        ("recompute_granularity", "full"),
    ):
        setattr(args, name, value)
        found.append(memory_limit.advice(args, 1.0))
    assert [text.split()[0] for text in found] == [
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "--recompute-activations",
        "--use-distributed-optimizer",
        "a",
        "--recompute-granularity",
        "more",
    ]


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
    """A watched run logs what its progress line needs, where Megatron prints its own line."""

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
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 3 * 2**30)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, 80 * 2**30))
    assert patched(progress.PATCHES, upstream, module=module)({}, iteration) == "kept"
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 1 + lines
    reader = LogReader()
    found = [reader.read(line) for line in printed][-1]
    assert found is not None
    # 24 samples of 8 TFLOP on 8 devices in half a second.
    assert (found.tflops, found.memory) == ((48.0, 3.0) if lines else (None, None))


def test_nobody_else_gets_those_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FACTS, raising=False)
    armed = [one.armed_when for one in progress.PATCHES]
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
    module = SimpleNamespace(get_args=lambda: settings)
    host = SimpleNamespace(say_once=said.append)
    assert patched(progress.PATCHES, upstream, module=module, host=host)(1) == "kept"
    assert "get_num_microbatches" in said[0]
