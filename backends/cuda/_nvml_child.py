"""Queries NVIDIA's management library; run as a script, in a process of its own.

``nvmlInit_v2`` loads libcuda and leaves one of its threads running (seen with driver 580), after
which ``fork`` is no longer safe. So the library is loaded here, and this process ends.

It imports the standard library only and prints one JSON object: the answer, ``{"missing": ...}``
or ``{"function": ..., "code": ..., "message": ...}``. Its arguments are UUIDs to look up, or
``--busy UUID``: then the answer is ``{"busy": percent}``.

Source: NVML API reference, https://docs.nvidia.com/deploy/nvml-api/ (names and return codes).
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Sequence
from typing import Final

#: Where the library may be; the second place is WSL's.
LIBRARIES: Final = ("libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1")

#: NVML_DEVICE_NAME_V2_BUFFER_SIZE and NVML_DEVICE_UUID_V2_BUFFER_SIZE, in bytes.
_TEXT_BYTES: Final = 96

_NOT_SUPPORTED: Final = 3


class CallError(Exception):
    """An NVML function returned an error code."""

    def __init__(self, function: str, code: int, message: str) -> None:
        self.function = function
        self.code = code
        self.message = message
        super().__init__(f"{function} returned {code} ({message})")


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Utilization(ctypes.Structure):
    """nvmlUtilization_t: percent of the last sample period."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Session:
    """An initialised NVML."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._library.nvmlErrorString.restype = ctypes.c_char_p
        self._call("nvmlInit_v2")

    def driver_version(self) -> str:
        """Version of the kernel driver."""
        return self._text("nvmlSystemGetDriverVersion")

    def gpus(self) -> list[dict[str, object]]:
        """All GPUs in PCI order, whatever ``CUDA_VISIBLE_DEVICES`` says."""
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return [self._gpu(index) for index in range(count.value)]

    def knows_uuid(self, uuid: str) -> bool:
        """Whether a GPU or MIG instance has this UUID."""
        handle = ctypes.c_void_p()
        function = self._library.nvmlDeviceGetHandleByUUID
        return bool(function(uuid.encode(), ctypes.byref(handle)) == 0)

    def busy(self, uuid: str) -> int:
        """Percent of the last sample period, up to a second, in which a kernel ran on the GPU."""
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(handle))
        utilization = _Utilization()
        self._call("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(utilization))
        return int(utilization.gpu)

    def _gpu(self, index: int) -> dict[str, object]:
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call(
            "nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor)
        )
        return {
            "name": self._text("nvmlDeviceGetName", handle),
            "uuid": self._text("nvmlDeviceGetUUID", handle),
            **self._memory(handle),
            "capability": (major.value, minor.value),
        }

    def _memory(self, handle: ctypes.c_void_p) -> dict[str, int | None]:
        """Total and free bytes, where the device has memory of its own."""
        memory = _Memory()
        try:
            self._call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        except CallError as error:
            if error.code == _NOT_SUPPORTED:
                return {"memory": None, "free": None}
            raise
        return {"memory": int(memory.total), "free": int(memory.free)}

    def _text(self, function: str, *arguments: object) -> str:
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        self._call(function, *arguments, buffer, ctypes.c_uint(_TEXT_BYTES))
        return buffer.value.decode("utf-8", "replace")

    def _call(self, function: str, *arguments: object) -> None:
        code = int(getattr(self._library, function)(*arguments))
        if code != 0:
            message = self._library.nvmlErrorString(code)
            raise CallError(function, code, bytes(message).decode("utf-8", "replace"))


def load() -> ctypes.CDLL:
    """The library.

    :raises OSError: it is not in any of the places.
    """
    problems = []
    for path in LIBRARIES:
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            problems.append(str(error))
    raise OSError("; ".join(problems))


def answer(library: ctypes.CDLL, uuids: Sequence[str]) -> dict[str, object]:
    """Driver, GPUs, and those of ``uuids`` that exist; or the error."""
    try:
        session = Session(library)
        if uuids[:1] == ["--busy"]:
            return {"busy": session.busy(uuids[1])}
        return {
            "driver": session.driver_version(),
            "gpus": session.gpus(),
            "known": [uuid for uuid in uuids if session.knows_uuid(uuid)],
        }
    except CallError as error:
        return {"function": error.function, "code": error.code, "message": error.message}


def main() -> None:
    """Print the answer."""
    try:
        found = answer(load(), sys.argv[1:])
    except OSError as error:
        found = {"missing": str(error)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
