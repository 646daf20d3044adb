"""NVIDIA's management library through ctypes: it creates no CUDA context and no thread.

Source: NVML API reference, https://docs.nvidia.com/deploy/nvml-api/ (names and return codes).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Final, Protocol

#: Where the library may be; the second place is WSL's.
LIBRARIES: Final = ("libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1")

#: NVML_DEVICE_NAME_V2_BUFFER_SIZE and NVML_DEVICE_UUID_V2_BUFFER_SIZE, in bytes.
_TEXT_BYTES: Final = 96

_NOT_SUPPORTED: Final = 3


class NvmlError(Exception):
    """An NVML function returned an error code."""

    def __init__(self, function: str, code: int, message: str) -> None:
        self.function = function
        self.code = code
        self.message = message
        super().__init__(f"{function} returned {code} ({message})")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    :param memory: bytes; None where the device does not tell (unified memory).
    :param capability: CUDA compute capability, e.g. ``(9, 0)``.
    """

    name: str
    uuid: str
    memory: int | None
    capability: tuple[int, int]


class Nvml(Protocol):
    """What the probe asks of NVML."""

    def driver_version(self) -> str:
        """Version of the kernel driver."""

    def cuda_version(self) -> tuple[int, int]:
        """Highest CUDA version that the driver supports, e.g. ``(13, 0)``."""

    def gpus(self) -> list[Gpu]:
        """All GPUs in PCI order, whatever ``CUDA_VISIBLE_DEVICES`` says."""

    def knows_uuid(self, uuid: str) -> bool:
        """Whether a GPU or MIG instance has this UUID."""

    def close(self) -> None:
        """End the session."""


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class CtypesNvml:
    """NVML as the driver installed it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._library.nvmlErrorString.restype = ctypes.c_char_p
        self._call("nvmlInit_v2")

    def driver_version(self) -> str:
        return self._text("nvmlSystemGetDriverVersion")

    def cuda_version(self) -> tuple[int, int]:
        value = ctypes.c_int()
        self._call("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(value))
        return value.value // 1000, value.value % 1000 // 10

    def gpus(self) -> list[Gpu]:
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return [self._gpu(index) for index in range(count.value)]

    def knows_uuid(self, uuid: str) -> bool:
        handle = ctypes.c_void_p()
        function = self._library.nvmlDeviceGetHandleByUUID
        return bool(function(uuid.encode(), ctypes.byref(handle)) == 0)

    def close(self) -> None:
        self._call("nvmlShutdown")

    def _gpu(self, index: int) -> Gpu:
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call(
            "nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor)
        )
        return Gpu(
            name=self._text("nvmlDeviceGetName", handle),
            uuid=self._text("nvmlDeviceGetUUID", handle),
            memory=self._memory(handle),
            capability=(major.value, minor.value),
        )

    def _memory(self, handle: ctypes.c_void_p) -> int | None:
        memory = _Memory()
        try:
            self._call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        except NvmlError as error:
            if error.code == _NOT_SUPPORTED:
                return None
            raise
        return int(memory.total)

    def _text(self, function: str, *arguments: object) -> str:
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        self._call(function, *arguments, buffer, ctypes.c_uint(_TEXT_BYTES))
        return buffer.value.decode("utf-8", "replace")

    def _call(self, function: str, *arguments: object) -> None:
        code = int(getattr(self._library, function)(*arguments))
        if code != 0:
            message = self._library.nvmlErrorString(code)
            raise NvmlError(function, code, bytes(message).decode("utf-8", "replace"))


def open_nvml() -> Nvml:
    """Load and initialise NVML.

    :raises OSError: the library is not installed.
    :raises NvmlError: it cannot be initialised.
    """
    problems = []
    for path in LIBRARIES:
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            problems.append(str(error))
            continue
        return CtypesNvml(library)
    raise OSError("; ".join(problems))
