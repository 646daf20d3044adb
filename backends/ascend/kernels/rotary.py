"""Rotary position embedding on ``npu_rotary_mul``."""

from __future__ import annotations

from typing import Final

import torch
from torch._subclasses import FakeTensor
from torch.utils.weak import WeakTensorKeyDictionary

from accel_bridge.backends.ascend import limits
from accel_bridge.kernels import ROTARY

#: Sets of dimensions (before the last) along which cos and sin may vary, by rotary mode:
#: [S, 1, 1, D] and similar; in half mode also those with the batch, or all of them.
_VARYING: Final = {
    "interleave": (frozenset[int](), frozenset({0}), frozenset({1}), frozenset({2})),
    "half": (
        frozenset[int](),
        frozenset({0}),
        frozenset({1}),
        frozenset({2}),
        frozenset({0, 1}),
        frozenset({0, 2}),
        frozenset({0, 1, 2}),
    ),
}

#: Whether a tensor's values are within [-1, 1]: (version, answer), while it lives.
_IN_RANGE: Final = WeakTensorKeyDictionary()


def rotary(
    input: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    interleaved: bool = False,
) -> torch.Tensor:
    """The contract ``rotary``."""
    size = cos.shape[-1]
    rotated: torch.Tensor = torch.ops.npu.npu_rotary_mul(
        input[..., :size],
        cos.to(input.dtype),
        sin.to(input.dtype),
        "interleave" if interleaved else "half",
    )
    return rotated if size == input.shape[-1] else torch.cat((rotated, input[..., size:]), dim=-1)


def _supports(
    input: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, interleaved: bool = False
) -> str | None:
    mode = "interleave" if interleaved else "half"
    rules = limits.here()
    if found := rules.dtype_objection("npu_rotary_mul", input):
        return found
    if input.dim() not in (3, 4) or not input.numel():
        return f"npu_rotary_mul: 3 or 4 dimensions and not empty, not {list(input.shape)}"
    if cos.shape != sin.shape or cos.dim() != input.dim():
        return f"npu_rotary_mul: cos and sin have as many dimensions as the input's {input.dim()}"
    if found := rules.objection("npu_rotary_mul", ("size", cos.shape[-1])):
        return found
    varying = frozenset(dim for dim, length in enumerate(cos.shape[:-1]) if length > 1)
    if varying not in _VARYING[mode]:
        return f"npu_rotary_mul: {mode} does not take cos of shape {list(cos.shape)}"
    sides = [length for dim, length in enumerate(input.shape[:-1]) if dim not in varying]
    if interleaved:
        product = 1
        for length in sides:
            product *= length
        found = rules.objection("npu_rotary_mul", ("product", product))
    else:
        found = rules.objection("npu_rotary_mul", *(("side", length) for length in sides))
    if found is not None:
        return found
    if not (_in_range(cos) and _in_range(sin)):
        return "npu_rotary_mul: cos and sin must be within [-1, 1]; they include a scale above 1"
    return None


def _in_range(angles: torch.Tensor) -> bool:
    """Whether all values are within [-1, 1]; waits for the device once per tensor."""
    if angles.device.type == "meta" or isinstance(angles, FakeTensor):
        return True
    known = _IN_RANGE.get(angles)
    if known is None or known[0] != angles._version:
        known = (angles._version, bool(angles.detach().abs().amax() <= 1.0))
        _IN_RANGE[angles] = known
    return bool(known[1])


KERNELS: Final = (
    ROTARY.kernel(rotary, "one pass instead of five", _supports, "torch_npu.npu_rotary_mul"),
)
