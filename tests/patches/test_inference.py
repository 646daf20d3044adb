"""Inference: prompts that are tensors."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any, cast

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
