"""The files of an emulated machine: device nodes that a probe finds, and room for HCCL."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

#: CANN's home on it, with the folders that torch_npu looks for.
HOME: Final = "usr/local/Ascend/ascend-toolkit/latest"
#: CANN's Python packages in its home.
PYTHON: Final = "python/site-packages"
#: Of its package `acl`, what programs ask for: MindSpeed's memory planning reads how much is free.
_ACL: Final = """class rt:
    @staticmethod
    def get_mem_info(attribute):
        import torch

        return (*torch.npu.mem_get_info(), 0)
"""
#: Memory shared between processes; a disk would work too, only slower.
_SHARED_MEMORY: Final = Path("/dev/shm")


@contextmanager
def machine(devices: int, parts: Mapping[str, Path] | None = None) -> Iterator[Path]:
    """A temporary folder that serves as the root of a machine with ``devices`` NPUs.

    :param parts: name in CANN's home, e.g. ``lib64`` -> the folder it shows.
    """
    base = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    root = Path(tempfile.mkdtemp(prefix="accel_bridge-ascend-", dir=base))
    try:
        furnish(root, devices, parts or {})
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def furnish(root: Path, devices: int, parts: Mapping[str, Path]) -> None:
    """Put into ``root`` what :func:`machine` has."""
    folders = ("dev", "hccl", "usr/local/Ascend/driver")
    for made in (*folders, *(f"{HOME}/{part}" for part in ("runtime", "compiler", "opp"))):
        (root / made).mkdir(parents=True)
    for name, folder in parts.items():
        (root / HOME / name).symlink_to(folder, target_is_directory=True)
    acl = root / HOME / PYTHON / "acl"
    acl.mkdir(parents=True)
    (acl / "__init__.py").write_text(_ACL, encoding="utf-8")
    (root / "dev" / "davinci_manager").touch()
    for number in range(devices):
        (root / "dev" / f"davinci{number}").touch()
    (root / "usr/local/Ascend/driver/version.info").write_text("Version=EMULATED\n")
    (root / HOME / "compiler/version.info").write_text("Version=8.5.0 EMULATED\n")
