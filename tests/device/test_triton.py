"""Triton kernels on a device without a compiler of Triton: its interpreter runs them."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl
from plugin_site import Python

from accel_bridge.backends._triton import interpreted_triton
from accel_bridge.device import Context, DeviceMap
from accel_bridge.device.device import Device
from accel_bridge.process.journal import Journal


@triton.jit
def _halves(x):
    return x * 0.5


@triton.jit
def rows(x, out, width, BLOCK: tl.constexpr):
    """The sum of each row's halves: device functions, a method, a loop over tl.range."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in tl.range(0, width, BLOCK):
        place = start.to(tl.int64) + column
        total += _halves(tl.load(x + row * width + place, mask=place < width, other=0.0))
    tl.store(out + row, total.sum(0))


@triton.jit
def arithmetic(x, y, out, BLOCK: tl.constexpr):
    """Operations in the type of the operands; a mask that is a block's and the program's."""
    place = tl.arange(0, BLOCK)
    mask = (place < BLOCK) & (tl.program_id(0) == 0)
    tl.store(out + place, -(tl.load(x + place) * tl.load(y + place)) * 3, mask=mask)


@triton.jit
def gemm(x, y, out, BLOCK: tl.constexpr):
    """A GEMM with a float32 accumulator."""
    row, column = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    place = row * BLOCK + column
    tl.store(out + place, tl.dot(tl.load(x + place), tl.load(y + place)))


@triton.jit
def cast(x, out, BLOCK: tl.constexpr):
    """A conversion to the type of the result."""
    place = tl.arange(0, BLOCK)
    tl.store(out + place, tl.load(x + place).to(out.dtype.element_ty))


@triton.autotune([triton.Config({"BLOCK": 8}), triton.Config({"BLOCK": 16})], key=["width"])
@triton.jit
def tuned(x, width, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(x + place, tl.full((BLOCK,), BLOCK, tl.float32), mask=place < width)


@pytest.fixture
def journal() -> Iterator[Journal]:
    """The interpreter takes launches while a test runs."""
    spec = Device("cpu", sys, "gloo", False, "torch", indexed=False, streams=False)
    journal = Journal()
    interpreted_triton(Context(spec, DeviceMap(spec), journal))
    yield journal
    journal.undo()


def test_a_kernel_with_functions_methods_and_loops(journal: Journal) -> None:
    x = torch.arange(30, dtype=torch.float32).reshape(3, 10)
    out = torch.zeros(3)
    rows[(3,)](x, out, 10, BLOCK=4)
    assert out.tolist() == (x / 2).sum(1).tolist()


def test_bfloat16_is_computed_and_rounded_as_hardware_does(journal: Journal) -> None:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(2, 16, 16, generator=generator, dtype=torch.bfloat16)
    out = torch.empty(256, dtype=torch.bfloat16)
    arithmetic[(1,)](x, y, out, BLOCK=256)
    assert torch.equal(out, (-(x * y) * 3).flatten())
    result = torch.empty(16, 16)
    gemm[(1,)](x, y, result, BLOCK=16)
    torch.testing.assert_close(result, x.float() @ y.float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_conversions_round_to_the_nearest(journal: Journal, dtype: torch.dtype) -> None:
    x = torch.linspace(-3, 3, 512) ** 3
    x[:2] = torch.tensor([1 + 2**-9, torch.nan])
    out = torch.empty(512).to(dtype)
    cast[(1,)](x, out, BLOCK=512)
    torch.testing.assert_close(out.float(), x.to(dtype).float(), rtol=0, atol=0, equal_nan=True)
    back = torch.empty(512)
    cast[(1,)](out, back, BLOCK=512)
    torch.testing.assert_close(back, out.float(), rtol=0, atol=0, equal_nan=True)


def test_too_large_values_become_the_largest_float8(journal: Journal) -> None:
    x, out = torch.tensor([1e4, -1e4]), torch.empty(2).to(torch.float8_e4m3fn)
    cast[(1,)](x, out, BLOCK=2)
    assert out.float().tolist() == [448.0, -448.0]


def test_the_first_configuration_is_taken(journal: Journal) -> None:
    x = torch.zeros(16)
    tuned[(1,)](x, 16)
    assert x.tolist() == [8.0] * 8 + [0.0] * 8


def test_a_device_function_is_no_function_of_the_host(journal: Journal) -> None:
    with pytest.raises(RuntimeError, match="outside of the scope of a kernel"):
        _halves(1.0)


def test_everything_is_as_before_after_undo(journal: Journal) -> None:
    cast[(1,)](torch.ones(2), torch.ones(2), BLOCK=2)
    from triton.runtime import autotuner, interpreter, jit

    owners = (jit.JITFunction, autotuner.Autotuner, interpreter.InterpreterBuilder)
    journal.undo()
    before = [dict(vars(owner)) for owner in owners], list(sys.meta_path), dict(vars(tl))
    spec = Device("cpu", sys, "gloo", False, "torch", indexed=False, streams=False)
    again = Journal()
    interpreted_triton(Context(spec, DeviceMap(spec), again))
    assert vars(jit.JITFunction)["run"] is not before[0][0]["run"]
    rows[(1,)](torch.ones(4), torch.ones(1), 4, BLOCK=4)
    again.undo()
    assert ([dict(vars(owner)) for owner in owners], list(sys.meta_path), dict(vars(tl))) == before


SCRIPT = """
import accel_bridge
accel_bridge.activate("cpu")
import os, sys
assert "triton" not in sys.modules
import torch, triton, triton.language as tl

@triton.jit
def double(x, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(x + place, tl.load(x + place) * 2)

x = torch.ones(4, device="cuda")
for _ in range(2):
    double[(1,)](x, BLOCK=4)
print(x.tolist(), "TRITON_INTERPRET" in os.environ)
"""


@pytest.mark.slow
def test_the_cpu_backend_has_it_and_says_so_once(python: Python, tmp_path: object) -> None:
    script = f"{tmp_path}/script.py"
    with open(script, "w") as file:
        file.write(SCRIPT)
    done = python(script)
    assert done.stdout == "[4.0, 4.0, 4.0, 4.0] False\n", done.stderr[-2000:]
    assert done.stderr.count("Triton kernels run in Triton's interpreter") == 1
