"""Looks for Ascend NPUs by device files; torch_npu is imported only in a child process.

An installed torch_npu is not evidence of a device: its wheel installs on any machine.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from accel_bridge.backends._torch_build import TorchBuild, installed_torch, package_version
from accel_bridge.backends.ascend._compatibility import cann_mismatch
from accel_bridge.backends.ascend._emulation import LABEL, emulated_root
from accel_bridge.backends.ascend._tools import (
    ImportCheck,
    NpuSmi,
    ask_npu_smi,
    import_torch_npu,
)
from accel_bridge.device.backend import Probe

VISIBLE: Final = "ASCEND_RT_VISIBLE_DEVICES"
DRIVER_FILE: Final = "/usr/local/Ascend/driver/version.info"
#: Variables that CANN's set_env.sh sets, and where CANN is installed by default.
HOME_VARIABLES: Final = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
DEFAULT_HOME: Final = "/usr/local/Ascend/ascend-toolkit/latest"
SET_ENV: Final = "source /usr/local/Ascend/ascend-toolkit/set_env.sh"
#: Files in CANN's home that state its version.
_VERSION_FILES: Final = (
    "*-linux/ascend_toolkit_install.info",
    "compiler/version.info",
    "runtime/version.info",
)


@dataclass(frozen=True, slots=True)
class AscendProbe:
    """The search, with everything it looks at as a parameter.

    :param root: root of the file system, for device and version files.
    :param emulated: ``root`` belongs to an emulated machine (`accel-bridge emulate-ascend`).
    :param environ: environment variables.
    :param npu_smi: runs ``npu-smi info``; called only when there are device files.
    :param torch_build: reads how the installed torch was built.
    :param torch_npu_version: version of the installed torch_npu from its metadata, or None.
    :param import_check: imports torch_npu in a child process; called only if there are device
        files and nothing is known to fail.
    """

    root: Path = field(default_factory=lambda: emulated_root() or Path("/"))
    emulated: bool = field(default_factory=lambda: emulated_root() is not None)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    npu_smi: Callable[[], NpuSmi] = ask_npu_smi
    torch_build: Callable[[], TorchBuild | None] = installed_torch
    torch_npu_version: Callable[[], str | None] = lambda: package_version("torch-npu")
    import_check: Callable[[], ImportCheck] = import_torch_npu

    def run(self) -> Probe:
        """What is there, and why it can or cannot be used."""
        nodes = self._device_files()
        if not nodes:
            return self._no_device()
        evidence = [f"device files: {', '.join(nodes)}", *self._versions_as_evidence()]
        smi = NpuSmi(problem="not asked") if self.emulated else self.npu_smi()
        evidence += _describe(smi)
        visible = len(visible_devices(self.environ.get(VISIBLE), len(nodes)))
        if VISIBLE in self.environ:
            evidence.append(f"{VISIBLE}={self.environ[VISIBLE]!r} leaves {visible} of {len(nodes)}")
        if visible == 0:
            return Probe(
                False,
                f"{len(nodes)} Ascend NPU(s), all hidden by {VISIBLE}={self.environ[VISIBLE]!r}",
                tuple(evidence),
                0,
                f"unset {VISIBLE}",
            )
        if self.emulated:
            # emulate-ascend has checked torch and torch_npu; it also handles a CUDA build of torch.
            evidence.append(f"{LABEL}: substitute CANN libraries under {self.root}")
            return Probe(True, f"{visible} x {LABEL} Ascend NPU", tuple(evidence), visible)
        return self._with_torch(_title(smi, visible), visible, evidence)

    def cann(self) -> tuple[str, str] | None:
        """CANN's home and version (``unknown`` if no file states it); None without CANN."""
        for home in [*(self.environ.get(name) for name in HOME_VARIABLES), DEFAULT_HOME]:
            if home and self._at(home).is_dir():
                files = [path for name in _VERSION_FILES for path in self._at(home).glob(name)]
                versions = [found for path in files if (found := _version_in(path))]
                return home, versions[0] if versions else "unknown"
        return None

    def memory(self) -> tuple[tuple[int, int], ...]:
        """Bytes free and in all of each NPU that a process may use; empty where nobody says."""
        visible = visible_devices(self.environ.get(VISIBLE), len(self._device_files()))
        found = () if self.emulated else self.npu_smi().memory
        return tuple(found[number] for number in visible if number < len(found))

    def driver(self) -> str | None:
        """Version of the NPU driver, or None."""
        path = self._at(DRIVER_FILE)
        return _version_in(path) if path.is_file() else None

    def _at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def _device_files(self) -> list[str]:
        names = (path.name for path in (self.root / "dev").glob("davinci[0-9]*"))
        numbers = sorted(int(name.removeprefix("davinci")) for name in names)
        return [f"/dev/davinci{number}" for number in numbers]

    def _no_device(self) -> Probe:
        evidence = [
            "device files: no /dev/davinci0, /dev/davinci1, ...",
            *self._versions_as_evidence(),
        ]
        installed = self.torch_npu_version()
        if installed:
            evidence.append(f"torch_npu {installed} is installed, which is not evidence of an NPU")
        if (self.root / "dev/davinci_manager").exists():
            return Probe(
                False,
                "the Ascend driver is there (/dev/davinci_manager), but it shows no NPU",
                tuple(evidence),
                0,
                "start the container with its NPUs: `docker run --device /dev/davinci0 ...`",
            )
        return Probe(False, "no Ascend NPU: no /dev/davinci device files", tuple(evidence), 0)

    def _versions_as_evidence(self) -> list[str]:
        lines = []
        if driver := self.driver():
            lines.append(f"{DRIVER_FILE}: {driver}")
        if cann := self.cann():
            lines.append(f"CANN {cann[1]} in {cann[0]}")
        return lines

    def _with_torch(self, found: str, devices: int, evidence: list[str]) -> Probe:
        """NPUs are there; can torch and torch_npu use them?"""

        def unusable(problem: str, remedy: str) -> Probe:
            return Probe(False, f"{found}, but {problem}", tuple(evidence), devices, remedy)

        build = self.torch_build()
        if build is None:
            return unusable("torch is not installed", "pip install torch torch-npu")
        installed = self.torch_npu_version()
        evidence.append(
            f"torch {build.version}, built for CUDA {build.cuda or '(none)'}; "
            f"torch_npu {installed or 'not installed'}"
        )
        if installed is None:
            return unusable("torch_npu is not installed", f"pip install torch-npu=={build.release}")
        if build.cuda is not None:
            # Both register the same allocator option in static initialisers: the process aborts
            # ("Duplicated key"), so report this before anything imports torch_npu.
            return unusable(
                f"torch {build.version} is a CUDA build, and importing torch_npu with it "
                "aborts the process",
                f"install the CPU build of torch: `pip install torch=={build.release}+cpu` "
                "from PyTorch's CPU wheels",
            )
        check = self.import_check()
        evidence.append(f"import torch_npu in a child process: {check.detail}")
        if check.devices is None:
            return unusable(
                f"torch_npu cannot be imported: {check.detail}", self._remedy_for_import()
            )
        if check.devices == 0:
            return unusable("torch_npu sees none of them", "npu-smi info")
        mismatch = self._cann_mismatch(installed)
        reason = f"{found}; {mismatch}" if mismatch else found
        return Probe(True, reason, tuple(evidence), check.devices)

    def _cann_mismatch(self, torch_npu: str | None) -> str | None:
        cann = self.cann()
        return cann_mismatch(torch_npu, cann[1]) if torch_npu and cann else None

    def _remedy_for_import(self) -> str:
        if self.cann() is None:
            return f"install CANN, then `{SET_ENV}`"
        if mismatch := self._cann_mismatch(self.torch_npu_version()):
            return f"{mismatch}: install the matching CANN, then `{SET_ENV}`"
        return f"`{SET_ENV}`, then `python -c 'import torch_npu'`"


def visible_devices(value: str | None, devices: int) -> tuple[int, ...]:
    """Which of ``devices`` NPUs ``ASCEND_RT_VISIBLE_DEVICES`` leaves to a process.

    The list ends at the first entry that is not the number of a device.
    Source: CANN, "Environment variable reference", ASCEND_RT_VISIBLE_DEVICES.
    """
    if value is None:
        return tuple(range(devices))
    found: list[int] = []
    for entry in (word.strip() for word in value.split(",")):
        if not entry.isdecimal() or int(entry) >= devices:
            break
        found.append(int(entry))
    return tuple(found)


def _version_in(path: Path) -> str | None:
    """The value after ``version=`` in a version file, whatever its case."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition("=")
        if name.strip().lower() == "version":
            return value.strip()
    return None


def _describe(smi: NpuSmi) -> list[str]:
    if smi.problem:
        return [f"npu-smi: {smi.problem}"]
    if not smi.chips:
        return ["npu-smi: its table could not be parsed"]
    return [f"npu-smi: NPU {number} is {chip}, {health}" for number, chip, health in smi.chips]


def _title(smi: NpuSmi, devices: int) -> str:
    chips = Counter(chip for _, chip, _ in smi.chips)
    if len(chips) == 1:
        return f"{devices} x Ascend {next(iter(chips))}"
    return f"{devices} x Ascend NPU"
