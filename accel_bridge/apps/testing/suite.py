"""The parity suite: the same tests for every backend.

``from accel_bridge.apps.testing.suite import *`` in a test module runs them; see
:mod:`accel_bridge.apps.testing`. A test that needs several processes runs only if there are as many
devices (the CPU has as many as requested).
"""

from __future__ import annotations

from typing import Final

import pytest

from accel_bridge import Backend
from accel_bridge.apps.testing import LAYOUTS, MOE, Agree, Command, Record
from accel_bridge.recording import read

__all__ = [
    "test_a_module_that_moves_keeps_its_parameters",
    "test_a_run_repeats_itself",
    "test_kernels_follow_their_references",
    "test_layouts_train_as_one_process_does",
    "test_layouts_train_as_one_process_does_in_bf16",
    "test_moe_layouts_train_as_one_process_does",
    "test_trains_as_the_cpu_does",
    "test_trains_as_the_cpu_does_in_bf16",
]

#: Steps of the runs whose losses are compared.
STEPS: Final = ("--train-iters", "10", "--lr-decay-iters", "10")
BF16: Final = (*STEPS, "--bf16")


def test_kernels_follow_their_references(backend_name: str, accel_bridge_command: Command) -> None:
    """``accel-bridge parity kernels`` passes."""
    done = accel_bridge_command("parity", "kernels", "--backend", backend_name)
    assert done.returncode == 0, (done.stdout + done.stderr)[:6000]


#: Megatron's attributes of a parameter say how it is split; a new parameter has none.
MOVED: Final = """
import accel_bridge.auto
import torch

module = torch.nn.Linear(2, 3)
weight, bias = module.weight, module.bias
weight.tensor_model_parallel = True
module.cuda()
assert module.weight is weight and module.bias is bias
assert weight.tensor_model_parallel and weight.device == torch.empty(1, device="cuda").device
module(torch.ones(2, device="cuda")).sum().backward()
assert weight.grad.tolist() == [[1.0, 1.0]] * 3
"""


def test_a_module_that_moves_keeps_its_parameters(
    backend_name: str, accel_bridge_command: Command, interpreter: str
) -> None:
    """What is made on the host (``--use-cpu-initialization``) stays itself on the device."""
    words = ("run", "--", interpreter, "-c", MOVED)
    done = accel_bridge_command(*words, environ={"ACCEL_BRIDGE_BACKEND": backend_name})
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]


def test_a_run_repeats_itself(record: Record) -> None:
    """The same command twice gives the same losses, bit by bit."""
    first = read(record("--train-iters", "3"))
    second = read(record("--train-iters", "3", environ={"ACCEL_BRIDGE_LOG": "quiet"}))
    assert [step.loss for step in first.steps] == [step.loss for step in second.steps]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_train_as_one_process_does(
    layout: str, record: Record, agree: Agree, backend: Backend
) -> None:
    """In float32 every layout has the losses of one process, within 1e-5 at each of 10 steps."""
    processes, arguments = LAYOUTS[layout]
    _need_devices(backend, processes)
    agree(record(*STEPS), record(*STEPS, *arguments.split(), processes=processes))


@pytest.mark.parametrize("layout", ["tp2-sp", "dp2", "cp2"])
def test_layouts_train_as_one_process_does_in_bf16(
    layout: str, record: Record, agree: Agree, backend: Backend
) -> None:
    """In bfloat16 layouts differ by what bfloat16 costs against float32."""
    processes, arguments = LAYOUTS[layout]
    _need_devices(backend, processes)
    run = record(*BF16, *arguments.split(), processes=processes)
    agree(record(*BF16), run, record(*STEPS))


def test_moe_layouts_train_as_one_process_does(
    record: Record, agree: Agree, backend: Backend
) -> None:
    """Experts sharded over two ranks train as on one."""
    _need_devices(backend, 2)
    sharded = record(*STEPS, *MOE, "--expert-model-parallel-size", "2", processes=2)
    agree(record(*STEPS, *MOE), sharded)


def test_trains_as_the_cpu_does(record: Record, agree: Agree) -> None:
    """In float32 the backend has the losses of the CPU."""
    agree(record(*STEPS, backend="cpu"), record(*STEPS))


def test_trains_as_the_cpu_does_in_bf16(record: Record, agree: Agree) -> None:
    """In bfloat16 the backend is no further from float32 than the CPU is, times two."""
    exact = record(*STEPS, backend="cpu")
    agree(record(*BF16, backend="cpu"), record(*BF16), exact)


def _need_devices(backend: Backend, processes: int) -> None:
    devices = backend.probe().devices
    if devices is not None and devices < processes:
        pytest.skip(f"{backend.title}: {processes} devices are needed, {devices} are here")
