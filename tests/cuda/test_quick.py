"""Launches past Triton's look at every argument: the same kernel for the same kind of arguments."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
from triton import knobs

from accel_bridge.backends.cuda.kernels import _launch


class Compiled:
    """A compiled kernel that remembers its launches."""

    function, packed_metadata = "function", "metadata"

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []
        self.heard: list[tuple[Any, ...]] = []

    def run(self, x: int, y: int, z: int, *given: Any) -> None:
        assert given[:6] == ("stream", "function", "metadata", None, None, None)
        self.launches.append(((x, y, z), *given[6:]))

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments: self.heard.append((grid, *arguments))


class Parameter:
    def __init__(self, name: str) -> None:
        self.name = name
        self.is_constexpr = name.isupper()


class Kernel:
    """What ``triton.jit`` makes: it compiles at every launch."""

    def __init__(self, *names: str) -> None:
        self.params = [Parameter(name) for name in names]
        self.compiled: list[Compiled] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self._launch

    def _launch(self, *arguments: Any, **constants: Any) -> Compiled:
        self.compiled.append(Compiled())
        return self.compiled[-1]


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    monkeypatch.setattr(_launch, "CompiledKernel", Compiled)
    monkeypatch.setattr(_launch, "_KNOWN", True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    active = SimpleNamespace(get_current_stream=lambda device: "stream")
    monkeypatch.setattr(_launch, "driver", SimpleNamespace(active=active))
    return Kernel("x", "n", "SIZE")


def test_the_second_launch_is_direct(kernel: Kernel) -> None:
    quick, x = _launch.Quick(kernel), torch.zeros(8)
    quick[(3,)](x, 5, SIZE=8, num_warps=4)
    quick[(7, 2)](x, 6, SIZE=8, num_warps=4)
    assert len(kernel.compiled) == 1
    (grid, tensor, number, size) = kernel.compiled[0].launches[0]
    assert (grid, number, size) == ((7, 2, 1), 6, 8)
    assert tensor is x


@pytest.mark.parametrize("name", ["launch_enter_hook", "launch_exit_hook"])
def test_a_profiler_hears_of_every_launch(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    quick, x = _launch.Quick(kernel), torch.zeros(8)
    hooks = knobs.HookChain[Any]()
    hooks.add(lambda metadata: None)
    quick[(3,)](x, 5, SIZE=8)
    monkeypatch.setattr(knobs.runtime, name, hooks)
    quick[(3,)](x, 6, SIZE=8)
    (compiled,) = kernel.compiled
    assert compiled.heard == [((3, 1, 1), x, 6, 8)]
    assert not compiled.launches


@pytest.mark.parametrize(
    "other",
    [
        (torch.zeros(8, dtype=torch.bfloat16), 5, 8),
        (torch.zeros(9)[1:], 5, 8),  # not at a multiple of 16 bytes
        (torch.zeros(8), 1, 8),
        (torch.zeros(8), 32, 8),
        (torch.zeros(8), 2**40 + 1, 8),
        (torch.zeros(8), 5.0, 8),
        (torch.zeros(8), None, 8),
        (torch.zeros(8), True, 8),
        (torch.zeros(8), 5, 16),
    ],
)
def test_what_triton_compiles_for_is_told_apart(kernel: Kernel, other: tuple[Any, ...]) -> None:
    quick = _launch.Quick(kernel)
    quick[(1,)](torch.zeros(8), 5, SIZE=8)
    quick[(1,)](*other[:2], SIZE=other[2])
    assert len(kernel.compiled) == 2
    quick[(1,)](*other[:2], SIZE=other[2])
    assert len(kernel.compiled) == 2


def test_an_argument_by_name_is_never_frozen(kernel: Kernel) -> None:
    quick = _launch.Quick(kernel)
    for number in (5, 6):
        quick[(1,)](torch.zeros(8), n=number, SIZE=8)
    assert len(kernel.compiled) == 2
    quick[(1,)](torch.zeros(8), n=6, SIZE=8)
    assert len(kernel.compiled) == 3


def test_another_triton_launches_by_itself(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_launch, "_KNOWN", False)
    quick = _launch.Quick(kernel)
    for _ in range(3):
        quick[(1,)](torch.zeros(8), 5, SIZE=8)
    assert len(kernel.compiled) == 3
