"""vLLM beside a trainer, where its platform has nothing to free.

Its worker on a CPU ignores being put to sleep; only its start refuses the option.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from accel_bridge.patching import Kind, Patch, PatchContext


def _make(context: PatchContext) -> Callable[..., Any]:
    upstream, host = context.original, context.host

    def create_model_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        """As upstream; without a sleep mode, which the platform does not have."""
        platform = sys.modules["vllm.platforms"].current_platform
        if self.enable_sleep_mode and not platform.is_sleep_mode_available():
            self.enable_sleep_mode = False
            host.say_once(
                f"vLLM on {platform.device_type} has no sleep mode: it keeps its memory while the "
                "trainer works"
            )
        return upstream(self, *args, **kwargs)

    return create_model_config


PATCHES = (
    Patch(
        id="vllm-sleep",
        target="vllm.engine.arg_utils:EngineArgs.create_model_config",
        kind=Kind.WRAP,
        make=_make,
        why="on a CPU vLLM refuses sleep modes that trainers ask for",
        upstream="https://github.com/vllm-project/vllm/blob/main/vllm/engine/arg_utils.py",
        removed_when="vLLM starts with a sleep mode on every platform",
        loses="trainers that generate with vLLM (ROLL, NeMo-RL) end at its start on a CPU",
    ),
)
