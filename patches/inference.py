"""Inference: what Megatron takes only where a tensor's device is called cuda."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from accel_bridge.patches._factory import has_own_memory, megatron_patch
from accel_bridge.patching import Kind, PatchContext, around
from accel_bridge.patching.host import Host


def launches_triton(host: Host) -> str | None:
    """Megatron's Triton kernels run as they are."""
    return "Triton compiles kernels for this device" if host.features.triton else None


def _add_request(_context: PatchContext, call: Callable[..., Any], prompt: Any) -> Any:
    import torch

    if isinstance(prompt, torch.Tensor) and prompt.dtype == torch.int64:
        return call(prompt=prompt.tolist())
    return call()


def _make_log_probs(context: PatchContext) -> Callable[..., Any]:
    import torch

    original, rows = context.original, context.argument("token_to_request_index")

    class HostIndex(torch.Tensor):
        """An index that says where it is, though the device's tensors are there, too."""

        is_cuda = False

    @functools.wraps(original)
    def log_probs_kernel(*args: Any, **kwargs: Any) -> Any:
        given = rows.get(args, kwargs)
        if given is None:
            return original(*args, **kwargs)
        words, options = rows.put(args, kwargs, given.as_subclass(HostIndex))
        return original(*words, **options)

    return log_probs_kernel


PATCHES = (
    megatron_patch(
        id="inference-prompt",
        target="megatron.core.inference.engines.dynamic_engine:DynamicInferenceEngine.add_request",
        kind=Kind.WRAP,
        uses=("prompt",),
        make=around(_add_request),
        why="it asserts that a prompt's device is called cuda; a list of the same numbers becomes "
        "a tensor on the device",
        removed_when="upstream moves a prompt to the device",
        loses="the dynamic inference engine refuses prompts that are tensors",
        skip_when=has_own_memory,
    ),
    megatron_patch(
        id="inference-cache",
        target="megatron.core.inference.contexts.dynamic_context:triton_append_key_value_cache",
        kind=Kind.ATTRIBUTE,
        make=lambda context: None,
        why="the kernel asserts that its tensors' device is called cuda; without it Megatron "
        "writes keys and values with PyTorch",
        removed_when="upstream asks is_cuda",
        loses="the dynamic inference engine stops at the first token",
        requires="megatron-core>=0.15",
        elsewhere="before 0.15 there is no such kernel",
        skip_when=launches_triton,
    ),
    megatron_patch(
        id="inference-log-probs",
        target="megatron.core.inference.sampling.torch_sampling:TorchSampling.log_probs_kernel",
        kind=Kind.WRAP,
        uses=("token_to_request_index",),
        make=_make_log_probs,
        why="it asserts that an index on the host is none of the device's, which on a CPU every "
        "tensor is",
        removed_when="upstream moves the index to the host",
        loses="the dynamic inference engine gives no processed log probabilities",
        requires="megatron-core>=0.19",
        elsewhere="before 0.19 there is no such function",
        skip_when=has_own_memory,
    ),
)
