"""Methods of tensors and modules while redirected to the CPU."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from plugin_site import Python

pytestmark = pytest.mark.usefixtures("all_on_cpu")
FORMS = ["cuda", "cuda:1", 1, torch.device("cuda"), torch.device("cuda", 1)]
CPU = torch.device("cpu")


@pytest.mark.parametrize("device", FORMS, ids=repr)
def test_tensors_of_a_subclass(device: Any) -> None:
    class Wrapper(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError

    made = torch.Tensor._make_wrapper_subclass(Wrapper, (2,), device=device)
    assert isinstance(made, Wrapper)
    assert made.device.type == "cpu"
    assert made.cuda() is made  # it is there: a copy would be dispatched


def test_to_keeps_its_other_forms() -> None:
    tensor = torch.ones(2)
    assert tensor.to(torch.float64).dtype == torch.float64
    assert tensor.to(torch.zeros(1, dtype=torch.int64)).dtype == torch.int64
    assert tensor.to("meta").device.type == "meta"


def test_an_expanded_tensor_has_its_own_memory_on_the_device() -> None:
    rows = torch.zeros(3).expand(2, 3).cuda()
    rows[0] += 1
    assert rows.tolist() == [[1.0] * 3, [0.0] * 3]
    column = torch.zeros(2, 3, device="cuda").t()
    assert column.cuda() is column


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.float32, "FloatTensor"),
        (torch.float16, "HalfTensor"),
        (torch.bfloat16, "BFloat16Tensor"),
        (torch.int64, "LongTensor"),
        (torch.bool, "BoolTensor"),
    ],
)
def test_type_names(dtype: torch.dtype, name: str) -> None:
    tensor = torch.ones(2, dtype=dtype, device="cuda")
    legacy = getattr(torch.cuda, name)
    assert tensor.type() == f"torch.cuda.{name}"
    assert isinstance(tensor, legacy)
    assert not isinstance(tensor, torch.cuda.DoubleTensor)
    for form in (f"torch.cuda.{name}", f"torch.{name}", legacy, dtype):
        assert torch.zeros(2, dtype=torch.float64).type(form).dtype == dtype
    assert legacy([1, 0]).tolist() == torch.tensor([1, 0], dtype=dtype).tolist()
    assert legacy(2, 3).shape == (2, 3)


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
def test_default_tensor_type() -> None:
    try:
        for form in (torch.cuda.DoubleTensor, "torch.cuda.DoubleTensor"):
            torch.set_default_dtype(torch.float32)
            torch.set_default_tensor_type(form)
            assert torch.zeros(1).dtype == torch.float64
            assert torch.zeros(1).is_cuda
    finally:
        torch.set_default_tensor_type(torch.FloatTensor)
    assert not torch.zeros(1).is_cuda


def test_is_cuda() -> None:
    assert torch.ones(2, device="cuda").is_cuda
    assert not torch.ones(2, device="meta").is_cuda
    assert not torch.ones(2, device="meta").type().startswith("torch.cuda")
    assert torch.nn.Parameter(torch.ones(2)).cuda().is_cuda
    assert not torch.nn.Parameter(torch.ones(2)).is_cuda
    assert torch.ones(2).cuda().get_device() == torch.cuda.current_device()


@pytest.mark.parametrize(
    "map_location",
    [
        None,
        "cuda",
        "cuda:1",
        torch.device("cuda", 1),
        {"cpu": "cuda:0"},
        "cpu",
        lambda storage, location: storage.cuda(0),
        lambda storage, location: None,
    ],
    # A function's repr holds its address; two test processes must agree on the names.
    ids=lambda value: "function" if callable(value) else repr(value),
)
def test_load(map_location: Any) -> None:
    file = io.BytesIO()
    torch.save({"a": torch.arange(3)}, file)
    file.seek(0)
    loaded = torch.load(file, map_location=map_location)
    assert loaded["a"].device == CPU
    assert loaded["a"].tolist() == [0, 1, 2]


def test_load_of_a_file_from_a_cuda_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:5")
        torch.save(torch.arange(3), file)
    file.seek(0)
    assert b"cuda:5" in file.getvalue()
    assert torch.load(file).tolist() == [0, 1, 2]


def test_checkpointed_dropout_draws_the_same_mask() -> None:
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(1000, device="cuda", requires_grad=True)
    y = checkpoint(torch.nn.Dropout(0.5), x, use_reentrant=False)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())


@pytest.mark.parametrize("first", [True, False])
def test_a_sharded_tensor_answers_whichever_was_imported_first(python: Python, first: bool) -> None:
    """It notes its answer for the property that it finds when it is imported."""
    sharded = "from torch.distributed._shard.sharded_tensor import init_from_local_shards as make"
    bridge = "import accel_bridge.auto"
    program = "\n".join(
        [
            *((sharded, bridge) if first else (bridge, sharded)),
            "import torch",
            "from torch.distributed._shard.sharded_tensor import Shard, ShardMetadata",
            "torch.distributed.init_process_group('gloo', rank=0, world_size=1,",
            "                                     store=torch.distributed.HashStore())",
            "place = ShardMetadata([0, 0], [2, 2], 'rank:0/cpu')",
            "print(make([Shard(torch.ones(2, 2), place)], 2, 2).device)",
        ]
    )
    done = python("-c", program, ACCEL_BRIDGE_BACKEND="cpu")
    assert done.stdout.splitlines()[-1:] == ["cpu"], done.stderr
