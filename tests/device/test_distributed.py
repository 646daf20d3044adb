"""Process groups: backend names, dropped arguments, and two real processes over gloo."""

from __future__ import annotations

import functools
import inspect
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from accel_bridge.device import DeviceRedirection
from accel_bridge.device import _distributed as redirected
from accel_bridge.device._distributed import translate_backend
from accel_bridge.device.backend import DeviceSpec

WORKER = Path(__file__).with_name("group_worker.py")
NCCL_OPTIONS, OTHER_OPTIONS = redirected.NcclOptions(), object()


@pytest.mark.parametrize(
    ("backend", "on_cpu", "on_odd"),
    [
        ("nccl", "gloo", "odd"),
        ("NCCL", "gloo", "odd"),
        ("gloo", "gloo", "gloo"),
        ("ucc", "ucc", "ucc"),
        ("cuda:nccl", "gloo", "odd"),
        ("cpu:gloo,cuda:nccl", "gloo", "cpu:gloo,meta:odd"),
        ("cuda:nccl, cpu:gloo", "gloo", "meta:odd,cpu:gloo"),
        ("cpu:gloo,cuda:gloo", "gloo", "cpu:gloo,meta:gloo"),
    ],
)
def test_backend_names(backend: str, on_cpu: str, on_odd: str) -> None:
    assert translate_backend(backend, "cpu", "gloo") == on_cpu
    assert translate_backend(backend, "meta", "odd") == on_odd


@pytest.mark.parametrize(
    ("name", "words", "options", "expected"),
    [
        (
            "new_group",
            ([0, 1], None, "nccl", NCCL_OPTIONS),
            {"group_desc": "tp"},
            {"ranks": [0, 1], "timeout": None, "backend": "odd", "group_desc": "tp"},
        ),
        (
            "new_group",
            (),
            {"backend": "odd", "pg_options": OTHER_OPTIONS},
            {"backend": "odd", "pg_options": OTHER_OPTIONS},
        ),
        ("new_group", ([0],), {}, {"ranks": [0]}),
        (
            "init_process_group",
            (),
            {"device_id": torch.device("cuda", 0)},
            {"backend": "cpu:gloo,meta:odd"},
        ),
        ("barrier", (None, False, [0]), {}, {"group": None, "async_op": False}),
    ],
)
def test_arguments_that_reach_torchs_own_function(
    monkeypatch: pytest.MonkeyPatch,
    meta_spec: DeviceSpec,
    name: str,
    words: tuple[Any, ...],
    options: dict[str, Any],
    expected: dict[str, Any],
) -> None:
    original = getattr(dist, name)
    seen: dict[str, Any] = {}

    @functools.wraps(original)
    def record(*args: Any, **kwargs: Any) -> None:
        seen.update(inspect.signature(original).bind(*args, **kwargs).arguments)

    monkeypatch.setattr(dist, name, record)
    monkeypatch.setattr(dist, "ProcessGroupNCCL", redirected._NCCL_SHIM, raising=False)
    with DeviceRedirection(meta_spec):
        getattr(dist, name)(*words, **options)
    assert seen == expected


def test_a_torch_without_nccl_gets_options(
    monkeypatch: pytest.MonkeyPatch, cpu_spec: DeviceSpec
) -> None:
    monkeypatch.delattr(dist, "ProcessGroupNCCL", raising=False)
    with DeviceRedirection(cpu_spec):
        options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        options.config.max_ctas = 8
        assert options.is_high_priority_stream
    assert not hasattr(dist, "ProcessGroupNCCL")


def test_different_groups_of_one_call_do_not_meet() -> None:
    base = dist.HashStore()

    def helper(size: int, rank: int, global_ranks_in_group: list[int], store: Any) -> Any:
        return store

    create = redirected._meeting_by_members(helper)
    pair, other, again = (create(2, 0, ranks, base) for ranks in ([0, 2], [1, 3], [0, 2]))
    pair.set("0", "here")
    assert not other.check(["0"])
    assert again.get("0") == b"here"
    # The default group meets where it always has.
    assert create(2, 0, [], base) is base


@pytest.mark.parametrize("backend", ["nccl", "undefined"])
def test_a_group_that_a_trainer_makes_by_the_helper(cpu_spec: DeviceSpec, backend: str) -> None:
    """As ROLL, slime and OpenRLHF do, whose groups have trainers and what generates in them."""
    c10d = dist.distributed_c10d
    with DeviceRedirection(cpu_spec):
        options = dist.ProcessGroupNCCL.Options()
        place = (c10d.Backend(backend), dist.HashStore(), backend)
        group, _ = c10d._new_process_group_helper(1, 0, [], *place, options, timedelta(seconds=9))
    assert group._get_backend_name() == "gloo"
    c10d._world.pg_map.pop(group)
    c10d._world.pg_names.pop(group)


@pytest.mark.slow
def test_two_processes(warm: str) -> None:
    """Every operation of the worker, with nccl names and cuda devices throughout."""
    torchrun = (warm, "-m", "torch.distributed.run", "--standalone")
    run = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", str(WORKER)],
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert run.returncode == 0, run.stdout + run.stderr
