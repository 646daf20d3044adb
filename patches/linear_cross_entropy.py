"""Output layer and loss in one kernel, which never has the logits of all tokens."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from accel_bridge.patches._factory import REQUIRES, megatron_patch, unless_faster
from accel_bridge.patches._variables import FUSED_OUTPUT
from accel_bridge.patching import Kind, PatchContext
from accel_bridge.patching.host import Host
from accel_bridge.process import log

#: What decides, beside the model, whether somebody reads logits.
_READ: Final = (
    *("labels", "loss_mask", "output_processor", "runtime_gather_output"),
    *("inference_context", "inference_params"),
)


def _make(context: PatchContext) -> Callable[..., Any]:
    from accel_bridge.kernels import LINEAR_CROSS_ENTROPY
    from accel_bridge.patches.modules import output_loss

    upstream = context.original
    kernel = context.host.kernel(LINEAR_CROSS_ENTROPY)
    always = FUSED_OUTPUT.read() == "on"
    read = {
        name: argument
        for name in _READ
        if (argument := context.optional_argument(name)) is not None
    }

    @functools.cache
    def say_once(line: str) -> None:
        log.say(line, anywhere=True)

    def forward(*args: Any, **kwargs: Any) -> Any:
        """Upstream's model; between its output layer and its loss are no logits."""
        given = {name: argument.get(args, kwargs) for name, argument in read.items()}
        if given["labels"] is None or output_loss.reason_against(args[0], given) is not None:
            return upstream(*args, **kwargs)
        mask = given.get("loss_mask")
        with output_loss.Fused(args[0], kernel, mask, always, say_once):
            return upstream(*args, **kwargs)

    return forward


def _switched_off(host: Host) -> str | None:
    if FUSED_OUTPUT.read() == "off":
        return f"{FUSED_OUTPUT.name}=off"
    return unless_faster("linear_cross_entropy")(host)


def _patch(id: str, target: str, requires: str = REQUIRES) -> Any:
    return megatron_patch(
        id=id,
        target=f"megatron.core.models.{target}",
        kind=Kind.WRAP,
        uses=("labels",),
        make=_make,
        why="the logits of all tokens are a step's largest tensor with a long sequence and a large "
        "vocabulary; nobody reads them but the loss",
        removed_when="upstream computes output layer and loss in chunks on every device",
        loses="the memory of the logits: tokens x vocabulary x 2 bytes",
        skip_when=_switched_off,
        kernels=("linear_cross_entropy",),
        requires=requires,
    )


PATCHES = (
    _patch("linear-loss", "gpt.gpt_model:GPTModel.forward"),
    _patch(
        "linear-loss-hybrid",
        "mamba.mamba_model:MambaModel.forward",
        "megatron-core>=0.12,<0.18",
    ),
    _patch("linear-loss-hybrid", "hybrid.hybrid_model:HybridModel.forward", "megatron-core>=0.18"),
)
