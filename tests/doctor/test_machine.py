"""Faults of the machine, its network and its environment, each injected, each found."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from injected_machine import GIB, Injected, checks

from accel_bridge.plugins.checks import Run, Verdict

FAILS, WARNING = Verdict.FAILS, Verdict.WARNING


@pytest.fixture
def injected(tmp_path: Path) -> Injected:
    return Injected(tmp_path / "injected")


def limits(injected: Injected, title: str, value: str) -> None:
    file = injected.root / "proc/self/limits"
    lines = [
        f"{title:<26}{value:<21}unlimited" if line.startswith(title) else line
        for line in file.read_text().splitlines()
    ]
    file.write_text("\n".join(lines) + "\n")


def test_a_sound_machine_is_silent(injected: Injected) -> None:
    injected.run = Run(processes=8, machines=2, host="node1", port=29500)
    for name, check in checks().items():
        if check.subject in ("Machine", "Network", "Environment"):
            wrong = [one for one in injected.findings(name) if one.verdict is not Verdict.OK]
            assert not wrong, name


SMALL = (64 << 20, 64 << 20)
LAUNCHED = {"RANK": "0", "WORLD_SIZE": "8", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
#: A check, its verdict, what is changed, and what it says.
FAULTS: list[tuple[Any, ...]] = [
    ("shared-memory", FAILS, {"disk": SMALL, "devices": 8}, "64 MiB", "--shm-size"),
    ("shared-memory", WARNING, {"disk": SMALL, "devices": 1}, "64 MiB", "--shm-size"),
    ("shared-memory", WARNING, {"disk": SMALL}, "64 MiB", "--shm-size"),
    ("shared-memory", WARNING, {"disk": (1 << 20, 64 * GIB), "/dev/shm/nccl": ""}, "nccl", "fuser"),
    ("shared-memory", FAILS, {"forbidden": ("dev/shm",)}, "cannot be written", "chmod 1777"),
    ("directories", FAILS, {"TMPDIR": "/scratch/job17"}, "/scratch/job17", "mkdir -p"),
    ("names", FAILS, {"addresses": {"node1": "10.0.0.1"}}, "localhost", "/etc/hosts"),
    ("names", FAILS, {"run": Run(machines=2, host="head.all")}, "head.all", "--master-addr"),
    ("names", FAILS, {"run": Run(machines=2, host="localhost")}, "--nnodes 2", "--master-addr"),
    ("interfaces", FAILS, {"NCCL_SOCKET_IFNAME": "ib0"}, "NCCL_SOCKET_IFNAME", "eth0, lo"),
    ("interfaces", FAILS, {"NCCL_SOCKET_IFNAME": "=eth"}, "NCCL_SOCKET_IFNAME", "eth0, lo"),
    ("interfaces", FAILS, {"GLOO_SOCKET_IFNAME": "eth"}, "GLOO_SOCKET_IFNAME", "eth0, lo"),
    ("interfaces", FAILS, {"HCCL_SOCKET_IFNAME": "enp189s0f0"}, "HCCL_SOCKET_IFNAME", "eth0, lo"),
    ("variables", WARNING, {"ACCEL_BRIDGE_BACKENDS": ""}, "'ACCEL_BRIDGE_BACKEND'", "unset"),
    ("variables", FAILS, {"ACCEL_BRIDGE_LOG": "loud"}, "ACCEL_BRIDGE_LOG='loud'", "quiet"),
    ("launcher", FAILS, {"RANK": "3"}, "not set: WORLD_SIZE, MASTER_ADDR, MASTER_PORT"),
    ("launcher", FAILS, {"WORLD_SIZE": "eight"}, "eight"),
    ("launcher", FAILS, {"RANK": "8", "WORLD_SIZE": "8"}, "not below"),
    ("launcher", WARNING, LAUNCHED, "rank 0 of 8"),
    ("hindrances", WARNING, {"PYTHONOPTIMIZE": "1"}, "assertions"),
    ("hindrances", WARNING, {"backend": "cuda", CONNECTIONS: "32"}, f"{CONNECTIONS}=32"),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(injected: Injected, fault: tuple[Any, ...]) -> None:
    injected.find(*fault)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("NCCL_SOCKET_IFNAME", "eth"),
        ("NCCL_SOCKET_IFNAME", "^docker"),
        ("GLOO_SOCKET_IFNAME", "eth0"),
    ],
)
def test_interface_that_is_there(injected: Injected, variable: str, value: str) -> None:
    injected.environ[variable] = value
    assert not injected.findings("interfaces")


def test_no_shared_memory(injected: Injected) -> None:
    (injected.root / "dev/shm/.keep").unlink()
    (injected.root / "dev/shm").rmdir()
    injected.finding("shared-memory", FAILS, "/dev/shm is missing", "mount")


def test_few_open_files(injected: Injected) -> None:
    limits(injected, "Max open files", "256")
    injected.finding("limits", WARNING, "ulimit -n: 256", "65536")


def test_few_threads_in_a_container(injected: Injected) -> None:
    injected.file("/sys/fs/cgroup/pids.max", "100\n")
    injected.run = Run(processes=8)
    injected.finding("limits", FAILS, "pids.max: 100", "--pids-limit")


@pytest.mark.parametrize(("machines", "verdict"), [(1, WARNING), (4, FAILS)])
def test_locked_memory_for_infiniband(injected: Injected, machines: int, verdict: Verdict) -> None:
    limits(injected, "Max locked memory", "65536")
    assert not injected.findings("limits")  # without an adapter nobody locks any
    injected.file("/sys/class/infiniband/mlx5_0/node_type")
    injected.run = Run(machines=machines)
    injected.finding("limits", verdict, "mlx5_0", "ulimit -l unlimited")


def test_memory_of_a_container(injected: Injected) -> None:
    injected.run = Run(processes=8)
    assert not injected.findings("host-memory")
    injected.file("/sys/fs/cgroup/memory.max", str(8 * GIB))
    injected.file("/sys/fs/cgroup/memory.current", str(5 * GIB))
    injected.file("/sys/fs/cgroup/memory.stat", f"inactive_file {GIB}\n")
    injected.finding("host-memory", WARNING, "4.0 GiB are free", "8 ranks need 12.0 GiB")


def test_cache_on_a_noexec_mount(injected: Injected) -> None:
    injected.file("/home/user/.triton/x")
    mounts = injected.root / "proc/mounts"
    mounts.write_text(mounts.read_text() + "nfs:/home /home nfs rw,noexec 0 0\n")
    injected.environ["TORCH_EXTENSIONS_DIR"] = "/tmp/extensions"
    injected.finding("directories", WARNING, "noexec", "TRITON_CACHE_DIR")


def test_home_that_cannot_be_written(injected: Injected) -> None:
    injected.forbidden = ("home/user",)
    found = injected.findings("directories")
    assert [one.verdict for one in found] == [FAILS, FAILS]
    assert "export TRITON_CACHE_DIR=" in found[0].next


def test_full_temporary_directory(injected: Injected) -> None:
    injected.disk = (10 << 20, 100 * GIB)
    found = injected.findings("directories")
    assert [one.verdict for one in found] == [WARNING] * 4
    assert "10 MiB free" in found[0].evidence[0]


@pytest.mark.parametrize(("machines", "verdict"), [(1, WARNING), (2, FAILS)])
def test_this_machine_without_an_address(
    injected: Injected, machines: int, verdict: Verdict
) -> None:
    del injected.addresses["node1"]
    injected.run = Run(machines=machines, host="10.0.0.9")
    injected.addresses["10.0.0.9"] = "10.0.0.9"
    injected.finding("names", verdict, "node1", "GLOO_SOCKET_IFNAME")


def test_name_that_is_the_loopback(injected: Injected) -> None:
    injected.addresses["node1"] = "127.0.1.1"
    assert not injected.findings("names")
    injected.run = Run(machines=2, host="node1")
    injected.finding("names", FAILS, "127.0.1.1", "/etc/hosts")
    injected.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    assert not injected.findings("names")


def test_torchrun_of_another_python(injected: Injected) -> None:
    injected.run = Run(script="train.py")
    (injected.programs / "torchrun").write_text("#!/opt/conda/bin/python3\n")
    (injected.programs / "torchrun").chmod(0o755)
    injected.finding("torchrun", WARNING, "/opt/conda/bin/python3", "-m torch.distributed.run")
    (injected.programs / "torchrun").write_text(f"#!{sys.executable}\n")
    assert not injected.findings("torchrun")


def test_port_that_is_taken(injected: Injected) -> None:
    file = injected.root / "proc/net/tcp"
    file.write_text(file.read_text() + "   0: 00000000:733C 00000000:0000 0A\n")  # 29500
    injected.run = Run(port=29500)
    injected.finding("ports", FAILS, "29500", "--master-port")
    injected.run = Run(port=29501)
    assert not injected.findings("ports")
    injected.run = None
    injected.environ["MASTER_PORT"] = "29500"
    injected.finding("ports", FAILS, "29500")


def test_container_without_a_network(injected: Injected) -> None:
    (injected.root / "sys/class/net/eth0/mtu").unlink()
    (injected.root / "sys/class/net/eth0").rmdir()
    injected.run = Run(machines=2, host="node1")
    injected.finding("interfaces", FAILS, "loopback", "--network host")


def test_variables_that_slow_down(injected: Injected) -> None:
    injected.environ["CUDA_LAUNCH_BLOCKING"] = "1"
    assert not injected.findings("hindrances")  # nothing is launched on a CPU
    injected.backend = "cuda"
    injected.finding("hindrances", WARNING, "several times slower", "unset")
