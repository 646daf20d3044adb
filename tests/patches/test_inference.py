"""Inference: prompts that are tensors."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any, cast

import pytest
import torch

from accel_bridge.patches.inference import PATCHES
from accel_bridge.patching import PatchContext


class Engine:
    """What the patch changes of Megatron's dynamic engine."""

    def add_request(self, request_id: int, prompt: Any, sampling_params: Any = None) -> Any:
        return request_id, prompt, sampling_params


def test_a_prompt_of_numbers_becomes_a_list() -> None:
    (patch,) = (one for one in PATCHES if one.id == "inference-prompt")
    upstream = Engine.add_request
    declared = inspect.signature(upstream)
    context = PatchContext(upstream, cast(ModuleType, None), None, None, patch, declared)
    add_request = cast(Any, patch.make(context))
    engine, numbers = Engine(), torch.tensor([3, 1, 4])
    assert add_request(engine, 1, numbers, "greedy") == (1, [3, 1, 4], "greedy")
    assert add_request(engine, 1, prompt=numbers) == (1, [3, 1, 4], None)
    assert add_request(engine, 1, "text") == (1, "text", None)
    # What the engine refuses for another reason stays as it is.
    wrong = numbers.to(torch.int32)
    assert add_request(engine, 1, wrong)[1] is wrong


class Sampling:
    """As Megatron's: it refuses an index of the device."""

    def log_probs_kernel(
        self, logits: torch.Tensor, context: Any, token_to_request_index: Any = None
    ) -> list[float]:
        assert token_to_request_index is None or not token_to_request_index.is_cuda
        return cast("list[float]", logits[token_to_request_index].flatten().tolist())


def test_an_index_on_the_host_is_taken_where_the_host_is_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True))
    (patch,) = (one for one in PATCHES if one.id == "inference-log-probs")
    upstream, index = Sampling.log_probs_kernel, torch.tensor([1, 0, 1])
    with pytest.raises(AssertionError):
        upstream(Sampling(), torch.tensor([2.0, 3.0]), None, index)
    declared = inspect.signature(upstream)
    context = PatchContext(upstream, cast(ModuleType, None), None, None, patch, declared)
    log_probs = cast(Any, patch.make(context))
    assert log_probs(Sampling(), torch.tensor([2.0, 3.0]), None, index) == [3.0, 2.0, 3.0]
    assert log_probs(Sampling(), torch.tensor([2.0]), None) == [2.0]
