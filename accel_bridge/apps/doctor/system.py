"""Checks of the machine: shared memory, limits, memory, disks, devices."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final

from accel_bridge.plugins.checks import Check, Finding, Machine, fails, ok, warning
from accel_bridge.process.cache import USES, directories

_MIB: Final = 2**20
_GIB: Final = 2**30
_SUBJECT: Final = "Machine"
_SHM: Final = "/dev/shm"
_SHM_NEXT: Final = (
    "start the container with --shm-size=16g (or --ipc=host); on a host: "
    "sudo mount -o remount,size=16G /dev/shm"
)

#: Threads of a rank: its own, torch's autograd and data loaders, a communication library's.
_THREADS: Final = 64
#: Host memory that a rank needs for Python, torch and Megatron, in bytes.
_RANK_MEMORY: Final = int(1.5 * _GIB)


def _shared_memory(machine: Machine) -> Iterator[Finding]:
    directory = machine.at(_SHM)
    if not directory.is_dir():
        yield fails(
            f"{_SHM} is missing, through which processes share tensors",
            f"no directory {_SHM}",
            next="mount it: sudo mkdir -p /dev/shm && sudo mount -t tmpfs tmpfs /dev/shm",
        )
        return
    if not machine.access(directory, os.W_OK):
        mode = f"{directory.stat().st_mode & 0o7777:o}"
        yield fails(
            f"{_SHM} cannot be written, through which processes share tensors",
            f"its mode is {mode}; this is user {os.getuid()}",
            next="sudo chmod 1777 /dev/shm",
        )
        return
    free, total = machine.disk(directory)
    evidence = f"{_SHM}: {free // _MIB} MiB free of {total // _MIB} MiB"
    devices = (machine.probe.devices if machine.probe else None) or 0
    if total <= 64 * _MIB and devices > 1:
        yield fails(
            "shared memory is too small for ranks on several devices: a collective would end in a "
            "bus error or in 'Error while creating shared memory segment'",
            evidence,
            next=_SHM_NEXT,
        )
    elif total < _GIB:
        yield warning(
            "shared memory is small: data loaders' workers may end with a bus error",
            evidence,
            next=f"{_SHM_NEXT}; or train with --num-workers 0",
        )
    elif free < 256 * _MIB:
        left = sorted(path.name for path in directory.iterdir())[:5]
        yield warning(
            "shared memory is nearly full, often of what killed processes left",
            evidence,
            f"the first files there: {', '.join(left) or 'none'}",
            next=f"remove what no process uses: ls -l {_SHM}; fuser -v {_SHM}/*",
        )
    else:
        yield ok("shared memory is large enough", evidence)


def limit(machine: Machine, title: str) -> int | None:
    """The soft limit of this process with a title of /proc/self/limits; None: no limit known."""
    found = re.search(rf"^{re.escape(title)}\s+(\d+)", machine.text("/proc/self/limits"), re.M)
    return int(found[1]) if found else None


def _limits(machine: Machine) -> Iterator[Finding]:
    run = machine.run
    ranks, processes = (run.ranks, run.processes) if run else (1, 1)
    files, wanted = limit(machine, "Max open files"), max(1024, 16 * ranks)
    if files is not None and files < wanted:
        yield warning(
            f"a process may open {files} files, which data loaders and collectives exceed",
            f"ulimit -n: {files}; {wanted} are wanted for {ranks} ranks",
            next="ulimit -n 65536   (docker run --ulimit nofile=65536:65536)",
        )
    threads = limit(machine, "Max processes")
    if threads is not None and os.geteuid() != 0 and threads < processes * _THREADS:
        yield fails(
            f"this user may have {threads} threads, and {processes} ranks start more",
            f"ulimit -u: {threads}; a rank starts about {_THREADS}",
            next="ulimit -u unlimited   (docker run --ulimit nproc=-1:-1)",
        )
    allowed = machine.text("/sys/fs/cgroup/pids.max").strip()
    if allowed.isdigit() and int(allowed) < processes * _THREADS:
        yield fails(
            f"this container may have {allowed} threads, and {processes} ranks start more",
            f"/sys/fs/cgroup/pids.max: {allowed}; a rank starts about {_THREADS}",
            next="docker run --pids-limit -1   (Kubernetes: podPidsLimit)",
        )
    adapters = machine.at("/sys/class/infiniband")
    locked = limit(machine, "Max locked memory")
    if locked is not None and locked < 64 * _MIB and adapters.is_dir() and any(adapters.iterdir()):
        found = ", ".join(sorted(path.name for path in adapters.iterdir()))
        says = fails if run is not None and run.machines > 1 else warning
        yield says(
            "too little memory may be locked for InfiniBand: registering buffers fails",
            f"ulimit -l: {locked // 1024} KiB; adapters: {found}",
            next="ulimit -l unlimited   (docker run --ulimit memlock=-1:-1)",
        )


def available_memory(machine: Machine) -> int | None:
    """Bytes that processes of this machine or container may still take."""
    fields = dict(re.findall(r"^(\w+):\s+(\d+)", machine.text("/proc/meminfo"), re.M))
    if "MemAvailable" not in fields:
        return None
    free = int(fields["MemAvailable"]) * 1024
    most = machine.text("/sys/fs/cgroup/memory.max").strip()
    used = machine.text("/sys/fs/cgroup/memory.current").strip()
    if most.isdigit() and used.isdigit():
        # What the page cache holds counts as used there, and can be given back.
        cached = re.search(
            r"^inactive_file (\d+)", machine.text("/sys/fs/cgroup/memory.stat"), re.M
        )
        free = min(free, int(most) - int(used) + int(cached[1] if cached else 0))
    return free


def _host_memory(machine: Machine) -> Iterator[Finding]:
    free = available_memory(machine)
    processes = machine.run.processes if machine.run else 1
    if free is not None and free < processes * _RANK_MEMORY:
        yield warning(
            f"little host memory is free: {processes} rank{'s' * (processes > 1)} "
            f"need{'s' * (processes == 1)} {processes * _RANK_MEMORY / _GIB:.1f} GiB before the "
            "model",
            f"{free / _GIB:.1f} GiB are free",
            next="end what uses it (ps aux --sort=-rss | head), start fewer ranks, or raise the "
            "container's limit (docker run --memory)",
        )


def _directories(machine: Machine) -> Iterator[Finding]:
    mounts = re.findall(r"^\S+ (\S+) \S+ (\S+)", machine.text("/proc/mounts"), re.M)
    for name, path in directories(machine.environ).items():
        there = machine.nearest(path)
        given = f"{name}={machine.environ[name]}" if machine.environ.get(name) else str(path)
        if name == "TMPDIR" and not machine.at(str(path.absolute())).is_dir():
            yield fails(
                f"the directory for temporary files is missing: {path}",
                given,
                next=f"mkdir -p {path}, or unset TMPDIR",
            )
            continue
        if not machine.access(there, os.W_OK):
            yield fails(
                f"{path} cannot be written, where {USES[name]}",
                f"{given}; {there} belongs to user {there.stat().st_uid}, this is {os.getuid()}",
                next=f"export {name}=A DIRECTORY THAT YOU MAY WRITE",
            )
            continue
        free, _ = machine.disk(there)
        if free < 512 * _MIB:
            yield warning(
                f"little room is left in {path}, where {USES[name]}",
                f"{given}: {free // _MIB} MiB free",
                next=f"free some (df -h {path}), or export {name}=ANOTHER DIRECTORY",
            )
        # The mount that is nearest above the directory.
        above = [
            one for one in mounts if f"{path.absolute()}/".startswith(one[0].rstrip("/") + "/")
        ]
        options = max(above, key=lambda one: len(one[0]), default=("", ""))[1]
        if "noexec" in options.split(","):
            yield warning(
                f"nothing may be executed in {path}, where {USES[name]}: 'failed to map segment "
                "from shared object'",
                f"{given} is mounted noexec",
                next=f"export {name}=A DIRECTORY ON ANOTHER DISK",
            )


def _ranks(machine: Machine) -> Iterator[Finding]:
    run, probe = machine.run, machine.probe
    if run is None or probe is None or probe.devices is None:
        return
    if run.processes > probe.devices:
        yield fails(
            f"{run.processes} ranks would share {probe.devices} "
            f"device{'s' * (probe.devices != 1)}, and the first collective would hang",
            f"--nproc-per-node {run.processes}",
            *probe.evidence,
            next=f"--nproc-per-node {probe.devices}, or ACCEL_BRIDGE_BACKEND=cpu",
        )


CHECKS: Final = (
    Check(
        "shared-memory",
        _SUBJECT,
        "/dev/shm missing, not writable, too small (64 MiB in a container) or full",
        _shared_memory,
    ),
    Check(
        "limits",
        _SUBJECT,
        "ulimits and container limits: open files, threads, locked memory",
        _limits,
    ),
    Check(
        "host-memory",
        _SUBJECT,
        "too little free memory for the ranks' own processes",
        _host_memory,
    ),
    Check(
        "directories",
        _SUBJECT,
        "temporary and compilers' directories that are missing, full, not writable or noexec",
        _directories,
    ),
    Check("ranks", "Training", "more ranks on this machine than devices", _ranks, with_run=True),
)
