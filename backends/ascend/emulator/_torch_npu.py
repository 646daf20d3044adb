"""Finds the real torch_npu, which must stay out of environments without CANN.

If torch_npu is installed next to torch and CANN is missing, ``import torch`` itself fails. So the
emulator keeps its copy in a directory of its own, and puts that on the path of what it runs.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Final

from accel_bridge.backends._torch_build import installed_torch
from accel_bridge.backends.ascend._emulation import TORCH_NPU
from accel_bridge.errors import BridgeError
from accel_bridge.process import cache

# Where the emulator keeps what it built and installed.


def cache_directory() -> Path:
    """The emulator's part of the cache."""
    return cache.cache_directory("ascend")


@contextmanager
def locked() -> Iterator[None]:
    """Only one process at a time builds or installs; the others find the work done."""
    directory = cache_directory()
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


#: torch_npu imports it but does not declare it.
_WATCHERS: Final = ("pyyaml",)


class TorchNpuError(BridgeError):
    """There is no usable torch_npu."""


@dataclass(frozen=True, slots=True)
class TorchNpu:
    """An unpacked torch_npu.

    :param site: directory to put on the path.
    :param version: e.g. ``2.13.0``.
    """

    site: Path
    version: str

    @property
    def include(self) -> Path:
        """Its C headers, including CANN's."""
        return self.site / "torch_npu" / "include"

    @property
    def acl_include(self) -> Path:
        """The directory that CANN itself calls ``include``."""
        return self.include / "third_party" / "acl" / "inc"


def find_torch_npu(*, install: bool, environ: Mapping[str, str] = os.environ) -> TorchNpu:
    """The torch_npu that matches the installed torch.

    :param install: fetch it with pip into the cache if there is none.
    :raises TorchNpuError: there is none, or it is for another torch.
    """
    torch = installed_torch()
    if torch is None:
        raise TorchNpuError(
            "torch is not installed", evidence=sys.executable, next="pip install torch"
        )
    wanted = torch.release
    tried = []
    for site in _places(wanted, environ):
        if found := _at(site):
            return _checked(found, wanted)
        tried.append(str(site))
    if install:
        with locked():
            # Another process may have been quicker.
            found = _at(installed_directory(wanted)) or _install(wanted)
        return _checked(found, wanted)
    raise TorchNpuError(
        f"torch_npu {wanted} was not found",
        evidence=[f"looked in: {place}" for place in tried],
        next=f"accel-bridge emulate-ascend --install (pip puts torch-npu=={wanted} into the "
        f"cache, not next to torch), or set {TORCH_NPU.name} to a directory that holds torch_npu",
    )


def installed_directory(version: str) -> Path:
    """Where :func:`find_torch_npu` installs ``version``."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return cache_directory() / f"torch_npu-{version}-{tag}"


def _places(version: str, environ: Mapping[str, str]) -> list[Path]:
    """Directories that may hold torch_npu, in order."""
    named = TORCH_NPU.read(environ)
    if named:
        return [Path(named)]
    places = [installed_directory(version)]
    beside = importlib.util.find_spec("torch_npu")
    if beside is not None and beside.origin:
        places.append(Path(beside.origin).parents[1])
    return places


def _at(site: Path) -> TorchNpu | None:
    """The torch_npu in ``site``, found by its metadata; it is not imported."""
    if not (site / "torch_npu" / "__init__.py").is_file():
        return None
    for metadata in site.glob("torch_npu-*.dist-info"):
        return TorchNpu(site, PathDistribution(metadata).version)
    return None


def _checked(found: TorchNpu, wanted: str) -> TorchNpu:
    if found.version.partition(".post")[0].partition("+")[0] != wanted:
        raise TorchNpuError(
            f"torch_npu {found.version} is not for torch {wanted}",
            evidence=f"found in {found.site}",
            next=f"pip install torch=={found.version.partition('.post')[0]}, or accel-bridge "
            "emulate-ascend --install for the installed torch",
        )
    return found


def _install(version: str) -> TorchNpu:
    """Let pip put it into the cache; the directory appears only when complete."""
    target = installed_directory(version)
    draft = Path(tempfile.mkdtemp(prefix="torch_npu-", dir=target.parent))
    print(f"emulate-ascend: installing torch-npu {version} into {target}", file=sys.stderr)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    done = subprocess.run(
        [*command, str(draft), f"torch-npu=={version}", *_WATCHERS],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        shutil.rmtree(draft)
        raise TorchNpuError(
            f"pip could not install torch-npu {version}",
            evidence=done.stderr.strip().splitlines()[-3:],
            next=f"pip download --no-deps torch-npu=={version}; not every torch has one: its "
            "versions are those of torch",
        )
    shutil.rmtree(target, ignore_errors=True)
    draft.rename(target)
    found = _at(target)
    assert found is not None
    return found
