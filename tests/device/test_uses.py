"""What worked without a redirection works with it: scripts, tracers, compilers, pickles."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from plugin_site import Python
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from accel_bridge.backends.cpu import CpuBackend
from accel_bridge.device import DeviceRedirection, float16_matmuls_in
from accel_bridge.device.backend import DeviceSpec


def spec_with_gemms() -> DeviceSpec:
    """The CPU without float16 arithmetic, which has the most redirected functions."""
    spec: DeviceSpec = CpuBackend().device()
    return replace(spec, parts=(*spec.parts, float16_matmuls_in(torch.float32)))


@pytest.fixture(scope="module")
def redirected() -> Iterator[DeviceRedirection]:
    with DeviceRedirection(spec_with_gemms()) as redirection:
        yield redirection


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(functional.gelu(self.up(x)))
        return result


class Redirected(nn.Module):
    """Calls functions and methods that are redirected."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        squares = torch.bmm(torch.matmul(x, x.transpose(1, 2)), x @ x.transpose(1, 2))
        best, _ = torch.topk(squares.flatten(), 2)
        made = torch.zeros(2) + torch.arange(2) + torch.ones_like(best) + x.new_zeros(2)
        if torch.is_autocast_enabled():
            made = made + 1
        return best + made + torch.tensor(1.0) + x.to(torch.float32).sum()


class Placed(nn.Module):
    """Reads the device of a tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1], device=x.device)[None, :, None].to(x.dtype)
        return x + places.to(x.device) + torch.zeros(x.shape, device=x.device)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(4, 4),
    "mlp": Mlp,
    "encoder": lambda: nn.TransformerEncoderLayer(4, 2, dropout=0.0, batch_first=True),
    "functions": Redirected,
    "devices": Placed,
}
Use = Callable[[nn.Module, torch.Tensor], torch.Tensor]
USES: dict[str, Use] = {
    "call": lambda model, x: model(x),
    "script": lambda model, x: torch.jit.script(model)(x),
    "trace": lambda model, x: torch.jit.trace(model, x)(x),
    "fx": lambda model, x: torch.fx.symbolic_trace(model)(x),
    "make_fx": lambda model, x: make_fx(model)(x)(x),
    "export": lambda model, x: torch.export.export(model, (x,)).module()(x),
    "compile": lambda model, x: torch.compile(model, backend="aot_eager", fullgraph=True)(x),
    "vmap": lambda model, x: torch.vmap(model)(x[None])[0],
    "grad": lambda model, x: torch.func.grad(lambda y: model(y).square().sum())(x),
    "pickle": lambda model, x: pickle.loads(pickle.dumps(model))(x),
    "data parallel": lambda model, x: nn.DataParallel(model)(x),
    "functional data parallel": lambda model, x: nn.parallel.data_parallel(model, x),
}
#: Attention asks for the shapes' values, and a range wants a number.
NOT_TRACED_BY_FX = {"encoder", "devices"}


def attempt(model: nn.Module, use: Use) -> torch.Tensor:
    torch._dynamo.reset()
    torch.manual_seed(1)
    return use(model, torch.randn(2, 3, 4))


#: Compilers of torch, whose import alone takes seconds.
COMPILED = ("compile", "export")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "use",
    [pytest.param(use, marks=[pytest.mark.slow] if use in COMPILED else []) for use in USES],
)
def test_a_model_is_used_as_without(use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHDYNAMO_DISABLE", raising=False)
    names = [name for name in MODELS if use != "fx" or name not in NOT_TRACED_BY_FX]
    if use == "functional data parallel":
        names.remove("devices")
    torch.manual_seed(0)
    models = {name: MODELS[name]() for name in names}
    apart = {"data parallel", "functional data parallel"}
    plain = "call" if use in apart else use
    expected = {name: attempt(model, USES[plain]) for name, model in models.items()}
    with DeviceRedirection(spec_with_gemms()):
        for name, model in models.items():
            torch.testing.assert_close(attempt(model, USES[use]), expected[name])


def described(owner: Any, name: str) -> tuple[Any, Any]:
    """Parameters of a function (without annotations), and whether pickle finds it by its name."""
    value: Any = getattr(owner, name, None)
    try:
        parameters = [(one.name, one.kind) for one in inspect.signature(value).parameters.values()]
        if isinstance(owner, type):
            del parameters[:1]  # self
    except (TypeError, ValueError):
        parameters = None
    try:
        by_name = pickle.loads(pickle.dumps(value)) is value
    except Exception:
        by_name = False
    return parameters, by_name


def test_every_redirected_name_keeps_signature_and_pickle() -> None:
    redirection = DeviceRedirection(spec_with_gemms())
    with redirection:
        names = [
            (change.owner, change.name)
            for change in redirection.changes
            if not change.is_item
            and callable(change.new)
            and getattr(change.owner, "__module__", "torch").startswith("torch")
        ]
        changed = {(id(owner), name): described(owner, name) for owner, name in names}
        assert "scalar value" in (torch.zeros.__doc__ or "")
        assert "backend" in inspect.signature(torch.distributed.new_group).parameters
    assert len(names) > 200
    for owner, name in names:
        (before, found), (after, still) = described(owner, name), changed[id(owner), name]
        label = f"{getattr(owner, '__name__', owner)}.{name}"
        assert before is None or before == after, label
        assert still or not found, label


def test_the_default_compiler_looks_for_no_gpu(forked: Python) -> None:
    """Inductor asks Triton for its driver, which would load libcuda."""
    program = (
        "import accel_bridge.auto, torch\n"
        "model = torch.nn.Linear(4, 4)\n"
        "torch.testing.assert_close(torch.compile(model)(torch.ones(2, 4)), "
        "model(torch.ones(2, 4)))"
    )
    done = forked("-c", program, ACCEL_BRIDGE_BACKEND="cpu", TORCHDYNAMO_DISABLE="0")
    assert done.returncode == 0, done.stderr[-2000:]
