"""NVIDIA's management library, queried in a child process: here it would make ``fork`` unsafe."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

#: Seconds that the library may take; it hangs when the driver is stuck.
SECONDS: Final = 30

_CHILD: Final = Path(__file__).with_name("_nvml_child.py")


class NvmlError(Exception):
    """NVML does not answer.

    :param code: NVML's return code; None if the child process failed.
    """

    def __init__(self, message: str, code: int | None = None) -> None:
        self.message = message
        self.code = code
        super().__init__(message if code is None else f"{message} (NVML code {code})")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    :param memory: bytes; None if the device does not report it (unified memory).
    :param capability: CUDA compute capability, e.g. ``(9, 0)``.
    :param free: bytes of it that nobody uses; None if the device does not report it.
    """

    name: str
    uuid: str
    memory: int | None
    capability: tuple[int, int]
    free: int | None = None


@dataclass(frozen=True, slots=True)
class NvmlAnswer:
    """What NVML reported.

    :param driver: version of the kernel driver.
    :param gpus: all GPUs in PCI order, whatever ``CUDA_VISIBLE_DEVICES`` says.
    :param known: the requested UUIDs that belong to a GPU or MIG instance.
    """

    driver: str
    gpus: tuple[Gpu, ...]
    known: frozenset[str] = frozenset()


def ask_nvml(uuids: Sequence[str] = ()) -> NvmlAnswer:
    """Ask NVML for the driver, the GPUs and which of ``uuids`` exist.

    :raises OSError: the library is not installed.
    :raises NvmlError: it cannot be initialised, a GPU does not answer, or it takes too long.
    """
    # -I and -S: the child needs the standard library only, and starts in 20 ms.
    command = [sys.executable, "-I", "-S", str(_CHILD), *uuids]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise NvmlError(f"no answer in {SECONDS} s") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise NvmlError(f"exit status {done.returncode}: {lines[-1]}")
    return parse_answer(json.loads(done.stdout))


def watch_gpu(uuid: str) -> Callable[[], float | None] | None:
    """Start asking NVML which share of the last second or so a GPU computed in.

    :returns: a function that waits for the answer: 0 to 1, or None if there is none; None if the
        child process cannot be started.
    """
    command = [sys.executable, "-I", "-S", str(_CHILD), "--busy", uuid]
    try:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return None

    def read() -> float | None:
        try:
            printed, _ = child.communicate(timeout=SECONDS)
            percent = json.loads(printed).get("busy")
        except (subprocess.TimeoutExpired, ValueError):
            child.kill()
            return None
        return None if percent is None else percent / 100

    return read


def parse_answer(document: dict[str, Any]) -> NvmlAnswer:
    """The answer in the JSON object that the child printed.

    :raises OSError, NvmlError: as :func:`ask_nvml`.
    """
    if "missing" in document:
        raise OSError(document["missing"])
    if "code" in document:
        raise NvmlError(f"{document['function']}: {document['message']}", document["code"])
    gpus = (
        Gpu(gpu["name"], gpu["uuid"], gpu["memory"], tuple(gpu["capability"]), gpu.get("free"))
        for gpu in document["gpus"]
    )
    return NvmlAnswer(document["driver"], tuple(gpus), frozenset(document["known"]))
