"""Each group of an optimizer's parameters gets its own rates back from a checkpoint."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from accel_bridge.patches.parameter_groups import PATCHES
from accel_bridge.patching import Argument

#: By which Megatron 0.16 to 0.18 look for a saved group.
KEYS = ("wd_mult", "is_decoupled_lr")
#: The groups of a training with --decoupled-lr 0.1: biases, other weights, embeddings.
RATES = {"bias": (0.0, 1.0), "weight": (1.0, 1.0), "embedding": (1.0, 0.1)}


def groups(factor: float = 1.0) -> list[dict[str, Any]]:
    """As `_get_param_groups` makes them."""
    return [
        {
            "params": [torch.nn.Parameter(torch.zeros(1))],
            "wd_mult": decay,
            "is_decoupled_lr": False,
            "default_config": rate == 1.0,
            "max_lr": rate * factor,
        }
        for decay, rate in RATES.values()
    ]


def key_of(group: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(group[key] for key in KEYS)


def matched(
    current_groups: list[dict[str, Any]], state_dict_groups: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """What `_filter_and_reorder_param_groups` does."""
    saved = {key_of(group): group for group in state_dict_groups}
    return [saved[key_of(group)] for group in current_groups]


def load_state_dict(self: Any, state_dict: dict[str, Any]) -> None:
    """What `DistributedOptimizer.load_state_dict` does."""
    saved = {key_of(group): group for group in state_dict["optimizer"]["param_groups"]}
    inner = self.optimizer.state_dict()["param_groups"]
    made = [{**saved[key_of(group)], "params": group["params"]} for group in inner]
    self.optimizer.load_state_dict({"state": {}, "param_groups": made})


def patched(index: int, upstream: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(upstream)
    context: Any = SimpleNamespace(
        original=upstream, argument=lambda name: Argument.find(signature, name)
    )
    made: Callable[..., Any] = PATCHES[index].make(context)  # type: ignore[assignment]
    return made


def rates(found: list[dict[str, Any]]) -> list[float]:
    # What is saved next must look as without the patch.
    assert not any(group["is_decoupled_lr"] for group in found)
    return [group["max_lr"] for group in found]


@pytest.mark.parametrize(("patch", "expected"), [(False, [1, 0.1, 0.1]), (True, [1, 1, 0.1])])
def test_groups_are_matched_by_their_rates(patch: bool, expected: list[float]) -> None:
    match = patched(0, matched) if patch else matched
    # Another --lr than the saved one is no other group.
    current, saved = groups(factor=3.0), groups()
    assert rates(match(current, saved)) == expected
    assert rates(current) == [3.0, 3.0, pytest.approx(0.3)]
    assert rates(saved) == [1, 1, 0.1]


@pytest.mark.parametrize(("patch", "expected"), [(False, [1, 0.1, 0.1]), (True, [1, 1, 0.1])])
def test_a_distributed_optimizer_takes_each_groups_rates(
    patch: bool, expected: list[float]
) -> None:
    load = patched(1, load_state_dict) if patch else load_state_dict
    distributed = SimpleNamespace(optimizer=torch.optim.SGD(groups(factor=3.0)))
    saved = deepcopy(groups())
    load(distributed, {"optimizer": {"param_groups": saved}})
    assert rates(distributed.optimizer.param_groups) == expected
    assert rates(saved) == [1, 1, 0.1]


def test_groups_of_an_older_checkpoint_are_found_by_their_mark() -> None:
    saved = groups()
    for group in saved:
        group["is_decoupled_lr"] = not group.pop("default_config")
    found = patched(0, matched)(groups(), saved)
    assert [group["max_lr"] for group in found] == [1, 1, 0.1]
