"""The emulated device: memory, streams, random states, which devices a process sees."""

from __future__ import annotations

import re
from pathlib import Path

from .conftest import Emulate

WORKER = Path(__file__).with_name("device_worker.py")
CHECKS = [
    *["names", "memory_statistics", "out_of_memory", "fraction", "streams_and_events"],
    *["two_devices", "copies", "float8"],
]


def test_the_device(emulate: Emulate) -> None:
    ended = emulate(WORKER, devices=2, memory="256m", warm=True)
    passed = re.findall(r"^ok (\w+)$", ended.output, re.MULTILINE)
    assert passed == CHECKS, ended.output[-6000:]
    assert ended.returncode == 0


def test_visible_devices(emulate: Emulate) -> None:
    """The list ends at the first entry that is no device, as CANN sequences it."""
    counts = {"1": 1, "1,0": 2, "0,5,1": 1, "": 0, "nonsense": 0}
    # The library itself, without torch_npu, which takes seconds to import and asks just this.
    script = f"""
import ctypes, os
for visible in {list(counts)}:
    if not os.fork():
        os.environ["ASCEND_RT_VISIBLE_DEVICES"] = visible
        number = ctypes.c_uint32()
        ctypes.CDLL("libascendcl.so").aclrtGetDeviceCount(ctypes.byref(number))
        print("count", repr(visible), number.value, flush=True)
        os._exit(0)
    os.wait()
"""
    ended = emulate("-c", script, devices=2)
    found = re.findall(r"^count '(.*)' (\d+)$", ended.output, re.MULTILINE)
    assert {visible: int(count) for visible, count in found} == counts, ended.output[-3000:]


def test_no_device(emulate: Emulate) -> None:
    """torch sees none, and using one is an error that says so."""
    script = (
        "import torch; print('seen', torch.npu.device_count(), torch.npu.is_available()); "
        "torch.ones(2).npu()"
    )
    ended = emulate("-c", script, warm=True, ASCEND_RT_VISIBLE_DEVICES="7")
    assert "seen 0 False" in ended.output
    assert ended.returncode != 0
    said = "there is no device: ASCEND_RT_VISIBLE_DEVICES=7 leaves none of 1"
    assert said in ended.output, ended.output[-3000:]


def test_what_scripts_set_and_import(emulate: Emulate) -> None:
    """MindSpeed's scripts set the allocator's options, and its memory planning imports pyACL."""
    script = (
        "import acl, torch; kept = torch.ones(1 << 20).npu(); "
        "free, total, status = acl.rt.get_mem_info(1); print('seen', total - free, status)"
    )
    options = "expandable_segments:True"
    ended = emulate("-c", script, memory="256m", PYTORCH_NPU_ALLOC_CONF=options)
    used = re.search(r"^seen (\d+) 0$", ended.output, re.MULTILINE)
    assert used, ended.output[-3000:]
    assert int(used[1]) >= 4 << 20


def test_gemms_as_the_cube_unit_sums_them(emulate: Emulate) -> None:
    """With --numerics cube, every 16 terms are summed by themselves, in float32."""
    script = """
import torch, torch_npu
torch.manual_seed(0)
a, b = torch.randn(8, 1024) * 100, torch.randn(1024, 8)
sums = [(a[:, k:k+16].double() @ b[k:k+16].double()).float() for k in range(0, 1024, 16)]
want = sums[0]
for part in sums[1:]:
    want = want + part
got = (a.npu() @ b.npu()).cpu()
print("as blocks", torch.equal(got, want), "as ATen", torch.equal(got, a @ b))
half = a.bfloat16().npu() @ b.bfloat16().npu()
torch.testing.assert_close(half.cpu(), a.bfloat16() @ b.bfloat16(), rtol=0.02, atol=1.0)
"""
    cube = emulate("-c", script, warm=True, options=("--numerics", "cube"))
    assert "as blocks True as ATen False" in cube.output, cube.output
    assert "as ATen True" in emulate("-c", script, warm=True).output
