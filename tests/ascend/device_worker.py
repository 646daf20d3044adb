"""The emulated device as a program sees it; run under ``accel-bridge emulate-ascend --devices 2
--memory 256m``. Prints ``ok NAME`` for each check."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
import torch_npu  # noqa: F401

MEGABYTE = 1 << 20


def names() -> None:
    assert torch.npu.is_available()
    assert torch.npu.device_count() == 2
    assert torch.npu.get_device_name(0) == "Ascend910B1"
    properties = torch.npu.get_device_properties(1)
    assert properties.total_memory == 256 * MEGABYTE
    assert torch.npu.mem_get_info(0)[1] == 256 * MEGABYTE


def memory_statistics() -> None:
    torch.npu.empty_cache()
    torch.npu.reset_peak_memory_stats()
    before = torch.npu.memory_allocated()
    x = torch.empty(10 * MEGABYTE, dtype=torch.uint8, device="npu")
    assert torch.npu.memory_allocated() - before >= 10 * MEGABYTE
    assert torch.npu.memory_reserved() >= torch.npu.memory_allocated()
    free, total = torch.npu.mem_get_info()
    assert total - free == torch.npu.memory_reserved()
    assert torch.npu.memory_stats()["allocated_bytes.all.current"] == torch.npu.memory_allocated()
    del x
    assert torch.npu.memory_allocated() == before
    assert torch.npu.max_memory_allocated() - before >= 10 * MEGABYTE
    torch.npu.empty_cache()
    assert torch.npu.mem_get_info()[0] > free


def out_of_memory() -> None:
    """The error is torch's own type, names the numbers, and the device goes on."""
    held = [torch.ones(10 * MEGABYTE, device="npu") for _ in range(3)]
    for _ in range(2):
        try:
            torch.empty(50 * MEGABYTE, device="npu")
        except torch.OutOfMemoryError as error:
            text = str(error)
            assert "NPU out of memory. Tried to allocate 202.00 MiB" in text, text
            assert "256.00 MiB total capacity" in text, text
        else:
            raise AssertionError("more than the device's memory was allocated")
    assert held[2].sum().item() == 10 * MEGABYTE
    del held
    assert torch.ones(50 * MEGABYTE, device="npu").sum().item() == 50 * MEGABYTE


def fraction() -> None:
    torch.npu.empty_cache()
    torch.npu.set_per_process_memory_fraction(0.5)
    try:
        torch.empty(160 * MEGABYTE, dtype=torch.uint8, device="npu")
    except torch.OutOfMemoryError:
        pass
    else:
        raise AssertionError("the fraction was not kept")
    finally:
        torch.npu.set_per_process_memory_fraction(1.0)
    torch.empty(160 * MEGABYTE, dtype=torch.uint8, device="npu")


def streams_and_events() -> None:
    stream, other = torch.npu.Stream(), torch.npu.Stream()
    assert stream != other
    start, end = (torch.npu.Event(enable_timing=True) for _ in range(2))
    x = torch.ones(8, device="npu")
    start.record()
    with torch.npu.stream(stream):
        assert torch.npu.current_stream() == stream
        y = x + 1
        event = stream.record_event()
    other.wait_event(event)
    with torch.npu.stream(other):
        z = y * 2
    torch.npu.current_stream().wait_stream(other)
    time.sleep(0.02)
    end.record()
    end.synchronize()
    assert end.query()
    assert stream.query()
    assert 10 < start.elapsed_time(end) < 5000
    assert z.tolist() == [4.0] * 8


def two_devices() -> None:
    """In one process: tensors, copies between them, each its own memory and random numbers."""
    one, other = torch.arange(4.0, device="npu:0"), torch.arange(4.0, device="npu:1")
    assert one.device.index == 0
    assert other.device.index == 1
    assert (one.to("npu:1") + other).tolist() == [0, 2, 4, 6]
    before = torch.npu.memory_allocated(1)
    with torch.npu.device(1):
        assert torch.npu.current_device() == 1
        x = torch.ones(MEGABYTE, device="npu")
        assert x.device.index == 1
    assert torch.npu.current_device() == 0
    assert torch.npu.memory_allocated(1) - before >= 4 * MEGABYTE
    torch.npu.manual_seed_all(5)
    a, b = torch.rand(4, device="npu:0"), torch.rand(4, device="npu:1")
    assert a.tolist() == b.tolist()
    torch.rand(4, device="npu:0")
    states = torch.npu.get_rng_state_all()
    a, b = torch.rand(4, device="npu:0"), torch.rand(4, device="npu:1")
    assert a.tolist() != b.tolist()
    torch.npu.set_rng_state_all(states)
    assert torch.rand(4, device="npu:0").tolist() == a.tolist()
    assert torch.rand(4, device="npu:1").tolist() == b.tolist()
    said = ""
    try:
        torch.ones(2, device="npu:2")
    except RuntimeError as error:
        said = str(error)
    assert "there is no device 2; this process sees 2" in said, said


def copies() -> None:
    """Pinned memory, strides and dtypes on the way to the device and back."""
    x = torch.arange(24.0).view(4, 6)
    assert x.pin_memory().to("npu", non_blocking=True).cpu().equal(x)
    assert x.t().to("npu").stride() == x.t().stride()
    assert x.t().npu().cpu().equal(x.t())
    assert x[:, ::2].npu().cpu().equal(x[:, ::2])
    y = torch.zeros(4, 6, device="npu")
    y.t()[1:3].copy_(x.t()[1:3])
    assert y.cpu()[:, 1:3].equal(x[:, 1:3])
    assert x.npu().to(torch.bfloat16).cpu().equal(x.bfloat16())
    assert x.npu().is_npu


def float8() -> None:
    """The bytes and numbers of FP8, which the device has no operators for."""
    from accel_bridge.kernels.float8 import rounded, widened

    x = torch.randn(4096) * torch.exp2(torch.arange(4096) % 40 - 30.0)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        numbers = rounded(x, dtype)
        there = rounded(x.npu(), dtype)
        assert there.cpu().view(torch.uint8).equal(numbers.view(torch.uint8))
        assert widened(there, torch.bfloat16).cpu().equal(numbers.bfloat16())


CHECKS: tuple[Callable[[], None], ...] = (
    *(names, memory_statistics, out_of_memory, fraction),
    *(streams_and_events, two_devices, copies, float8),
)


def main() -> int:
    for check in CHECKS:
        check()
        print("ok", check.__name__, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
