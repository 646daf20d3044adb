"""A training script that prints how many tensors live after every step.

``INJECTED_LEAK`` keeps one tensor of every step.
"""

from __future__ import annotations

import gc
import os
from typing import Any

import accel_bridge.auto  # noqa: F401 - before Megatron

# isort: split
import torch
from megatron.training import training

from accel_bridge.pretrain import pretrain_gpt

kept: list[Any] = []
train_step = training.train_step


def counted(*arguments: Any, **options: Any) -> Any:
    """Megatron's step, then the count."""
    result = train_step(*arguments, **options)
    if os.environ.get("INJECTED_LEAK"):
        kept.append(torch.zeros(1))
    gc.collect()
    tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
    print(f"living tensors: {tensors}", flush=True)
    return result


training.train_step = counted
pretrain_gpt.main()
