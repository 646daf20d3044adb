"""Checks of `accel-bridge doctor` for machines with Ascend NPUs, and for torch_npu anywhere."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from packaging.version import InvalidVersion, Version

from accel_bridge.backends._torch_build import installed_torch
from accel_bridge.backends.ascend import _site
from accel_bridge.backends.ascend._compatibility import cann_mismatch, foreign_transformer_engine
from accel_bridge.backends.ascend._hccl import check_hccl, host_ports
from accel_bridge.backends.ascend._probe import DRIVER_FILE, SET_ENV, VISIBLE, AscendProbe
from accel_bridge.backends.ascend._tools import NpuSmi, parse_npu_smi
from accel_bridge.backends.ascend.limits import (
    CHIP,
    RELEASES,
    Rules,
    chip_of,
    of_training,
    released,
)
from accel_bridge.errors import BridgeError
from accel_bridge.plugins.checks import Check, Finding, Machine, fails, of_error, ok, warning

_SUBJECT: Final = "Ascend NPUs"
_AUTOLOAD: Final = "TORCH_DEVICE_BACKEND_AUTOLOAD"
_FIRMWARE_FILE: Final = "/usr/local/Ascend/firmware/version.info"
#: Device files beside /dev/davinci0 that a container must be given as well.
_MANAGERS: Final = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
#: Where the driver's libraries are; a container gets them from its host.
_DRIVER_LIBRARIES: Final = "/usr/local/Ascend/driver/lib64"

#: What torch_npu is linked with (`readelf -d libtorch_npu.so`, 2.13).
CANN_LIBRARIES: Final = (
    "libhccl.so",
    "libascendcl.so",
    "libacl_op_compiler.so",
    "libge_runner.so",
    "libgraph.so",
    "libacl_tdt_channel.so",
)

#: CANN release -> the oldest driver (Ascend HDK) that it supports; later releases want no older.
#: Sources: CANN 8.5.0, "Mapping Between CANN and Driver Versions"; MindIE 2.1.RC1 and MindSDK
#: 6.0.RC2, release notes, "version compatibility".
OLDEST_DRIVER: Final[Mapping[str, str]] = {"8.0": "23.0.2", "8.2": "24.1rc2", "8.5": "25.0rc1"}

#: Modules that CANN's compiler of operators imports in the program's Python -> distribution.
#: Source: CANN, installation guide, "dependencies".
_COMPILER_MODULES: Final[Mapping[str, str]] = {
    "attr": "attrs",
    "cloudpickle": "cloudpickle",
    "decorator": "decorator",
    "ml_dtypes": "ml-dtypes",
    "numpy": "numpy",
    "psutil": "psutil",
    "scipy": "scipy",
    "sympy": "sympy",
    "tornado": "tornado",
    "absl": "absl-py",
}


def _probe(machine: Machine) -> AscendProbe:
    """The backend's own search, on this machine."""
    return AscendProbe(
        root=machine.root,
        emulated=False,
        environ=machine.environ,
        torch_build=lambda: installed_torch(machine.spec),
        torch_npu_version=lambda: machine.version("torch-npu"),
    )


def _emulated(machine: Machine) -> bool:
    """On emulated NPUs the versions of CANN and driver mean nothing."""
    return machine.root == Path("/") and AscendProbe().emulated


def has_devices(machine: Machine) -> bool:
    """Whether the driver shows NPUs."""
    return any(machine.at("/dev").glob("davinci[0-9]*"))


def comparable(text: str) -> Version | None:
    """A version as Ascend spells it: ``8.3.RC1``, ``24.1.rc3.b999``, ``7.5.0.5.220``."""
    found = re.match(r"(\d+(?:\.\d+)*)(?:\.?(rc\d+|alpha\d+|beta\d+))?", text, re.IGNORECASE)
    try:
        return Version((found[1] + (found[2] or "")).lower()) if found else None
    except InvalidVersion:
        return None


def _torch_npu(machine: Machine) -> Iterator[Finding]:
    installed, build = machine.version("torch-npu"), installed_torch(machine.spec)
    devices, cann = has_devices(machine), _probe(machine).cann()
    if _emulated(machine):
        return
    if installed is None:
        if devices:
            release = f"=={build.release}" if build else ""
            yield fails(
                "there are Ascend NPUs, and torch_npu is not installed",
                *_device_names(machine),
                next=f"pip install torch-npu{release}",
            )
        return
    autoload = machine.environ.get(_AUTOLOAD) != "0"
    if build is not None and build.cuda is not None:
        says = fails if autoload or devices else warning
        yield says(
            "torch is a CUDA build beside torch_npu: importing both aborts the process "
            "('Duplicated key')",
            f"torch {build.version}, torch_npu {installed}",
            next="pip uninstall torch-npu, where there is no NPU; otherwise pip install "
            f"--force-reinstall torch=={build.release}+cpu   (from PyTorch's CPU wheels)",
        )
    elif cann is None:
        says = fails if autoload or devices else warning
        yield says(
            "torch_npu is installed without CANN: `import torch` itself fails, at libhccl.so",
            f"torch_npu {installed}; no CANN in ASCEND_HOME_PATH or /usr/local/Ascend",
            next=f"install CANN, then {SET_ENV}; where there is no NPU: pip uninstall torch-npu, "
            f"or export {_AUTOLOAD}=0",
        )
    if build is not None and not _same_release(installed, build.release):
        yield fails(
            f"torch_npu {installed} is not for torch {build.release}",
            f"torch {build.version}, torch_npu {installed}",
            next=f"pip install torch-npu=={build.release}, or torch of torch_npu's own version",
        )
    if not devices:
        yield ok(f"torch_npu {installed} is installed, and there is no NPU")


def _same_release(torch_npu: str, torch: str) -> bool:
    """torch_npu's version is that of its torch, with a suffix of its own."""
    one, other = comparable(torch_npu), comparable(torch)
    return one is None or other is None or one.release[:2] == other.release[:2]


def _device_names(machine: Machine) -> list[str]:
    names = sorted(path.name for path in machine.at("/dev").glob("davinci[0-9]*"))
    return [f"device files: {', '.join(names)}"]


def _versions(machine: Machine) -> Iterator[Finding]:
    probe, torch_npu = _probe(machine), machine.version("torch-npu")
    cann, driver = probe.cann(), probe.driver()
    if _emulated(machine) or cann is None:
        return
    release = cann[1]
    if torch_npu is not None and (mismatch := cann_mismatch(torch_npu, release)) is not None:
        yield warning(
            mismatch,
            f"CANN {release} in {cann[0]}; torch_npu {torch_npu}",
            next="install the CANN that this torch_npu was built with, or a torch_npu for this "
            "CANN (Ascend/pytorch, version table)",
        )
    found = comparable(release)
    tested = [
        (version, least)
        for name, least in OLDEST_DRIVER.items()
        if (version := comparable(name)) is not None and found is not None
        if found.release >= version.release
    ]
    if tested and driver is not None:
        least = max(tested)[1]
        have, wanted = comparable(driver), comparable(least)
        if have is not None and wanted is not None and have < wanted:
            yield warning(
                f"the NPU driver {driver} is older than CANN {release} supports",
                f"{DRIVER_FILE}: {driver}; CANN {release} wants Ascend HDK {least} or newer",
                next=f"update the driver and firmware on the host, or use a CANN for {driver}",
            )
    home = machine.environ.get("ASCEND_HOME_PATH")
    if home and not machine.at(home).is_dir():
        yield fails(
            "ASCEND_HOME_PATH names a directory that is not there",
            f"ASCEND_HOME_PATH={home}; CANN {release} is in {cann[0]}",
            next=f"source {Path(cann[0]).parent}/set_env.sh in a new shell",
        )
    elif torch_npu is not None and not home:
        yield fails(
            "CANN is installed, but its variables are not set: torch_npu does not find libhccl.so",
            f"CANN {release} in {cann[0]}; ASCEND_HOME_PATH is not set",
            next=f"source {Path(cann[0]).parent}/set_env.sh",
        )
    yield from _half_installed(machine, cann, home)
    operators = machine.environ.get("ASCEND_OPP_PATH")
    if home and (not operators or not machine.at(operators).is_dir()):
        yield fails(
            "CANN's operators are not found: the first computation fails (error 500001)",
            f"ASCEND_OPP_PATH={operators or '(not set)'}",
            next=f"install CANN's kernels for this chip, then source {Path(cann[0]).parent}/"
            "set_env.sh",
        )


def _half_installed(machine: Machine, cann: tuple[str, str], home: str | None) -> Iterator[Finding]:
    """CANN's directory without libraries that torch_npu is linked with."""
    if not home or not machine.at(home).is_dir() or machine.version("torch-npu") is None:
        return
    searched = [f"{home}/lib64", *machine.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)]
    missing = [
        name
        for name in CANN_LIBRARIES
        if not any(
            machine.at(f"{directory}/{name}").exists() for directory in searched if directory
        )
    ]
    if missing:
        yield fails(
            "CANN is half installed: `import torch_npu` fails",
            f"CANN {cann[1]} in {home}; not there: {', '.join(missing)}",
            next=f"install CANN's toolkit again (./Ascend-cann-toolkit_{cann[1]}_linux-*.run "
            f"--install), then source {Path(cann[0]).parent}/set_env.sh",
        )


def _firmware(machine: Machine) -> Iterator[Finding]:
    """The driver's own file names the firmware that it works with, as [OLDEST,NEWEST]."""
    ranges = re.findall(
        r"\[([\w.]+),([\w.]+)\]",
        "".join(re.findall(r"^compatible_version_fw=(.*)$", machine.text(DRIVER_FILE), re.M)),
    )
    stated = re.search(r"^Version=(\S+)", machine.text(_FIRMWARE_FILE), re.M | re.IGNORECASE)
    firmware = comparable(stated[1]) if stated else None
    bounds = [(comparable(low), comparable(high)) for low, high in ranges]
    if firmware is None or not bounds:
        return
    if not any(low and high and low <= firmware <= high for low, high in bounds):
        yield warning(
            "driver and firmware are not of one release",
            f"{_FIRMWARE_FILE}: {stated[1] if stated else ''}",
            f"{DRIVER_FILE} works with {', '.join(f'{low} to {high}' for low, high in ranges)}",
            next="update the firmware on the host (npu-smi upgrade), then reboot",
        )


def _ask(machine: Machine) -> NpuSmi:
    program = machine.program("npu-smi")
    if program is None:
        return NpuSmi(problem="not installed")
    status, printed = machine.output(program, "info", seconds=12)
    if status != 0:
        lines = printed.strip().splitlines() or [f"exit status {status}"]
        return NpuSmi(problem=lines[-1])
    return NpuSmi(parse_npu_smi(printed))


def _devices(machine: Machine) -> Iterator[Finding]:
    if not has_devices(machine) or _emulated(machine):
        return
    smi = _ask(machine)
    if smi.problem is not None and smi.problem != "not installed":
        yield fails(
            "the NPU driver does not answer",
            f"npu-smi info: {smi.problem}",
            next="npu-smi info on the host; sudo dmesg | grep -i ascend; reboot where it hangs",
        )
    for number, chip, health in smi.chips:
        if health.upper() != "OK":
            says = fails if health.lower() in ("alarm", "critical", "fault", "offline") else warning
            yield says(
                f"NPU {number} ({chip}) is not well: {health}",
                f"npu-smi info: NPU {number}, health {health}",
                next=f"npu-smi info -t health -i {number}; leave it out with {VISIBLE}",
            )
    missing = [path for path in _MANAGERS if not machine.at(path).exists()]
    if missing:
        yield fails(
            "device files that go with the NPUs are missing: the runtime cannot open any of them",
            f"not there: {', '.join(missing)}",
            next="docker run " + " ".join(f"--device {path}" for path in _MANAGERS) + " ...",
        )
    if not any(machine.at(_DRIVER_LIBRARIES).glob("**/libascend_hal.so*")):
        yield fails(
            "the driver's libraries are missing: torch_npu fails at libascend_hal.so",
            f"no libascend_hal.so below {_DRIVER_LIBRARIES}",
            next="docker run -v /usr/local/Ascend/driver:/usr/local/Ascend/driver ...",
        )
    for path in sorted(machine.at("/dev").glob("davinci[0-9]*")):
        if not machine.access(path, os.R_OK | os.W_OK):
            yield fails(
                f"this user may not use /dev/{path.name}",
                f"its mode is {path.stat().st_mode & 0o777:o}; this is user {os.getuid()}",
                next="sudo usermod -aG HwHiAiUser $USER, then log in again",
            )


def _hccl(machine: Machine) -> Iterator[Finding]:
    try:
        check_hccl(machine.environ)
        variable, ports = host_ports(machine.environ)
    except BridgeError as error:
        yield of_error(error)
        ports = frozenset()
    if has_devices(machine) and (taken := sorted(ports & machine.listening())):
        numbers = ", ".join(map(str, taken))
        yield fails(
            "ports at which HCCL's ranks meet are taken",
            f"/proc/net/tcp: a process listens on {numbers}; HCCL uses {min(ports)} to "
            f"{max(ports)} ({variable})",
            next=f"end that process (ss -ltnp 'sport = :{taken[0]}'), or export {variable} with "
            "other ones, alike on each machine",
        )
    if not has_devices(machine) or machine.run is None or machine.run.machines == 1:
        return
    if "address_0" not in machine.text("/etc/hccn.conf"):
        yield fails(
            "the NPUs' network has no addresses, through which machines exchange tensors",
            "no address_0 in /etc/hccn.conf",
            next="hccn_tool -i 0 -ip -s address ADDRESS netmask MASK, for each NPU of each "
            "machine; in a container: -v /etc/hccn.conf:/etc/hccn.conf",
        )
    if machine.environ.get("HCCL_IF_IP") and "HCCL_SOCKET_IFNAME" in machine.environ:
        yield warning(
            "HCCL_IF_IP and HCCL_SOCKET_IFNAME are both set, and the first alone counts",
            f"HCCL_IF_IP={machine.environ['HCCL_IF_IP']}",
            next="unset HCCL_IF_IP, which is another one on each machine",
        )


def _environment(machine: Machine) -> Iterator[Finding]:
    # Elsewhere torch_npu's variables are left over from another machine, and do nothing.
    if has_devices(machine) or _emulated(machine):
        yield from _site.findings(machine.environ)


def _limits(machine: Machine) -> Iterator[Finding]:
    chip, cann = CHIP.read(machine.environ)
    if machine.run is None or not (chip or has_devices(machine)):
        return
    stated = _probe(machine).cann()
    cann = cann or (stated[1] if stated and released(stated[1]) else RELEASES[-1])
    rules = Rules(chip or chip_of("".join(name for _, name, _ in _ask(machine).chips)), cann)
    if found := of_training(rules, machine.run):
        yield warning(
            f"fused operators do not take this training on a {rules.chip} with CANN {cann}: the "
            "reference runs instead, slower and with more memory",
            *found,
            next="keep within the limits, if the model allows (docs/ascend.md has the table)",
        )


def _packages(machine: Machine) -> Iterator[Finding]:
    try:
        foreign_transformer_engine()
    except BridgeError as error:
        yield of_error(error)
    if not has_devices(machine) or machine.version("torch-npu") is None or _emulated(machine):
        return
    missing = [name for module, name in _COMPILER_MODULES.items() if machine.spec(module) is None]
    if missing:
        yield warning(
            "packages that CANN's compiler of operators imports are missing: operators without a "
            "ready kernel end in 'EH9999: Inner Error'",
            f"not installed: {', '.join(missing)}",
            next=f"pip install {' '.join(missing)}",
        )


CHECKS: Final = (
    Check(
        "torch-npu",
        _SUBJECT,
        "torch_npu missing on NPUs, without CANN, beside a CUDA build of torch, or for another "
        "torch",
        _torch_npu,
    ),
    Check(
        "ascend-versions",
        _SUBJECT,
        "CANN, driver and torch_npu of different releases; CANN whose variables are not set, or "
        "that is half installed",
        _versions,
    ),
    Check("ascend-firmware", _SUBJECT, "firmware that the driver does not work with", _firmware),
    Check(
        "ascend-devices",
        _SUBJECT,
        "NPUs that are not well; device files and driver libraries missing in a container, or not "
        "this user's",
        _devices,
    ),
    Check(
        "hccl",
        _SUBJECT,
        "HCCL variables that mean nothing; HCCL's ports taken; NPUs without network addresses",
        _hccl,
    ),
    Check(
        "ascend-environment",
        _SUBJECT,
        "variables of torch_npu with values that it does not know, or that contradict each other",
        _environment,
    ),
    Check(
        "ascend-limits",
        _SUBJECT,
        "heads, sequences, experts and ranks that a fused operator does not take on this chip",
        _limits,
        with_run=True,
    ),
    Check(
        "ascend-packages",
        _SUBJECT,
        "two Transformer Engines; Python packages missing that CANN's compiler imports",
        _packages,
    ),
)
