"""Looks for NVIDIA GPUs without torch and without a CUDA context: safe before ``fork``."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from accel_bridge.backends._torch_build import TorchBuild, installed_torch
from accel_bridge.backends.cuda._nvml import Gpu, NvmlAnswer, NvmlError, ask_nvml
from accel_bridge.backends.cuda._visible import VARIABLE, mig_uuids, visible_names
from accel_bridge.device.backend import Probe

#: Remedies for the most common NVML return codes.
_REMEDIES: Final = {
    9: "load the kernel driver: `sudo modprobe nvidia`, then `nvidia-smi`",
    18: "reboot: the driver was updated while the old one was loaded; then `nvidia-smi`",
}

#: First driver branch that runs programs built for a CUDA major version.
#: Source: CUDA Toolkit release notes, "CUDA Toolkit Minimum Required Driver Version".
MINIMUM_DRIVER: Final = {"11": 450, "12": 525, "13": 580}


@dataclass(frozen=True, slots=True)
class CudaProbe:
    """The search, with everything it looks at as a parameter.

    :param root: root of the file system, for device files.
    :param environ: environment variables.
    :param nvml: asks the management library; takes UUIDs to look up.
    :param torch_build: reads how the installed torch was built.
    """

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    nvml: Callable[[Sequence[str]], NvmlAnswer] = ask_nvml
    torch_build: Callable[[], TorchBuild | None] = installed_torch

    def run(self) -> Probe:
        """What is there, and why it can or cannot be used."""
        evidence = [*self._device_files()]
        try:
            answer = self.nvml(mig_uuids(self.environ.get(VARIABLE)))
        except OSError as error:
            return self._without_nvml(evidence, error)
        except NvmlError as error:
            return _nvml_failed(evidence, error)
        return self._with_nvml(answer, evidence)

    def _device_files(self) -> list[str]:
        nodes = sorted(path.name for path in (self.root / "dev").glob("nvidia[0-9]*"))
        lines = [f"device files: {', '.join(f'/dev/{name}' for name in nodes)}"] if nodes else []
        if (self.root / "dev/dxg").exists():
            lines.append("/dev/dxg: this is WSL, which has no /dev/nvidia files")
        version = self.root / "proc/driver/nvidia/version"
        if version.is_file():
            lines.append(f"/proc/driver/nvidia/version: {version.read_text().splitlines()[0]}")
        return lines

    def _without_nvml(self, evidence: list[str], error: OSError) -> Probe:
        found = (*evidence, f"NVML: {error}")
        if evidence:
            return Probe(
                False,
                "there is an NVIDIA driver, but its library libnvidia-ml.so.1 cannot be loaded "
                "(a container started without it?)",
                found,
                0,
                "start the container with its GPUs: `docker run --gpus all ...`",
            )
        return Probe(False, "no NVIDIA driver: no device files, no libnvidia-ml.so.1", found, 0)

    def _with_nvml(self, nvml: NvmlAnswer, evidence: list[str]) -> Probe:
        gpus = nvml.gpus
        evidence.append(f"NVML: driver {nvml.driver}")
        evidence += [_describe(index, gpu) for index, gpu in enumerate(gpus)]
        if not gpus:
            return Probe(
                False,
                "the NVIDIA driver is there, but it shows no GPU",
                tuple(evidence),
                0,
                "start the container with its GPUs: `docker run --gpus all ...`",
            )
        value = self.environ.get(VARIABLE)
        names = visible_names(value, gpus, nvml.known)
        if value is not None:
            evidence.append(f"{VARIABLE}={value!r} leaves {len(names)} of {len(gpus)}")
        if not names:
            return Probe(
                False,
                f"{len(gpus)} NVIDIA GPU(s), all hidden by {VARIABLE}={value!r}",
                tuple(evidence),
                0,
                f"unset {VARIABLE}",
            )
        return self._with_torch(names, nvml.driver, evidence)

    def _with_torch(self, names: Sequence[str], driver: str, evidence: list[str]) -> Probe:
        """GPUs are there; can the installed torch use them?"""
        build = self.torch_build()
        found = ", ".join(f"{count} x {name}" for name, count in Counter(names).items())
        if build is None:
            reason = f"{found}, but torch is not installed"
            return Probe(False, reason, tuple(evidence), len(names), "pip install torch")
        evidence.append(f"torch {build.version}, built for CUDA {build.cuda or '(none)'}")
        if build.cuda is None:
            return Probe(
                False,
                f"{found}, but the installed torch {build.version} is built without CUDA",
                tuple(evidence),
                len(names),
                f"install the CUDA build: `pip install --force-reinstall torch=={build.release}` "
                "from PyTorch's CUDA wheels",
            )
        doubts = []
        if len(set(names)) > 1:
            doubts.append(f"GPUs of several models: the slowest sets the pace ({VARIABLE} chooses)")
        minimum = MINIMUM_DRIVER.get(build.cuda.split(".")[0])
        if minimum is not None and int(driver.split(".")[0]) < minimum:
            # Not refused: with NVIDIA's cuda-compat package an older driver works.
            doubts.append(
                f"driver {driver} is older than {minimum}, which CUDA {build.cuda} needs: "
                "update it, or install NVIDIA's cuda-compat package"
            )
        return Probe(True, "; ".join((found, *doubts)), tuple(evidence), len(names))


def _nvml_failed(evidence: list[str], error: NvmlError) -> Probe:
    return Probe(
        False,
        f"the NVIDIA driver does not answer: {error}",
        (*evidence, f"NVML: {error}"),
        0,
        _REMEDIES.get(error.code or 0, "run `nvidia-smi` and repair the driver"),
    )


def _describe(index: int, gpu: Gpu) -> str:
    memory = "" if gpu.memory is None else f", {gpu.memory / 2**30:.0f} GiB"
    major, minor = gpu.capability
    return f"GPU {index}: {gpu.name}, compute capability {major}.{minor}{memory}, {gpu.uuid}"
