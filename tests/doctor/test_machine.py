"""Faults of the machine, its network and its environment, each injected, each found."""

from __future__ import annotations

import sys
from pathlib import Path

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


def test_no_shared_memory(injected: Injected) -> None:
    (injected.root / "dev/shm/.keep").unlink()
    (injected.root / "dev/shm").rmdir()
    injected.finding("shared-memory", FAILS, "/dev/shm is missing", "mount")


@pytest.mark.parametrize(("devices", "verdict"), [(8, FAILS), (1, WARNING), (None, WARNING)])
def test_shared_memory_of_a_container(
    injected: Injected, devices: int | None, verdict: Verdict
) -> None:
    injected.devices, injected.disk = devices, (64 << 20, 64 << 20)
    injected.finding("shared-memory", verdict, "64 MiB", "--shm-size")


def test_full_shared_memory(injected: Injected) -> None:
    injected.disk = (1 << 20, 64 * GIB)
    injected.file("/dev/shm/nccl-left")
    injected.finding("shared-memory", WARNING, "nccl-left", "fuser")


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


def test_temporary_directory_that_is_not_there(injected: Injected) -> None:
    injected.environ["TMPDIR"] = "/scratch/job17"
    injected.finding("directories", FAILS, "/scratch/job17", "mkdir -p")


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


def test_shared_memory_that_cannot_be_written(injected: Injected) -> None:
    injected.forbidden = ("dev/shm",)
    injected.finding("shared-memory", FAILS, "cannot be written", "chmod 1777")


def test_full_temporary_directory(injected: Injected) -> None:
    injected.disk = (10 << 20, 100 * GIB)
    found = injected.findings("directories")
    assert [one.verdict for one in found] == [WARNING] * 4
    assert "10 MiB free" in found[0].evidence[0]


def test_localhost_without_an_address(injected: Injected) -> None:
    del injected.addresses["localhost"]
    injected.finding("names", FAILS, "localhost", "/etc/hosts")


@pytest.mark.parametrize(("machines", "verdict"), [(1, WARNING), (2, FAILS)])
def test_this_machine_without_an_address(
    injected: Injected, machines: int, verdict: Verdict
) -> None:
    del injected.addresses["node1"]
    injected.run = Run(machines=machines, host="10.0.0.9")
    injected.addresses["10.0.0.9"] = "10.0.0.9"
    injected.finding("names", verdict, "node1", "GLOO_SOCKET_IFNAME")


def test_first_machine_without_an_address(injected: Injected) -> None:
    injected.run = Run(machines=2, host="head.cluster")
    injected.finding("names", FAILS, "head.cluster", "--master-addr")


def test_machines_that_meet_at_localhost(injected: Injected) -> None:
    injected.run = Run(machines=2, host="localhost")
    injected.finding("names", FAILS, "--nnodes 2", "--master-addr ADDRESS")


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
    injected: Injected, variable: str, value: str, wrong: bool
) -> None:
    injected.environ[variable] = value
    if wrong:
        injected.finding("interfaces", FAILS, variable, "eth0, lo")
    else:
        assert not injected.findings("interfaces")


def test_container_without_a_network(injected: Injected) -> None:
    (injected.root / "sys/class/net/eth0/mtu").unlink()
    (injected.root / "sys/class/net/eth0").rmdir()
    injected.run = Run(machines=2, host="node1")
    injected.finding("interfaces", FAILS, "loopback", "--network host")


def test_variable_that_nobody_knows(injected: Injected) -> None:
    injected.environ["ACCEL_BRIDGE_BACKENDS"] = "cpu"
    injected.finding("variables", WARNING, "did you mean 'ACCEL_BRIDGE_BACKEND'", "unset")


def test_value_that_means_nothing(injected: Injected) -> None:
    injected.environ["ACCEL_BRIDGE_LOG"] = "loud"
    injected.finding("variables", FAILS, "ACCEL_BRIDGE_LOG='loud'", "quiet")


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
    injected: Injected, environ: dict[str, str], verdict: Verdict, text: str
) -> None:
    injected.environ.update(environ)
    injected.finding("launcher", verdict, text)


def test_variables_that_slow_down(injected: Injected) -> None:
    injected.environ["CUDA_LAUNCH_BLOCKING"] = "1"
    assert not injected.findings("hindrances")  # nothing is launched on a CPU
    injected.backend = "cuda"
    injected.finding("hindrances", WARNING, "several times slower", "unset")


def test_assertions_left_out(injected: Injected) -> None:
    injected.environ["PYTHONOPTIMIZE"] = "1"
    injected.finding("hindrances", WARNING, "assertions")


def test_variable_that_the_device_wants_otherwise(injected: Injected) -> None:
    injected.backend = "cuda"
    injected.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
    injected.finding("hindrances", WARNING, "CUDA_DEVICE_MAX_CONNECTIONS=32")
