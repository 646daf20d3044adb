"""Upstream's tool gpt_hybrid_conversion.py, between checkpoints of GPT and of HybridModel.

It takes the weights of every layer to have its number. GPT's checkpoints hold the layers of one
weight as one tensor, with the layer as its first dimension, and from Megatron 0.19 on arguments
and counters are an object of the checkpoint, no longer a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from accel_bridge.patches._factory import DISTRIBUTION, SOURCE
from accel_bridge.patching import Kind, Patch, PatchContext, around

_LAYERS: Final = "decoder.layers."
_NUMBERED: Final = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
#: The last norm of GPT; Hybrid calls it final_norm.
_GPT_NORM: Final = "decoder.final_layernorm."
#: The format whose layers may be one tensor.
_FORMAT: Final = "torch_dist"


def _load(context: PatchContext, call: Callable[[], Any], directory: str) -> Any:
    """As upstream, with a number for each layer, and with the arguments of the training."""
    module: Any = context.module
    weights, common, prefix, backend, iteration = call()
    if backend == _FORMAT:
        from megatron.core.dist_checkpointing.serialization import load_common_state_dict

        weights = type(weights)(_apart(weights))
        where, _ = module.resolve_checkpoint_subdir(directory)
        common = common or load_common_state_dict(where)
    return weights, common, prefix, backend, iteration


def _save(_context: PatchContext, call: Callable[..., Any], weights: Any, backend: str) -> Any:
    """As upstream, with GPT's layers in one tensor for each weight."""
    if backend == _FORMAT and any(name.startswith(_GPT_NORM) for name in weights):
        return call(model_state_dict=type(weights)(_together(weights)))
    return call()


def _apart(weights: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The layers of a weight that is stored as one tensor, each by its number."""
    for name, tensor in weights.items():
        if name.startswith(_LAYERS) and not _NUMBERED.match(name):
            rest = name.removeprefix(_LAYERS)
            for number, layer in enumerate(tensor.unbind()):
                yield f"{_LAYERS}{number}.{rest}", layer
        else:
            yield name, tensor


def _together(weights: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The inverse: every layer of GPT has the same weights."""
    import torch

    layers: dict[str, dict[int, Any]] = {}
    for name, tensor in weights.items():
        if numbered := _NUMBERED.match(name):
            layers.setdefault(numbered[2], {})[int(numbered[1])] = tensor
        else:
            yield name, tensor
    for rest, tensors in layers.items():
        yield f"{_LAYERS}{rest}", torch.stack([tensors[number] for number in sorted(tensors)])


def _patch(what: str, **fields: Any) -> Patch:
    return Patch(
        id=f"conversion-{what}",
        target=f"dist_checkpoint_io:{what}_dist_checkpoint_full",
        kind=Kind.WRAP,
        upstream=f"{SOURCE}/tools/checkpoint/dist_checkpoint_io.py",
        requires=f"{DISTRIBUTION}>=0.18",
        elsewhere="Megatron 0.17 and earlier have no such tool",
        optional=True,  # a wheel has no tools
        **fields,
    )


PATCHES = (
    _patch(
        "load",
        make=around(_load),
        why="the tool looks for numbered layers, which a GPT's torch_dist checkpoint does not "
        "have, and since 0.19 for a file common.pt that no checkpoint has",
        removed_when="upstream's tool reads what upstream's training writes",
        loses="gpt_hybrid_conversion.py says that a GPT checkpoint has 0 layers; what it converts "
        "to GPT has no arguments and does not load",
        uses=("load_dir",),
    ),
    _patch(
        "save",
        make=around(_save),
        why="GPT loads the layers of one weight as one tensor; the tool writes them by number",
        removed_when="upstream's tool writes what GPT loads",
        loses="what gpt_hybrid_conversion.py converts to GPT lacks every layer's weights",
        uses=("model_state_dict", "backend"),
    ),
)
