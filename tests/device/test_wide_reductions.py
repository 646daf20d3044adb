"""Float64 reductions where the backend has none: exact, in place, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from accel_bridge.device import DeviceRedirection, wide_reductions
from accel_bridge.device.backend import DeviceSpec

#: A time in seconds, and one a microsecond later: float32 would make minutes of it.
MINE, OTHER = 1.7e9, 1.7e9 + 1e-6


@pytest.fixture
def narrow(cpu_spec: DeviceSpec, tmp_path: Path) -> Iterator[None]:
    """The redirection for a device whose backend reduces no float64, in a group of one process."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    with DeviceRedirection(replace(cpu_spec, parts=(wide_reductions,))):
        yield
    dist.destroy_process_group()


@pytest.fixture
def second_rank(narrow: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rank that brings ``OTHER``; what is gathered must not be float64."""

    def gather(output: torch.Tensor, mine: torch.Tensor, group: Any = None) -> None:
        assert mine.dtype != torch.float64
        other = torch.full((mine.numel() // 2,), OTHER, dtype=torch.float64)
        output.copy_(torch.cat((mine, other.view(mine.dtype))))

    monkeypatch.setattr(dist, "all_gather_into_tensor", gather)
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 2)


@pytest.mark.usefixtures("second_rank")
@pytest.mark.parametrize(
    ("op", "want"),
    [
        ("SUM", MINE + OTHER),
        ("AVG", (MINE + OTHER) / 2),
        ("PRODUCT", MINE * OTHER),
        ("MIN", MINE),
        ("MAX", OTHER),
    ],
)
def test_every_reduction(op: str, want: float) -> None:
    tensor = torch.full((2, 3), MINE, dtype=torch.float64)
    assert dist.all_reduce(tensor, getattr(dist.ReduceOp, op)) is None
    assert tensor.tolist() == [[want] * 3] * 2


@pytest.mark.usefixtures("second_rank")
def test_strides_and_handles() -> None:
    base = torch.full((4, 3), MINE, dtype=torch.float64)
    work = dist.all_reduce(base.t()[1], async_op=True)
    assert work.wait()
    assert work.is_completed()
    assert base[:, 1].tolist() == [MINE + OTHER] * 4
    assert base[:, 0].tolist() == [MINE] * 4


@pytest.mark.usefixtures("narrow")
def test_bits_cannot_be_reduced() -> None:
    with pytest.raises(ValueError, match="BAND is not defined for float64"):
        dist.all_reduce(torch.ones(1, dtype=torch.float64), dist.ReduceOp.BAND)


@pytest.mark.usefixtures("narrow")
def test_other_dtypes_go_to_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    def unexpected(*arguments: Any, **options: Any) -> None:
        raise AssertionError("float32 was gathered")

    monkeypatch.setattr(dist, "all_gather_into_tensor", unexpected)
    tensor = torch.full((2,), 3.0)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [3.0, 3.0]
