"""Random generators where device tensors are host tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from accel_bridge.device import DeviceRedirection, generator_state, set_generator_state
from accel_bridge.device.backend import DeviceSpec

DATA: Any = list(range(32))

#: Work that a CUDA machine does with the host's generator.
HOST_WORK: dict[str, Callable[[], Iterable[Any]]] = {
    "shuffling loader": lambda: DataLoader(DATA, shuffle=True),
    "loader in order": lambda: DataLoader(DATA),
    "loader with workers": lambda: DataLoader(DATA, shuffle=True, num_workers=1),
    "RandomSampler": lambda: RandomSampler(DATA),
    "RandomSampler with replacement": lambda: RandomSampler(DATA, replacement=True),
    "SubsetRandomSampler": lambda: SubsetRandomSampler(DATA),
    "WeightedRandomSampler": lambda: WeightedRandomSampler([1.0] * 32, 8),
    "BatchSampler": lambda: BatchSampler(RandomSampler(DATA), 4, drop_last=False),
    "random_split": lambda: torch.utils.data.random_split(DATA, [16, 16]),
    "drawing collate": lambda: DataLoader(DATA, collate_fn=lambda batch: torch.rand(2)),
}


def draw_on_device() -> list[float]:
    values: list[float] = torch.rand(4, device="cuda").tolist()
    return values


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("work", HOST_WORK)
def test_ranks_without_data_stay_in_step(on_cpu: DeviceRedirection, work: str) -> None:
    """In a tensor-parallel group only the first rank loads data; dropout must not notice."""
    torch.manual_seed(5)
    rank_without_data = draw_on_device()
    torch.manual_seed(5)
    list(HOST_WORK[work]())
    assert draw_on_device() == rank_without_data


def test_the_order_of_data_is_that_of_a_cuda_machine(cpu_spec: DeviceSpec) -> None:
    """It depends on the seed alone, not on what the device drew in between."""
    torch.manual_seed(7)
    expected = [list(RandomSampler(DATA)) for _ in range(2)]
    with DeviceRedirection(cpu_spec):
        torch.manual_seed(7)
        observed = []
        for _ in range(2):
            draw_on_device()
            observed.append(list(RandomSampler(DATA)))
    assert observed == expected
    assert observed[0] != observed[1]


def test_torch_cuda_names_the_device_generator(on_cpu: DeviceRedirection) -> None:
    torch.cuda.manual_seed(11)
    assert torch.cuda.initial_seed() == 11
    state = torch.cuda.get_rng_state(torch.cuda.current_device())
    first = draw_on_device()
    torch.cuda.set_rng_state(state, device="cuda:0")
    assert draw_on_device() == first
    torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all())
    torch.cuda.default_generators[0].set_state(state)
    assert draw_on_device() == first
    set_generator_state(state)
    assert torch.equal(generator_state(), state)
    assert draw_on_device() == first


def test_manual_seed_keeps_its_meaning(cpu_spec: DeviceSpec) -> None:
    generator = torch.manual_seed(3)
    expected = torch.rand(4).tolist()
    with DeviceRedirection(cpu_spec):
        assert torch.manual_seed(3) is generator
        assert torch.random.manual_seed is torch.manual_seed
        assert torch.rand(4).tolist() == expected
        assert torch.initial_seed() == 3
