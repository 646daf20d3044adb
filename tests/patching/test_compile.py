"""A trip-wire must not get in torch.compile's way."""

from __future__ import annotations

import importlib

import pytest
import torch

from accel_bridge.patching import Kind, State

from .conftest import Writer
from .support import engine, make_patch, states, tag

SOURCE = """
import torch
def f(x): return x * 2
class M(torch.nn.Module):
    def __init__(self): super().__init__()
    def forward(self, x): return f(x) + 1
"""


@pytest.mark.slow
def test_one_graph_and_reached(write: Writer) -> None:
    name = write(a=SOURCE)
    a = importlib.import_module(f"{name}.a")
    compiled: list[object] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        compiled.append(graph)
        return graph.forward

    patches = [
        make_patch(
            f"{name}.a:f", lambda context: lambda x: x * 3, ("x",), id="f", kind=Kind.REPLACE
        ),
        make_patch(
            f"{name}.a:M.forward",
            lambda context: lambda self, x: context.original(self, x) + 10,
            ("self", "x"),
            id="forward",
        ),
    ]
    with engine(*patches) as active:
        model = torch.compile(a.M(), fullgraph=True, backend=backend)
        for _ in range(3):
            assert model(torch.ones(1)).item() == 14
        assert set(states(active).values()) == {State.REACHED}
        assert a.M()(torch.ones(1)).item() == 14
        for _ in range(2):
            assert model(torch.ones(1)).item() == 14
    torch._dynamo.reset()
    assert a.M()(torch.ones(1)).item() == 3
    # One graph for the wires, at most one more when they are gone.
    assert 1 <= len(compiled) <= 2


@pytest.mark.slow
def test_a_compiled_target(write: Writer) -> None:
    """The target is itself a compiled function, as Megatron's jit_fuser makes them."""
    name = write(
        a="import torch\n@torch.compile(backend='eager', fullgraph=True)\ndef f(x): return x * 2"
    )
    a = importlib.import_module(f"{name}.a")
    original = a.f
    with engine(make_patch(f"{name}.a:f", tag("w"), ("x",))) as active:
        for _ in range(2):
            word, value = a.f(torch.ones(1))
            assert (word, value.item()) == ("w", 2)
        assert states(active) == {"p": State.REACHED}
    assert a.f is original
    torch._dynamo.reset()


def test_a_patch_takes_the_compilation_away(write: Writer) -> None:
    """What it returns is the function that was given to torch.compile."""
    from accel_bridge.patches.jit import PATCHES

    (made,) = (patch for patch in PATCHES if patch.id == "expert-bias")
    name = write(a="import torch\n@torch.compile(backend='eager')\ndef f(x, y=1): return x * 2")
    a = importlib.import_module(f"{name}.a")
    original = a.f
    with engine(make_patch(f"{name}.a:f", made.make)) as active:
        assert a.f(3) == 6
        assert not hasattr(a.f, "_torchdynamo_orig_callable")
        assert states(active) == {"p": State.REACHED}
    assert a.f is original
