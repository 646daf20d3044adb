"""Arithmetic and memory traffic of the operations of a rehearsed step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor

from accel_bridge.apps.rehearse.estimate import COPIES, HOST

aten: Final = torch.ops.aten

_GEMMS: Final = {
    aten.mm.default: (0, 1),
    aten.mm.out: (0, 1),
    aten.mm.dtype: (0, 1),
    aten.bmm.default: (0, 1),
    aten.bmm.out: (0, 1),
    aten.addmm.default: (1, 2),
    aten.addmm.out: (1, 2),
    aten.addmm_.default: (1, 2),
    aten.addmm.dtype: (1, 2),
    aten.addmm.dtype_out: (1, 2),
    aten.baddbmm.default: (1, 2),
    aten.baddbmm_.default: (1, 2),
    aten._scaled_mm.default: (0, 1),
    aten._scaled_mm.out: (0, 1),
    aten._grouped_mm.default: (0, 1),
    aten._scaled_grouped_mm.default: (0, 1),
}
#: What a kernel's metadata call its operations -> kind.
_BY_BITS: Final = {"flops8": "float8 matmul", "flops16": "matmul", "flops32": "float32 matmul"}
#: Neither read nor write anything.
_FREE: Final = frozenset(
    {
        *("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "detach"),
        *("_unsafe_view", "lift_fresh", "set_", "resize_"),
    }
)


#: Kind of kernel, or else operation: [calls, operations, bytes].
Rows = dict[str, list[int]]


def less(rows: Rows, others: Rows) -> Rows:
    """What was added to ``others``."""
    none = [0, 0, 0]
    pairs = ((kind, zip(row, others.get(kind, none), strict=True)) for kind, row in rows.items())
    found = {kind: [a - b for a, b in pair] for kind, pair in pairs}
    return {kind: row for kind, row in found.items() if any(row)}


@dataclass
class Work:
    """Sums of one step, of whole numbers: what is counted many times is then exact."""

    kinds: Rows = field(default_factory=dict)

    def rows(self) -> Rows:
        """A copy."""
        return {kind: list(row) for kind, row in self.kinds.items()}

    def again(self, rows: Rows, times: int) -> None:
        """The same once more, or several times."""
        for kind, row in rows.items():
            mine = self.kinds.setdefault(kind, [0, 0, 0])
            mine[:] = (a + b * times for a, b in zip(mine, row, strict=True))

    def add(self, kind: str, operations: int, traffic: int) -> None:
        """One kernel."""
        row = self.kinds.setdefault(kind, [0, 0, 0])
        row[0] += 1
        row[1] += operations
        row[2] += traffic

    def launch(self, facts: Mapping[str, Any], traffic: int) -> None:
        """One kernel of Triton's.

        :param facts: its ``launch_metadata``, which names its arithmetic by the bits of a number.
        """
        for name, kind in _BY_BITS.items():
            if name in facts:
                self.add(kind, facts[name], traffic)
                return
        self.add("Triton's kernels", 0, traffic)

    def operation(
        self, func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
    ) -> bool:
        """An operation of torch's; whether it is a GEMM."""
        places = _GEMMS.get(func)
        if places is not None:
            left, right = args[places[0]], args[places[1]]
            count = 2 * left.numel() * right.shape[-1]
            narrow = left.element_size() == 1
            kind = "float8 matmul" if narrow else "matmul"
            if left.dtype == torch.float32:
                kind = "float32 matmul"
            result = out if isinstance(out, torch.Tensor) else left
            self.add(kind, count, _size(left) + _size(right) + _size(result))
            return True
        if "attention" in name:
            names = (one.name for one in func._schema.arguments)
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            if {"query", "key", "value"} <= given.keys():
                self._attention(name, given)
                return False
        if func.namespace != "aten" or func.is_view or name in _FREE:
            return False
        tensors = []
        for one in (*args, out) if not isinstance(out, tuple) else (*args, *out):
            many = one if isinstance(one, (list, tuple)) else (one,)
            tensors += [tensor for tensor in many if isinstance(tensor, torch.Tensor)]
        kind, traffic = "optimizer" if "adam" in name else name, sum(map(_size, tensors))
        here, there = 0, 0
        for one in tensors:
            if type(one) is FakeTensor and one.numel() > 1:
                there += _size(one) * (one.fake_device.type == "cpu")
                here += _size(one) * (one.fake_device.type != "cpu")
        if there:
            kind, traffic = (COPIES, min(here, there)) if here else (HOST, traffic)
        self.add(kind, 0, traffic)
        return False

    def _attention(self, name: str, given: Mapping[str, Any]) -> None:
        backward = "backward" in name
        query, key, value = (given[one] for one in ("query", "key", "value"))
        if name.startswith("_flash_attention"):  # [b, s, n, d], or [t, n, d]
            tokens, heads, width = query.shape[-3:]
            batch = query.shape[0] if query.dim() == 4 else 1
            longest = given["max_k"]
        else:  # [b, n, s, d]
            batch, heads, tokens, width = query.shape
            longest = key.shape[-2]
        # Twice the keys that a query sees, on average.
        seen = longest if given.get("is_causal") else 2 * longest
        left, right = (given.get(f"window_size_{side}") for side in ("left", "right"))
        if left is not None and left >= 0:
            seen = min(seen, 2 * (left + 1 + max(right or 0, 0)))
        count = batch * heads * tokens * seen * (width + value.shape[-1])
        self.add(
            "attention", count * (5 if backward else 2) // 2, sum(map(_size, (query, key, value)))
        )


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def temporary(name: str, args: Sequence[Any]) -> int:
    """Bytes that a kernel of torch's takes for itself while it runs, beside its results.

    FlashAttention-2's backward pass (``mha_bwd``) sums dq in float32, and dk, dv for every query
    head where heads share keys; cuDNN's likewise.
    """
    if "attention" not in name or "backward" not in name:
        return 0
    query, key, value = args[1:4]
    if name.startswith("_flash_attention"):
        *_, tokens, heads, width = query.shape
        batch = query.shape[0] if query.dim() == 4 else 1
        groups, keys = key.shape[-2], key.shape[-3]
    else:
        batch, heads, tokens, width = query.shape
        groups, keys = key.shape[1], key.shape[2]
    padded = math.ceil(tokens / 128) * 128
    size = batch * heads * padded * (math.ceil(width / 32) * 32 * 4 + 4)
    if groups != heads:
        size += batch * heads * keys * (width + value.shape[-1]) * query.element_size()
    return int(size)
