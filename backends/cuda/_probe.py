"""Looks for NVIDIA GPUs without torch and without a CUDA context: safe before ``fork``."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from accel_bridge._backend import Probe
from accel_bridge.backends._torch_build import TorchBuild, installed_torch
from accel_bridge.backends.cuda._nvml import Gpu, Nvml, NvmlError, open_nvml
from accel_bridge.backends.cuda._visible import VARIABLE, visible_names

#: What mends the NVML return codes that users meet most.
_REMEDIES: Final = {
    9: "load the kernel driver: `sudo modprobe nvidia`, then `nvidia-smi`",
    18: "reboot: the driver was updated while the old one was loaded; then `nvidia-smi`",
}


@dataclass(frozen=True, slots=True)
class CudaProbe:
    """The search, with everything it looks at as a parameter.

    :param root: root of the file system, for device files.
    :param environ: environment variables.
    :param open_nvml: opens the management library.
    :param torch_build: reads how the installed torch was built.
    """

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    open_nvml: Callable[[], Nvml] = open_nvml
    torch_build: Callable[[], TorchBuild | None] = installed_torch

    def run(self) -> Probe:
        """What is there, and why it can or cannot be used."""
        evidence = [*self._device_files()]
        try:
            nvml = self.open_nvml()
        except OSError as error:
            return self._without_nvml(evidence, error)
        except NvmlError as error:
            return _nvml_failed(evidence, error)
        with closing(nvml):
            try:
                return self._with_nvml(nvml, evidence)
            except NvmlError as error:
                return _nvml_failed(evidence, error)

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

    def _with_nvml(self, nvml: Nvml, evidence: list[str]) -> Probe:
        driver_cuda = nvml.cuda_version()
        evidence.append(
            f"NVML: driver {nvml.driver_version()}, CUDA up to {driver_cuda[0]}.{driver_cuda[1]}"
        )
        gpus = nvml.gpus()
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
        names = visible_names(value, gpus, nvml.knows_uuid)
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
        return self._with_torch(names, driver_cuda, evidence)

    def _with_torch(
        self, names: Sequence[str], driver_cuda: tuple[int, int], evidence: list[str]
    ) -> Probe:
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
        if int(build.cuda.split(".")[0]) > driver_cuda[0]:
            evidence.append(
                f"the driver supports CUDA up to {driver_cuda[0]}.{driver_cuda[1]}: torch needs "
                "a newer driver or NVIDIA's cuda-compat package"
            )
        return Probe(True, found, tuple(evidence), len(names))


def _nvml_failed(evidence: list[str], error: NvmlError) -> Probe:
    return Probe(
        False,
        f"the NVIDIA driver does not answer: {error.message} (NVML code {error.code})",
        (*evidence, f"NVML: {error}"),
        0,
        _REMEDIES.get(error.code, "run `nvidia-smi` and mend the driver"),
    )


def _describe(index: int, gpu: Gpu) -> str:
    memory = "" if gpu.memory is None else f", {gpu.memory / 2**30:.0f} GiB"
    major, minor = gpu.capability
    return f"GPU {index}: {gpu.name}, compute capability {major}.{minor}{memory}, {gpu.uuid}"
