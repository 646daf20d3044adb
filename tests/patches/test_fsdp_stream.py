"""A buffer of Megatron-FSDP where the host's memory is the device's."""

from __future__ import annotations

from inspect import signature
from types import SimpleNamespace
from typing import Any

import pytest

from accel_bridge.backends.cpu._backend import CpuBackend
from accel_bridge.device.backend import Features
from accel_bridge.patches.placement import PATCHES
from accel_bridge.patching import PatchContext
from accel_bridge.patching.host import Host

PATCH = next(patch for patch in PATCHES if patch.id == "fsdp-stream")


class Buffer:
    """As upstream's: a stream only for what says that it is on CUDA."""

    allocation_stream: Any

    def __init__(self, is_cuda: bool) -> None:
        self.allocation_stream = "its own" if is_cuda else None


def test_it_has_the_devices_stream() -> None:
    host = Host(CpuBackend(), lambda args: None, lambda line: None, lambda: None)
    cuda = SimpleNamespace(current_stream=lambda: "the device's")
    module: Any = SimpleNamespace(torch=SimpleNamespace(cuda=cuda))
    upstream = Buffer.__init__
    patched = PATCH.make(PatchContext(upstream, module, Buffer, host, PATCH, signature(upstream)))
    for is_cuda, stream in ((False, "the device's"), (True, "its own")):
        buffer = Buffer.__new__(Buffer)
        patched(buffer, is_cuda)
        assert buffer.allocation_stream == stream


@pytest.mark.parametrize("on_host", [False, True])
def test_tensors_of_another_memory_need_no_help(
    monkeypatch: pytest.MonkeyPatch, on_host: bool
) -> None:
    monkeypatch.setattr(CpuBackend, "features", Features(tensors_on_host=on_host))
    host = Host(CpuBackend(), lambda args: None, lambda line: None, lambda: None)
    assert PATCH.skip_when is not None
    assert (PATCH.skip_when(host) is None) is on_host
