"""The functions of torch.cuda while redirected to the CPU."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from accel_bridge import DeviceSpec
from accel_bridge.device import DeviceFunctionError, DeviceMap, DeviceRedirection
from accel_bridge.device._cuda_module import CLASSES, FUNCTIONS, translating_class

pytestmark = pytest.mark.usefixtures("all_on_cpu")


def test_the_device_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert torch.cuda.is_available()
    assert torch.cuda.is_initialized()
    assert torch.cuda.device_count() == 4
    assert len(torch.cuda.default_generators) == 4
    name = torch.cuda.get_device_name().upper()
    assert torch.cuda.get_device_properties(0).name.upper() == name
    # ROLL and others choose a platform by it.
    assert not any(vendor in name for vendor in ("AMD", "INTEL", "NVIDIA", "ASCEND", "RADEON"))
    assert torch.cuda.get_device_capability() == (8, 0)
    assert torch.cuda.is_bf16_supported()


def test_current_device_is_an_int() -> None:
    try:
        for device in (1, "cuda:1", torch.device("cuda", 1)):
            torch.cuda.set_device(0)
            torch.cuda.set_device(device)
            assert type(torch.cuda.current_device()) is int
            assert torch.cuda.current_device() == 1
        torch.cuda.set_device("cuda")
        assert torch.cuda.current_device() == 1
        assert torch.device("cuda", torch.cuda.current_device()).index == 1
        with torch.cuda.device(0):
            assert type(torch.cuda.current_device()) is int
    finally:
        torch.cuda.set_device(0)


def test_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    alone = torch.cuda.get_device_properties(0).total_memory
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    properties = torch.cuda.get_device_properties(torch.device("cuda:0"))
    free, total = torch.cuda.mem_get_info()
    assert properties.total_memory == pytest.approx(alone / 4, rel=1e-6)
    assert alone <= total / 2
    assert (properties.major, properties.minor) == (8, 0)
    assert properties.multi_processor_count >= 1
    assert 0 < free <= total
    with pytest.raises(AttributeError, match="no_such"):
        properties.no_such  # noqa: B018


def test_memory_statistics_follow_the_process() -> None:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    # Large against what the system may take from this process in the meantime.
    block = torch.ones(2**29 // 4, device="cuda")
    grown = torch.cuda.memory_allocated() - before
    assert 2**28 < grown < 2**31
    assert torch.cuda.max_memory_allocated() >= before + grown
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.current"] > before
    assert {"num_alloc_retries", "num_ooms", "reserved_bytes.all.peak"} <= stats.keys()
    assert "MiB" in torch.cuda.memory_summary()
    del block


def test_streams() -> None:
    stream = torch.cuda.Stream(device="cuda", priority=-1)
    other = torch.cuda.Stream(device=torch.cuda.current_device())
    assert isinstance(torch.cuda.current_stream(), torch.cuda.Stream)
    assert isinstance(stream, torch.cuda.Stream)
    assert not isinstance(object(), torch.cuda.Stream)
    assert torch.cuda.Stream.priority_range() == (0, -1)
    with torch.cuda.stream(stream):
        stream.wait_stream(other)
        event = stream.record_event()
        torch.ones(2).record_stream(stream)
    event.wait()
    torch.cuda.current_stream().wait_event(event)
    with torch.cuda.StreamContext(stream):
        assert event.query()
    torch.cuda.synchronize()
    torch.cuda.synchronize("cuda:0")
    torch.cuda.set_stream(stream)
    assert torch.cuda.default_stream() == torch.cuda.current_stream()


def test_streams_are_set_by_their_numbers() -> None:
    """As PyTorch's own ``CudaNonDefaultStream`` does, around each of its tests of devices."""
    from torch.testing._internal.common_utils import CudaNonDefaultStream

    with CudaNonDefaultStream():
        assert torch.ones(2, device="cuda").sum().item() == 2
    torch._C._cuda_setDevice(0)
    assert torch.cuda.current_device() == 0


def test_events_measure_time() -> None:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    time.sleep(0.02)
    end.record()
    assert 20 <= start.elapsed_time(end) < 500
    with pytest.raises(ValueError, match="recorded"):
        start.elapsed_time(torch.cuda.Event())


def test_a_keyword_for_graphs_may_be_unknown_to_the_device() -> None:
    """Megatron makes such an event to offload activations; torch_npu's class has no `external`."""

    class Event:
        def __new__(cls, enable_timing: bool = False) -> Event:
            return super().__new__(cls)

    class Open:
        def __init__(self, **words: object) -> None:
            self.words = words

    devices = DeviceMap(
        DeviceSpec("hpu", None, "hccl", pinned_memory=True, tensor_type="torch.hpu")
    )
    made = [
        translating_class(
            real, devices, module="m", name="Event", numbers=False, optional=("external",)
        )
        for real in (Event, Open)
    ]
    assert isinstance(made[0](enable_timing=True, external=True), Event)
    assert made[1](external=True).words == {"external": True}
    with pytest.raises(TypeError, match="blocking"):
        made[0](blocking=True)
    torch.cuda.Event(external=True).record()


def test_profiler_calls_do_nothing() -> None:
    torch.cuda.check_error(torch.cuda.cudart().cudaProfilerStart())
    torch.cuda.profiler.start()
    torch.cuda.nvtx.range_push("forward")
    torch.cuda.nvtx.mark("here")
    torch.cuda.nvtx.range_pop()
    with torch.cuda.nvtx.range("forward {}", 1):
        assert not torch.cuda.is_current_stream_capturing()


def test_torch_profiler_records_the_host() -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
    assert any(event.key == "aten::mm" for event in recorded.key_averages())


def test_what_has_no_counterpart_says_so() -> None:
    with pytest.raises(DeviceFunctionError, match=r"torch\.cuda\.MemPool has no counterpart"):
        torch.cuda.MemPool()
    with pytest.raises(DeviceFunctionError, match=r"torch\.cuda\.memory\._snapshot") as caught:
        torch.cuda.memory._snapshot()
    assert "next:" in str(caught.value)
    # As PyTorch's own error: Megatron's buffers in symmetric memory go on without.
    with contextlib.suppress(RuntimeError):
        torch.cuda.MemPool()
    assert not isinstance(object(), torch.cuda.CUDAGraph)


def test_names_of_this_torch(all_on_cpu: DeviceRedirection) -> None:
    """Every name of the tables exists in this torch or is listed as missing."""
    absent = {name for name in (*FUNCTIONS, *CLASSES) if not hasattr(torch.cuda, name)}
    assert absent == {
        name.removeprefix("torch.cuda.")
        for name in all_on_cpu.missing
        if name.startswith("torch.cuda.") and name.count(".") == 2
    }


def test_torch_accelerator_agrees_with_torch_cuda() -> None:
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert torch.accelerator.device_count() == torch.cuda.device_count()
    torch.accelerator.set_device_index(1)
    assert torch.accelerator.current_device_index() == 1
    torch.accelerator.set_device_index(0)
    torch.accelerator.synchronize()
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.memory_allocated(device_index=0) > 0


@pytest.mark.parametrize("module", [torch.cuda, torch.accelerator])
def test_the_page_answers_for_every_public_name(module: Any) -> None:
    page = (Path(__file__).parents[2] / "docs/device.md").read_text(encoding="utf-8")
    section = page.split(f"## Names of {module.__name__}\n")[1].split("\n#")[0]
    rows = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert len(listed) == len(set(listed))
    assert set(module.__all__) <= set(listed)


def test_no_library_reads_the_host_as_cuda_memory(on_cpu: DeviceRedirection) -> None:
    assert not hasattr(torch.ones(2, device="cuda"), "__cuda_array_interface__")
