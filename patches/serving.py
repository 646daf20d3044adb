"""vLLM on a CPU, beside a trainer.

Its worker there ignores being put to sleep; only its start refuses the option. Its linear layers
multiply by oneDNN's copy of a weight and drop the weight, which the trainer then cannot update.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from accel_bridge.patching import Kind, Patch, PatchContext, before


def _awake(context: PatchContext, arguments: Any) -> None:
    """As upstream; without a sleep mode, which the platform does not have."""
    platform = sys.modules["vllm.platforms"].current_platform
    if arguments.enable_sleep_mode and not platform.is_sleep_mode_available():
        arguments.enable_sleep_mode = False
        context.host.say_once(
            f"vLLM on {platform.device_type} has no sleep mode: it keeps its memory while the "
            "trainer works"
        )


def _make_updatable(context: PatchContext) -> Callable[..., None]:
    import torch

    def dispatch_cpu_unquantized_gemm(layer: Any, remove_weight: bool) -> None:
        """PyTorch's product, which reads the layer's weight each time."""
        layer.cpu_linear = torch.nn.functional.linear

    return dispatch_cpu_unquantized_gemm


PATCHES = (
    Patch(
        id="vllm-sleep",
        target="vllm.engine.arg_utils:EngineArgs.create_model_config",
        kind=Kind.WRAP,
        make=before(_awake),
        why="on a CPU vLLM refuses sleep modes that trainers ask for",
        upstream="https://github.com/vllm-project/vllm/blob/main/vllm/engine/arg_utils.py",
        removed_when="vLLM starts with a sleep mode on every platform",
        loses="trainers that generate with vLLM (ROLL, NeMo-RL) end at its start on a CPU",
        uses=("self",),
    ),
    Patch(
        id="vllm-weights",
        target="vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm",
        kind=Kind.REPLACE,
        parameters=("layer", "remove_weight"),
        make=_make_updatable,
        why="on a CPU vLLM drops weights that it has packed: a trainer cannot update them",
        upstream="https://github.com/vllm-project/vllm/blob/main/vllm/model_executor/layers/utils.py",
        removed_when="vLLM on a CPU keeps weights, or loads them again",
        loses="after its first step a trainer ends at an update of vLLM's weights",
    ),
)
