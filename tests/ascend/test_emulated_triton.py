"""Triton kernels on EMULATED NPUs, which have no compiler of Triton."""

from __future__ import annotations

from pathlib import Path

from ascend.conftest import Emulate

SCRIPT = """
import accel_bridge.auto
import torch, triton, triton.language as tl

@triton.jit
def doubled(x, y, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(y + place, tl.load(x + place) * 2)

x = torch.arange(4, device="cuda", dtype=torch.bfloat16)
y = torch.zeros_like(x)
doubled[(1,)](x, y, BLOCK=4)
print(y.device.type, y.cpu().tolist())
"""


def test_a_kernel_is_interpreted(emulate: Emulate, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = emulate(script)
    assert "npu [0.0, 2.0, 4.0, 6.0]" in done.output, done.output[-2000:]
    assert "Triton kernels run in Triton's interpreter" in done.output
