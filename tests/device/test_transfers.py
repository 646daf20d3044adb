"""Transfers between host and device are copies, as on CUDA, though both are one memory."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

pytestmark = pytest.mark.usefixtures("all_on_cpu")
Make = Callable[[], torch.Tensor]
Move = Callable[[Any], torch.Tensor]


def on(side: str) -> torch.Tensor:
    """A tensor whose device tells its side."""
    return torch.zeros(1, device="cuda" if side == "device" else "cpu")


#: Where a tensor of each side comes from. Nobody knows the side of what an operation made.
SOURCES: dict[str, dict[str, Make]] = {
    "host": {
        "factory": lambda: torch.ones(2),
        "cpu": lambda: torch.ones(2, device="cpu"),
        "numpy": lambda: torch.from_numpy(np.ones(2, dtype=np.float32)),
        "as_tensor": lambda: torch.as_tensor(np.ones(2, dtype=np.float32)),
        "view": lambda: torch.ones(3, 2)[1],
        "expanded": lambda: torch.ones(1).expand(2),
        "parameter": lambda: torch.nn.Parameter(torch.ones(2)).data,
        "transfer": lambda: torch.ones(2, device="cuda").cpu(),
        "like": lambda: torch.ones_like(torch.zeros(2)),
        "new": lambda: torch.zeros(1).new_ones(2),
        "pinned": lambda: torch.ones(2).pin_memory(),
        "deepcopy": lambda: copy.deepcopy(torch.ones(2)),
        "load": lambda: loaded(torch.ones(2), "cpu"),
    },
    "device": {
        "factory": lambda: torch.ones(2, device="cuda"),
        "number": lambda: torch.ones(2, device=torch.cuda.current_device()),
        "context": lambda: in_context(),
        "view": lambda: torch.ones(3, 2, device="cuda:0")[1],
        "parameter": lambda: torch.nn.Linear(2, 2, device="cuda").weight.data[0],
        "state": lambda: torch.nn.Linear(2, 2).cuda().state_dict()["bias"],
        "transfer": lambda: torch.ones(2).cuda(),
        "like": lambda: torch.ones_like(torch.zeros(2, device="cuda")),
        "new": lambda: torch.zeros(1, device="cuda").new_ones(2),
        "legacy": lambda: vars(torch.cuda)["FloatTensor"]([1.0, 1.0]),
        "deepcopy": lambda: copy.deepcopy(torch.ones(2, device="cuda")),
        "same device": lambda: torch.ones(2, device=on("device").device),
        "load": lambda: loaded(torch.ones(2), "cuda"),
    },
}
UNKNOWN: dict[str, dict[str, Make]] = {
    "host": {"operation": lambda: torch.zeros(2) + 1, "clone": lambda: torch.ones(2).clone()},
    "device": {"operation": lambda: torch.zeros(2, device="cuda") + 1},
}


def in_context() -> torch.Tensor:
    with torch.device("cuda"):
        return torch.ones(2)


def loaded(value: Any, location: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, map_location=location)


def module_with(tensor: torch.Tensor) -> torch.nn.Module:
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(tensor)
    module.register_buffer("other", tensor)
    return module


def by_module(move: Callable[[torch.nn.Module], Any]) -> Move:
    def moved(tensor: torch.Tensor) -> torch.Tensor:
        module = module_with(tensor)
        assert move(module) is module
        weight = module.weight
        assert isinstance(weight, torch.nn.Parameter)
        return weight.data

    return moved


#: Every transfer that names a side.
MOVES: dict[str, dict[str, Move]] = {
    "device": {
        "cuda()": lambda x: x.cuda(),
        "cuda(0)": lambda x: x.cuda(0, non_blocking=True),
        "to('cuda')": lambda x: x.to("cuda"),
        "to('cuda:0')": lambda x: x.to("cuda:0", non_blocking=True),
        "to(0)": lambda x: x.to(0),
        "to(device)": lambda x: x.to(torch.device("cuda", 0)),
        "to(device=)": lambda x: x.to(device="cuda"),
        "to(device, dtype)": lambda x: x.to("cuda", torch.float32),
        "to(dtype=, device=)": lambda x: x.to(dtype=torch.float32, device="cuda"),
        "to(current)": lambda x: x.to(torch.cuda.current_device()),
        "to(other)": lambda x: x.to(on("device")),
        "to(tensor=)": lambda x: x.to(tensor=on("device")),
        "to(other.device)": lambda x: x.to(on("device").device),
        "type": lambda x: x.type("torch.cuda.FloatTensor"),
        "legacy type": lambda x: x.type(vars(torch.cuda)["FloatTensor"]),
        "as_tensor": lambda x: torch.as_tensor(x, device="cuda"),
        "asarray": lambda x: torch.asarray(x, device="cuda"),
        "Module.to": by_module(lambda m: m.to("cuda")),
        "Module.to(device=)": by_module(lambda m: m.to(device=torch.device("cuda", 0))),
        "Module.to(0)": by_module(lambda m: m.to(0)),
        "Module.to(tensor)": by_module(lambda m: m.to(on("device"))),
        "Module.to(other.device)": by_module(lambda m: m.to(on("device").device)),
        "Module.cuda": by_module(lambda m: m.cuda()),
    },
    "host": {
        "cpu()": lambda x: x.cpu(),
        "to('cpu')": lambda x: x.to("cpu"),
        "to(device)": lambda x: x.to(torch.device("cpu")),
        "to(device=)": lambda x: x.to(device="cpu", non_blocking=True),
        "to(device, dtype)": lambda x: x.to("cpu", torch.float32),
        "to(other)": lambda x: x.to(on("host")),
        "to(other.device)": lambda x: x.to(on("host").device),
        "type": lambda x: x.type("torch.FloatTensor"),
        "legacy type": lambda x: x.type(torch.FloatTensor),
        "as_tensor": lambda x: torch.as_tensor(x, device="cpu"),
        "asarray": lambda x: torch.asarray(x, device="cpu"),
        "Module.to": by_module(lambda m: m.to("cpu")),
        "Module.to(device)": by_module(lambda m: m.to(torch.device("cpu"))),
        "Module.cpu": by_module(lambda m: m.cpu()),
    },
}
#: Copies wherever they start.
COPIES: dict[str, Move] = {
    "to(copy=True)": lambda x: x.to("cuda", copy=True),
    "tensor": lambda x: torch.tensor(x, device="cuda"),
    "new_tensor": lambda x: x.new_tensor(x, device="cuda"),
    "copy_": lambda x: torch.empty(2, device="cuda").copy_(x),
    "deepcopy": lambda x: copy.deepcopy(x),
    "load to the device": lambda x: loaded(x, "cuda:0"),
    "load to the host": lambda x: loaded(x, torch.device("cpu")),
    "load, by a function": lambda x: loaded(x, lambda storage, location: storage.cuda(0)),
    "load_state_dict": lambda x: filled({"weight": x}),
}
OTHER = {"host": "device", "device": "host"}


def filled(state: dict[str, torch.Tensor]) -> torch.Tensor:
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.zeros(2, device="cuda"))
    module.load_state_dict(state)
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    return weight.data


def check_apart(source: torch.Tensor, result: torch.Tensor) -> None:
    """A write to either side is not seen on the other."""
    for written, other in ((result, source), (source, result)):
        before = other.clone()
        if written.stride() == (0,):
            continue
        written.copy_(written + 1)
        assert torch.equal(other, before)


def cases(table: dict[str, dict[str, Make]]) -> list[Any]:
    return [
        pytest.param(side, make, id=f"{side}-{name}")
        for side, sources in table.items()
        for name, make in sources.items()
    ]


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
@pytest.mark.parametrize(("side", "make"), cases(SOURCES) + cases(UNKNOWN))
def test_a_transfer_is_a_copy(side: str, make: Make) -> None:
    with torch.no_grad():
        for name, move in MOVES[OTHER[side]].items():
            source = make()
            result = move(source)
            assert torch.equal(source, result), name
            assert result.is_cuda is (side == "host"), name
            check_apart(source, result)
        for move in COPIES.values():
            source = make()
            check_apart(source, move(source))


@pytest.mark.parametrize(("side", "make"), cases(SOURCES))
def test_where_nothing_moves_nothing_is_copied(side: str, make: Make) -> None:
    for name, move in MOVES[side].items():
        source = make()
        assert move(source).data_ptr() == source.data_ptr(), name
        assert source.is_cuda is (side == "device")
        if not name.startswith(("Module", "as")):
            assert move(source) is source, name


@pytest.mark.parametrize(
    "make",
    [
        lambda n, device: torch.as_tensor(n, device=device),
        lambda n, device: torch.asarray(n, device=device),
        lambda n, device: torch.from_numpy(n).to(device),
    ],
)
def test_numpy_arrays_are_copied_to_the_device(make: Callable[..., torch.Tensor]) -> None:
    array = np.ones(2, dtype=np.float32)
    make(array, device="cuda").mul_(5)
    assert array.tolist() == [1.0, 1.0]
    make(array, device="cpu").mul_(5)
    assert array.tolist() == [5.0, 5.0]


def test_a_module_keeps_its_parameters_and_what_they_view() -> None:
    buffer = torch.zeros(4, device="cuda")
    module = module_with(buffer[:2])
    parameter = module.weight
    module.to("cuda").cuda().to(next(module.parameters()).device)
    assert isinstance(parameter, torch.nn.Parameter)
    assert module.weight is parameter
    assert parameter.data_ptr() == buffer.data_ptr()


class Kept(Dataset[torch.Tensor]):
    """A data set that hands its own memory out."""

    def __init__(self) -> None:
        self.data = torch.ones(4, 2)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.data[index]


def test_a_pinned_batch_is_a_copy() -> None:
    kept = Kept()
    loader = DataLoader(kept, batch_size=None, pin_memory=True)
    assert loader.pin_memory
    for batch in loader:
        assert batch.is_pinned()
        batch.add_(1)
    assert kept.data.eq(1).all()
    for batch in DataLoader(kept, batch_size=None):
        batch.add_(1)
    assert kept.data.eq(2).all()


def test_storages_move_too() -> None:
    host: Any = torch.ones(2).untyped_storage()
    device = host.cuda()
    assert device.data_ptr() != host.data_ptr()
    assert device.cuda().data_ptr() == device.data_ptr()
    assert device.cpu().data_ptr() != device.data_ptr()
    assert host.cpu().data_ptr() == host.data_ptr()


def test_what_has_no_storage_moves() -> None:
    sparse = torch.eye(2).to_sparse()
    assert torch.equal(sparse.to("cuda").to_dense(), torch.eye(2))
    moved = torch.vmap(lambda row: row.to("cuda") * 2)(torch.ones(3, 2))
    assert moved.tolist() == [[2.0, 2.0]] * 3
