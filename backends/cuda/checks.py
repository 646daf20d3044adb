"""Checks of `accel-bridge doctor` for machines with NVIDIA GPUs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final

from accel_bridge.backends._torch_build import TorchBuild, installed_torch
from accel_bridge.backends.cuda._probe import MINIMUM_DRIVER
from accel_bridge.backends.cuda._smi import Gpu, ask_smi
from accel_bridge.backends.cuda._visible import VARIABLE
from accel_bridge.plugins.checks import Check, Finding, Machine, fails, ok, warning

_SUBJECT: Final = "NVIDIA GPUs"
_GIB: Final = 2**30
#: Device files beside /dev/nvidia0 without which CUDA does not start.
_DEVICE_FILES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm")

#: Attribute of the framework's arguments -> (least compute capability, what needs it).
_NEEDS: Final = {
    "bf16": ((8, 0), "bf16 is emulated below 8.0 (Ampere), and slow; FP16 is not"),
    "fp8": ((8, 9), "FP8 needs compute capability 8.9 (Ada) or 9.0 (Hopper)"),
    "fp4": ((10, 0), "FP4 needs compute capability 10.0 (Blackwell)"),
}


def _build(machine: Machine) -> TorchBuild | None:
    return installed_torch(machine.spec)


def _selected(machine: Machine) -> bool:
    """Whether a training would run on NVIDIA GPUs."""
    return machine.backend is not None and machine.backend.name == "cuda"


def _driver(machine: Machine) -> Iterator[Finding]:
    smi, build = ask_smi(machine), _build(machine)
    if smi.problem is not None:
        mismatch = "version mismatch" in smi.problem
        yield fails(
            "the NVIDIA driver does not answer"
            + (": it was updated while the old one was loaded" if mismatch else ""),
            f"nvidia-smi: {smi.problem}",
            next="sudo reboot"
            if mismatch
            else "sudo modprobe nvidia; nvidia-smi; sudo dmesg | grep -i -e nvrm -e xid",
        )
    if machine.at("/dev/nvidia0").exists():
        missing = [path for path in _DEVICE_FILES if not machine.at(path).exists()]
        if missing:
            yield fails(
                "device files of the NVIDIA driver are missing: torch says 'CUDA unknown error'",
                f"/dev/nvidia0 is there, {', '.join(missing)} not",
                next="sudo nvidia-modprobe -u -c=0, or start the container again with --gpus all",
            )
    if not smi.gpus or build is None:
        return
    driver = smi.gpus[0].driver
    if build.cuda is None:
        yield fails(
            "torch is built without CUDA, and there are NVIDIA GPUs",
            f"torch {build.version}; {len(smi.gpus)} x {smi.gpus[0].name}",
            next=f"pip install --force-reinstall torch=={build.release}   (from PyTorch's CUDA "
            "wheels)",
        )
        return
    least = MINIMUM_DRIVER.get(build.cuda.split(".")[0])
    major = driver.split(".")[0]
    if least is None or not major.isdecimal() or int(major) >= least:
        yield ok(f"driver {driver} runs torch {build.version}")
        return
    compat = [
        path
        for path in machine.environ.get("LD_LIBRARY_PATH", "").split(":")
        if path and any(machine.at(path).glob("libcuda.so*"))
    ]
    says = warning if compat else fails
    yield says(
        f"the driver is too old for this torch: it is {driver}, CUDA {build.cuda} needs {least}",
        f"torch {build.version}; driver {driver}",
        *(f"{path} has a libcuda of its own (cuda-compat)" for path in compat),
        next=f"update the driver to {least} or newer, install a torch for an older CUDA, or put "
        "NVIDIA's cuda-compat first in LD_LIBRARY_PATH",
    )


def _architectures(machine: Machine) -> list[str]:
    """What torch was compiled for, e.g. ``sm_90`` and ``compute_120``; asked in a child process."""
    status, printed = machine.python(
        "-c", "import torch; print('ARCH', torch._C._cuda_getArchFlags())", seconds=60
    )
    found = re.search(r"^ARCH (.*)$", printed, re.M)
    return found[1].split() if status == 0 and found else []


def runs_on(architectures: list[str], capability: tuple[int, int]) -> bool:
    """Whether code compiled for ``architectures`` runs on a GPU of ``capability``.

    Machine code runs on its major version, from its minor one on; code for a virtual architecture
    on every later one. Source: CUDA C++ Programming Guide, "Binary and PTX compatibility".
    """
    for word in architectures:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", word)
        if found is None:
            continue
        kind, built, alone = found[1], (int(found[2]), int(found[3])), found[4] == "a"
        if built == capability or (not alone and built[0] == capability[0] and built <= capability):
            return True
        if kind == "compute" and not found[4] and built <= capability:
            return True
    return False


def _capability(machine: Machine) -> Iterator[Finding]:
    gpus, build = ask_smi(machine).gpus, _build(machine)
    known = [gpu for gpu in gpus if gpu.capability != (0, 0)]
    architectures = _architectures(machine) if known and build and build.cuda else []
    for gpu in _one_of_each(known):
        number = ".".join(map(str, gpu.capability))
        if architectures and build is not None and not runs_on(architectures, gpu.capability):
            yield fails(
                f"this torch has no kernels for {gpu.name}: 'no kernel image is available'",
                f"compute capability {number}; torch {build.version} is built for "
                f"{' '.join(architectures)}",
                next="install a torch that knows this GPU: a newer one for a newer GPU, an older "
                "one (or a build for an older CUDA) for an older GPU",
            )
        for name, (least, why) in _NEEDS.items():
            if machine.run is None or not machine.run.argument(name) or gpu.capability >= least:
                continue
            says = warning if name == "bf16" else fails
            yield says(
                f"{name.upper()} does not suit {gpu.name}: {why}",
                f"compute capability {number}",
                next="train in FP16" if name == "bf16" else f"train without {name.upper()}",
            )
    if len(_one_of_each(known)) > 1 and VARIABLE not in machine.environ:
        yield warning(
            "the GPUs are of several models: the slowest sets the pace of all",
            ", ".join(f"{gpu.index}: {gpu.name}" for gpu in gpus),
            next=f"export CUDA_DEVICE_ORDER=PCI_BUS_ID {VARIABLE}=THE NUMBERS OF ONE MODEL",
        )


def _one_of_each(gpus: list[Gpu]) -> list[Gpu]:
    return list({(gpu.name, gpu.capability): gpu for gpu in gpus}.values())


def _state(machine: Machine) -> Iterator[Finding]:
    gpus = ask_smi(machine).gpus
    for gpu in gpus:
        title = f"GPU {gpu.index} ({gpu.name})"
        if gpu.mode == "Prohibited":
            yield fails(
                f"{title} takes no computations",
                f"compute mode: {gpu.mode}",
                next=f"sudo nvidia-smi -i {gpu.index} -c DEFAULT",
            )
        if gpu.mig == "Enabled" and "MIG-" not in machine.environ.get(VARIABLE, ""):
            yield warning(
                f"{title} is divided (MIG): a process gets one part of it, and parts cannot form "
                "one training",
                "mig.mode.current: Enabled",
                next=f"sudo nvidia-smi -i {gpu.index} -mig 0, or {VARIABLE}=MIG-UUID "
                "(nvidia-smi -L)",
            )
        if gpu.errors:
            yield warning(
                f"{title} has had {gpu.errors} memory errors that could not be corrected",
                f"ecc.errors.uncorrected.volatile.total: {gpu.errors}",
                next=f"leave it out ({VARIABLE}), then sudo nvidia-smi -r -i {gpu.index}",
            )
        if gpu.slowdown:
            yield warning(
                f"{title} is slowed down by its hardware: heat, or too little power",
                "clocks_throttle_reasons.hw_slowdown: Active",
                next=f"nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER -i {gpu.index}",
            )
        if gpu.total and gpu.used > 0.1 * gpu.total and gpu.mig != "Enabled":
            yield warning(
                f"{title} is in use: {gpu.used / _GIB:.1f} of {gpu.total / _GIB:.0f} GiB are taken",
                *_users(machine, gpu),
                next=f"end what uses it, or choose others: export {VARIABLE}=NUMBERS",
            )
    if machine.at("/dev/nvidia-nvswitchctl").exists() and len(gpus) > 1:
        status, printed = machine.output(
            str(machine.program("nvidia-smi")), "--query-gpu=fabric.state", "--format=csv,noheader"
        )
        if status == 0 and re.search("Not Started|In Progress", printed):
            yield fails(
                "the GPUs' switches are not set up: CUDA says 'system not yet initialized' (802)",
                f"fabric.state: {printed.splitlines()[0]}",
                next="sudo systemctl restart nvidia-fabricmanager   (of the driver's very version)",
            )


def _users(machine: Machine, gpu: Gpu) -> list[str]:
    """The processes on a GPU, as far as they are shown here."""
    _, printed = machine.output(
        str(machine.program("nvidia-smi")),
        f"--id={gpu.index}",
        "--query-compute-apps=pid,process_name,used_memory",
        "--format=csv,noheader",
    )
    lines = [line for line in printed.splitlines() if re.match(r"\d+,", line)]
    return lines[:4] or ["no process of it is visible from here"]


_START: Final = """
import torch
torch.zeros(1, device="cuda").add_(1).item()
print("NCCL", torch.distributed.is_available() and torch.distributed.is_nccl_available())
"""
#: Errors of the first computation -> what fixes it.
_STARTS: Final = (
    (
        r"error 80[34]|forward compat",
        "take cuda-compat out of LD_LIBRARY_PATH, or update the driver",
    ),
    (r"not yet initialized|802", "sudo systemctl restart nvidia-fabricmanager"),
    (r"out of memory", "end what uses the GPU (nvidia-smi), or choose another one"),
    (r"no kernel image", "install a torch that knows this GPU"),
    (r"all CUDA-capable devices are busy|unavailable", "sudo nvidia-smi -c DEFAULT"),
    (r"too old", "update the NVIDIA driver, or install a torch for an older CUDA"),
)


def _start(machine: Machine) -> Iterator[Finding]:
    """The first computation, in a child process: whatever else looks well, this tells."""
    build = _build(machine)
    if not _selected(machine) or build is None or build.cuda is None:
        return
    status, printed = machine.python("-c", _START, seconds=machine.patience(90))
    lines = printed.strip().splitlines() or ["no message"]
    if status == 0 and "NCCL False" in lines:
        yield fails(
            "this build of torch has no NCCL, with which GPUs talk to one another",
            f"torch {build.version}",
            next=f"pip install --force-reinstall torch=={build.release}   (from PyTorch's wheels)",
        )
    elif status == 0:
        yield ok("a GPU computes")
    elif "ImportError" not in lines[-1] and "ModuleNotFoundError" not in lines[-1]:
        reason = next((one for one in reversed(lines) if "Error" in one), lines[-1])
        fix = next(
            (fix for pattern, fix in _STARTS if re.search(pattern, printed, re.IGNORECASE)), None
        )
        yield fails(
            "the first computation on a GPU fails" if status else "no GPU computes in time",
            reason,
            next=fix or "nvidia-smi; sudo dmesg | grep -i -e nvrm -e xid",
        )


def _visible(machine: Machine) -> Iterator[Finding]:
    """Fewer GPUs than ``CUDA_VISIBLE_DEVICES`` names: the list ends where one is not there."""
    value = machine.environ.get(VARIABLE)
    if value is None or machine.probe is None or not _selected(machine):
        return
    named = [word for word in value.split(",") if word.strip() not in ("", "-1")]
    devices = machine.probe.devices or 0
    if devices < len(named) and not named[0].strip().startswith("MIG-"):
        yield warning(
            f"{VARIABLE} names {len(named)} GPUs, and only {devices} can be used: it counts up to "
            "the first that is not there, and none where one is named twice",
            f"{VARIABLE}={value}",
            *machine.probe.evidence,
            next=f"export {VARIABLE}={','.join(map(str, range(len(ask_smi(machine).gpus))))}",
        )


def _infiniband(machine: Machine) -> Iterator[Finding]:
    adapters = machine.at("/sys/class/infiniband")
    if machine.run is None or machine.run.machines == 1 or not _selected(machine):
        return
    names = sorted(path.name for path in adapters.iterdir()) if adapters.is_dir() else []
    for name in names:
        states = [
            path.read_text(errors="replace").strip()
            for path in sorted((adapters / name).glob("ports/*/state"))
        ]
        if states and not any("ACTIVE" in state for state in states):
            yield warning(
                f"the adapter {name} has no connection, and NCCL leaves it out or waits for it",
                f"/sys/class/infiniband/{name}: {', '.join(states)}",
                next="ibstat; or name the others: export NCCL_IB_HCA=ADAPTER,...",
            )
    if names and not machine.at("/dev/infiniband").is_dir():
        yield warning(
            "the container sees InfiniBand adapters and may not use them: NCCL takes TCP",
            f"adapters: {', '.join(names)}; no /dev/infiniband",
            next="docker run --device /dev/infiniband --ulimit memlock=-1 ...",
        )
    modules = machine.text("/proc/modules")
    if names and modules and not re.search(r"^(nvidia_peermem|nv_peer_mem) ", modules, re.M):
        yield warning(
            "GPUs cannot send directly through InfiniBand: tensors go through host memory",
            "no module nvidia_peermem in /proc/modules",
            next="sudo modprobe nvidia-peermem",
        )


def _permissions(machine: Machine) -> Iterator[Finding]:
    for path in sorted(machine.at("/dev").glob("nvidia[0-9]*")):
        if not machine.access(path, os.R_OK | os.W_OK):
            yield fails(
                f"this user may not use /dev/{path.name}",
                f"its mode is {path.stat().st_mode & 0o777:o}; this is user {os.getuid()}",
                next=f"sudo chmod 666 /dev/{path.name}, or join the group that owns it",
            )


CHECKS: Final = (
    Check(
        "cuda-driver",
        _SUBJECT,
        "a driver that does not answer, is too old for torch's CUDA or lacks device files; a torch "
        "without CUDA",
        _driver,
        seconds=40,
    ),
    Check(
        "cuda-capability",
        _SUBJECT,
        "GPUs that this torch has no kernels for, or that lack the training's precision; GPUs of "
        "several models",
        _capability,
        seconds=80,
    ),
    Check(
        "cuda-state",
        _SUBJECT,
        "GPUs in use, divided (MIG), prohibited, slowed down, with memory errors, or whose "
        "switches are not set up",
        _state,
        seconds=60,
    ),
    Check(
        "cuda-start",
        _SUBJECT,
        "the first computation on a GPU, in a child process; a torch without NCCL",
        _start,
        seconds=110,
    ),
    Check(
        "cuda-visible", _SUBJECT, "CUDA_VISIBLE_DEVICES naming GPUs that are not there", _visible
    ),
    Check("cuda-permissions", _SUBJECT, "device files that this user may not use", _permissions),
    Check(
        "infiniband",
        _SUBJECT,
        "adapters that are down, not passed into the container, or without peer memory",
        _infiniband,
        with_run=True,
    ),
)
