"""Faults of the machine, its network and its environment, each planted, each found."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from planted_machine import GIB, Planted, checks

from accel_bridge.plugins.checks import Run, Verdict

FAILS, WARNING = Verdict.FAILS, Verdict.WARNING


@pytest.fixture
def planted(tmp_path: Path) -> Planted:
    return Planted(tmp_path / "planted")


def limits(planted: Planted, title: str, value: str) -> None:
    file = planted.root / "proc/self/limits"
    lines = [
        f"{title:<26}{value:<21}unlimited" if line.startswith(title) else line
        for line in file.read_text().splitlines()
    ]
    file.write_text("\n".join(lines) + "\n")


def test_a_sound_machine_is_silent(planted: Planted) -> None:
    planted.run = Run(processes=8, machines=2, host="node1", port=29500)
    for name, check in checks().items():
        if check.subject in ("Machine", "Network", "Environment"):
            wrong = [one for one in planted.findings(name) if one.verdict is not Verdict.OK]
            assert not wrong, name


def test_no_shared_memory(planted: Planted) -> None:
    (planted.root / "dev/shm/.keep").unlink()
    (planted.root / "dev/shm").rmdir()
    planted.finding("shared-memory", FAILS, "/dev/shm is missing", "mount")


@pytest.mark.parametrize(("devices", "verdict"), [(8, FAILS), (1, WARNING), (None, WARNING)])
def test_shared_memory_of_a_container(
    planted: Planted, devices: int | None, verdict: Verdict
) -> None:
    planted.devices, planted.disk = devices, (64 << 20, 64 << 20)
    planted.finding("shared-memory", verdict, "64 MiB", "--shm-size")


def test_full_shared_memory(planted: Planted) -> None:
    planted.disk = (1 << 20, 64 * GIB)
    planted.file("/dev/shm/nccl-left")
    planted.finding("shared-memory", WARNING, "nccl-left", "fuser")


def test_few_open_files(planted: Planted) -> None:
    limits(planted, "Max open files", "256")
    planted.finding("limits", WARNING, "ulimit -n: 256", "65536")


def test_few_threads_in_a_container(planted: Planted) -> None:
    planted.file("/sys/fs/cgroup/pids.max", "100\n")
    planted.run = Run(processes=8)
    planted.finding("limits", FAILS, "pids.max: 100", "--pids-limit")


@pytest.mark.parametrize(("machines", "verdict"), [(1, WARNING), (4, FAILS)])
def test_locked_memory_for_infiniband(planted: Planted, machines: int, verdict: Verdict) -> None:
    limits(planted, "Max locked memory", "65536")
    assert not planted.findings("limits")  # without an adapter nobody locks any
    planted.file("/sys/class/infiniband/mlx5_0/node_type")
    planted.run = Run(machines=machines)
    planted.finding("limits", verdict, "mlx5_0", "ulimit -l unlimited")


def test_limited_address_space_and_files(planted: Planted) -> None:
    limits(planted, "Max address space", str(8 * GIB))
    planted.finding("limits", WARNING, "ulimit -v")
    limits(planted, "Max address space", "unlimited")
    limits(planted, "Max file size", str(2 * GIB))
    planted.finding("limits", WARNING, "ulimit -f: 2097152 KiB")


def test_memory_of_a_container(planted: Planted) -> None:
    planted.run = Run(processes=8)
    assert not planted.findings("host-memory")
    planted.file("/sys/fs/cgroup/memory.max", str(8 * GIB))
    planted.file("/sys/fs/cgroup/memory.current", str(5 * GIB))
    planted.file("/sys/fs/cgroup/memory.stat", f"inactive_file {GIB}\n")
    planted.finding("host-memory", WARNING, "4.0 GiB are free", "8 ranks need 12.0 GiB")


def test_strict_overcommit(planted: Planted) -> None:
    planted.file("/proc/sys/vm/overcommit_memory", "2\n")
    planted.finding("host-memory", WARNING, "vm.overcommit_memory=0")


def test_temporary_folder_that_is_not_there(planted: Planted) -> None:
    planted.environ["TMPDIR"] = "/scratch/job17"
    planted.finding("folders", FAILS, "/scratch/job17", "mkdir -p")


def test_cache_on_a_noexec_mount(planted: Planted) -> None:
    planted.file("/home/user/.triton/x")
    mounts = planted.root / "proc/mounts"
    mounts.write_text(mounts.read_text() + "nfs:/home /home nfs rw,noexec 0 0\n")
    planted.environ["TORCH_EXTENSIONS_DIR"] = "/tmp/extensions"
    planted.finding("folders", WARNING, "noexec", "TRITON_CACHE_DIR")


def test_home_that_cannot_be_written(planted: Planted) -> None:
    planted.forbidden = ("home/user",)
    found = planted.findings("folders")
    assert [one.verdict for one in found] == [FAILS, FAILS]
    assert "export TRITON_CACHE_DIR=" in found[0].next


def test_shared_memory_that_cannot_be_written(planted: Planted) -> None:
    planted.forbidden = ("dev/shm",)
    planted.finding("shared-memory", FAILS, "cannot be written", "chmod 1777")


def test_full_temporary_folder(planted: Planted) -> None:
    planted.disk = (10 << 20, 100 * GIB)
    found = planted.findings("folders")
    assert [one.verdict for one in found] == [WARNING] * 4
    assert "10 MiB free" in found[0].evidence[0]


def test_lock_of_a_killed_compilation(planted: Planted) -> None:
    lock = planted.file("/home/user/.cache/torch_extensions/py312/fused/lock")
    assert not planted.findings("compiler-locks")  # it may still run
    os.utime(lock, (time.time() - 7200,) * 2)
    planted.finding("compiler-locks", FAILS, "fused", f"rm {lock}")


def test_more_threads_than_processor_time(planted: Planted) -> None:
    planted.file("/sys/fs/cgroup/cpu.max", "20000 100000\n")  # a fifth of a processor
    planted.finding("processors", WARNING, "0.2 processors' time", "OMP_NUM_THREADS=1")
    planted.environ["OMP_NUM_THREADS"] = "1"
    assert not planted.findings("processors")


def test_more_ranks_than_processors(planted: Planted) -> None:
    planted.run = Run(processes=4096)
    planted.finding("processors", WARNING, "4096 ranks share")


def test_localhost_without_an_address(planted: Planted) -> None:
    del planted.addresses["localhost"]
    planted.finding("names", FAILS, "localhost", "/etc/hosts")


@pytest.mark.parametrize(("machines", "verdict"), [(1, WARNING), (2, FAILS)])
def test_this_machine_without_an_address(planted: Planted, machines: int, verdict: Verdict) -> None:
    del planted.addresses["node1"]
    planted.run = Run(machines=machines, host="10.0.0.9")
    planted.addresses["10.0.0.9"] = "10.0.0.9"
    planted.finding("names", verdict, "node1", "GLOO_SOCKET_IFNAME")


def test_first_machine_without_an_address(planted: Planted) -> None:
    planted.run = Run(machines=2, host="head.cluster")
    planted.finding("names", FAILS, "head.cluster", "--master-addr")


def test_machines_that_meet_at_localhost(planted: Planted) -> None:
    planted.run = Run(machines=2, host="localhost")
    planted.finding("names", FAILS, "--nnodes 2", "--master-addr ADDRESS")


def test_name_that_is_the_loopback(planted: Planted) -> None:
    planted.addresses["node1"] = "127.0.1.1"
    assert not planted.findings("names")
    planted.run = Run(machines=2, host="node1")
    planted.finding("names", FAILS, "127.0.1.1", "/etc/hosts")
    planted.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    assert not planted.findings("names")


def test_torchrun_of_another_python(planted: Planted) -> None:
    planted.run = Run(script="train.py")
    (planted.programs / "torchrun").write_text("#!/opt/conda/bin/python3\n")
    (planted.programs / "torchrun").chmod(0o755)
    planted.finding("torchrun", WARNING, "/opt/conda/bin/python3", "-m torch.distributed.run")
    (planted.programs / "torchrun").write_text(f"#!{sys.executable}\n")
    assert not planted.findings("torchrun")


def test_port_that_is_taken(planted: Planted) -> None:
    file = planted.root / "proc/net/tcp"
    file.write_text(file.read_text() + "   0: 00000000:733C 00000000:0000 0A\n")  # 29500
    planted.run = Run(port=29500)
    planted.finding("ports", FAILS, "29500", "--master-port")
    planted.run = Run(port=29501)
    assert not planted.findings("ports")
    planted.run = None
    planted.environ["MASTER_PORT"] = "29500"
    planted.finding("ports", FAILS, "29500")


@pytest.mark.parametrize(
    ("variable", "value", "wrong"),
    [
        ("NCCL_SOCKET_IFNAME", "ib0", True),
        ("NCCL_SOCKET_IFNAME", "eth", False),
        ("NCCL_SOCKET_IFNAME", "=eth", True),
        ("NCCL_SOCKET_IFNAME", "^docker", False),
        ("GLOO_SOCKET_IFNAME", "eth", True),
        ("GLOO_SOCKET_IFNAME", "eth0", False),
        ("HCCL_SOCKET_IFNAME", "enp189s0f0", True),
    ],
)
def test_interface_that_is_not_there(
    planted: Planted, variable: str, value: str, wrong: bool
) -> None:
    planted.environ[variable] = value
    if wrong:
        planted.finding("interfaces", FAILS, variable, "eth0, lo")
    else:
        assert not planted.findings("interfaces")


def test_container_without_a_network(planted: Planted) -> None:
    (planted.root / "sys/class/net/eth0/mtu").unlink()
    (planted.root / "sys/class/net/eth0").rmdir()
    planted.run = Run(machines=2, host="node1")
    planted.finding("interfaces", FAILS, "loopback", "--network host")


def test_variable_that_nobody_knows(planted: Planted) -> None:
    planted.environ["ACCEL_BRIDGE_BACKENDS"] = "cpu"
    planted.finding("variables", WARNING, "did you mean 'ACCEL_BRIDGE_BACKEND'", "unset")


def test_value_that_means_nothing(planted: Planted) -> None:
    planted.environ["ACCEL_BRIDGE_LOG"] = "loud"
    planted.finding("variables", FAILS, "ACCEL_BRIDGE_LOG='loud'", "quiet")


def test_library_that_has_no_shim(planted: Planted) -> None:
    planted.environ["ACCEL_BRIDGE_LIBRARIES"] = "transformer_engin"
    planted.finding("choices", WARNING, "transformer_engine")


@pytest.mark.parametrize(
    ("environ", "verdict", "text"),
    [
        ({"RANK": "3"}, FAILS, "not set: WORLD_SIZE, MASTER_ADDR, MASTER_PORT"),
        ({"WORLD_SIZE": "eight"}, FAILS, "eight"),
        ({"RANK": "8", "WORLD_SIZE": "8"}, FAILS, "not below"),
        (
            {"RANK": "0", "WORLD_SIZE": "8", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
            WARNING,
            "rank 0 of 8",
        ),
    ],
)
def test_launcher_variables(
    planted: Planted, environ: dict[str, str], verdict: Verdict, text: str
) -> None:
    planted.environ.update(environ)
    planted.finding("launcher", verdict, text)


def test_variables_that_slow_down(planted: Planted) -> None:
    planted.environ["CUDA_LAUNCH_BLOCKING"] = "1"
    assert not planted.findings("hindrances")  # nothing is launched on a CPU
    planted.backend = "cuda"
    planted.finding("hindrances", WARNING, "several times slower", "unset")


def test_assertions_left_out(planted: Planted) -> None:
    planted.environ["PYTHONOPTIMIZE"] = "1"
    planted.finding("hindrances", WARNING, "assertions")


def test_variable_that_the_device_wants_otherwise(planted: Planted) -> None:
    planted.backend = "cuda"
    planted.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
    planted.finding("hindrances", WARNING, "CUDA_DEVICE_MAX_CONNECTIONS=32")
