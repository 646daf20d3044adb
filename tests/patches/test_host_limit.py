"""Who was waited for: what the end of a run says."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from accel_bridge.backends.cpu import CpuBackend
from accel_bridge.backends.cuda import _nvml, _nvml_child
from accel_bridge.patches.host_limit import report
from accel_bridge.patching.host import Host


def host(said: list[str]) -> Host:
    return Host(CpuBackend(), lambda args: None, said.append, lambda: None)


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
    report(host(said), Namespace(**{"cuda_graph_impl": "none", **change}), lambda: share)
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
