"""Child processes of the Ascend probe: ``npu-smi``, and an import of torch_npu."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Final

#: Seconds that ``npu-smi info`` may take; it hangs when the driver is stuck.
NPU_SMI_SECONDS: Final = 10
#: Seconds that importing torch and torch_npu may take on a slow file system.
IMPORT_SECONDS: Final = 180

#: ``| 0     910B3               | OK            |``: number, chip, health.
_CHIP: Final = re.compile(r"^\|\s*(\d+)\s+([\w-]+)\s*\|\s*(\w+)\s*\|", re.MULTILINE)

#: The last column of a device's second line: ``| 3311 / 65536 |``, MB used and in all.
_MEMORY: Final = re.compile(r"^\|.*\|.*\|.*?(\d+)\s*/\s*(\d+)\s*\|\s*$", re.MULTILINE)

_IMPORT: Final = (
    "import json, torch, torch_npu; "
    "print(json.dumps([torch_npu.__version__, torch.npu.device_count()]))"
)


@dataclass(frozen=True, slots=True)
class NpuSmi:
    """What ``npu-smi info`` reported.

    :param chips: (number, chip name, health) of each device.
    :param problem: why there is no answer, or None.
    :param memory: bytes free and in all of each device; empty where the table does not say.
    """

    chips: tuple[tuple[int, str, str], ...] = ()
    problem: str | None = None
    memory: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ImportCheck:
    """Whether torch_npu works in a process of its own.

    :param devices: number of devices that torch_npu sees; None when it cannot be imported.
    :param detail: its version, or the last line of the error.
    """

    devices: int | None
    detail: str


def parse_npu_smi(text: str) -> tuple[tuple[int, str, str], ...]:
    """Number, chip name and health of each device in the table of ``npu-smi info``."""
    return tuple((int(number), chip, health) for number, chip, health in _CHIP.findall(text))


def parse_npu_memory(text: str) -> tuple[tuple[int, int], ...]:
    """Bytes free and in all of each device in the table of ``npu-smi info``."""
    numbers = [(int(used), int(total)) for used, total in _MEMORY.findall(text)]
    # The column of the first line counts pages, of which there may be none.
    return tuple(((total - used) << 20, total << 20) for used, total in numbers if total >= 1024)


def ask_npu_smi() -> NpuSmi:
    """Run ``npu-smi info``, with a time limit, where it is installed."""
    path = shutil.which("npu-smi") or shutil.which("npu-smi", path="/usr/local/bin:/usr/local/sbin")
    if path is None:
        return NpuSmi(problem="not installed")
    try:
        done = subprocess.run(
            [path, "info"], capture_output=True, text=True, timeout=NPU_SMI_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return NpuSmi(problem=f"no answer in {NPU_SMI_SECONDS} s")
    except OSError as error:
        return NpuSmi(problem=str(error))
    if done.returncode != 0:
        return NpuSmi(problem=f"exit status {done.returncode}: {_last_line(done)}")
    return NpuSmi(parse_npu_smi(done.stdout), memory=parse_npu_memory(done.stdout))


def import_torch_npu() -> ImportCheck:
    """Import torch_npu in a child process: a broken one can abort, hang or exit.

    Autoload is off there, so that an error names torch_npu and not torch.
    """
    environ = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _IMPORT],
            capture_output=True,
            text=True,
            timeout=IMPORT_SECONDS,
            env=environ,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ImportCheck(None, f"the import did not finish in {IMPORT_SECONDS} s")
    if done.returncode < 0:
        return ImportCheck(None, f"killed by signal {-done.returncode}: {_last_line(done)}")
    if done.returncode != 0:
        return ImportCheck(None, _last_line(done))
    # Libraries may print before it: the answer is the last line.
    version, devices = json.loads(done.stdout.splitlines()[-1])
    return ImportCheck(devices, f"torch_npu {version}")


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return lines[-1].strip() if lines else "no message"
