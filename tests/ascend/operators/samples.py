"""Runs torch's own operator samples on the emulated NPU and on the CPU, and compares them.

Started under ``accel-bridge emulate-ascend`` with the report's file and, optionally, operators'
names. The samples are those that torch tests its own devices with (``torch.testing._internal``).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch_npu  # noqa: F401
from comparison import Report, difference, tensors
from names import NOT_EMPTY, OPERATORS
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core
from torch.utils._pytree import tree_map_only

#: Samples in float32; the other dtypes, and forms that work in place, take one.
SAMPLES = 12
#: Of bigger samples the CPU would take seconds.
BIGGEST = 1 << 14


def main() -> int:
    """Run the operators that are named on the command line, or all of the list."""
    names = sys.argv[2:] or OPERATORS
    found = {(op.formatted_name if op.variant_test_name else op.name): op for op in op_db}
    warnings.simplefilter("ignore")
    for module in (common_utils, core):  # torch looks for a TestCase that calls: 80% of the time
        vars(module)["extract_test_fn"] = lambda: None
    with open(sys.argv[1], "w") as stream:
        report = Report(stream)
        for name in names:
            op = found[name]
            for dtype in (torch.float32, torch.bfloat16, torch.int64):
                if dtype not in op.supported_dtypes("cpu"):
                    continue
                label = f"{name}-{str(dtype).removeprefix('torch.')}"
                report.run(label, lambda op=op, dtype=dtype: compare(op, dtype))  # type: ignore[misc]
                if op.inplace_variant is not None and dtype != torch.bfloat16:
                    report.run(
                        f"{label}-in_place",
                        lambda op=op, dtype=dtype: compare_in_place(op, dtype),  # type: ignore[misc]
                    )
    return 0


def samples(op: Any, dtype: torch.dtype, gradient: bool) -> Iterator[Any]:
    """Small samples of an operator, as (input, args, kwargs)."""
    torch.manual_seed(0)
    for sample in op.sample_inputs("cpu", dtype, requires_grad=gradient):
        sizes = [t.numel() for t in tensors((sample.input, sample.args))]
        if sum(sizes) <= BIGGEST and not (op.name in NOT_EMPTY and 0 in sizes):
            yield sample.input, sample.args, sample.kwargs


def compare(op: Any, dtype: torch.dtype) -> str:
    """Results and gradients of an operator's first samples."""
    most = SAMPLES if dtype == torch.float32 else 1
    count = 0
    for arguments in samples(op, dtype, dtype.is_floating_point and op.supports_autograd):
        try:
            want = run(op.op, arguments, "cpu")
        except Exception:  # torch's CPU refuses this sample: nothing to compare with
            continue
        if problem := difference(run(op.op, arguments, "npu"), want):
            return f"sample {count}: {problem}"
        count += 1
        if count == most:
            break
    assert count, "there was no sample"
    return ""


def compare_in_place(op: Any, dtype: torch.dtype) -> str:
    """What the input is after the form that writes into it, for a sample that allows it."""
    for arguments in samples(op, dtype, False):
        changed = []
        for device in ("cpu", "npu"):
            tensor, args, kwargs = moved(arguments, device)
            try:
                op.inplace_variant(tensor, *args, **kwargs)
            except RuntimeError:
                if device == "cpu":  # e.g. the result is wider than the input
                    break
                raise
            changed.append(tensor)
        else:
            return difference(changed[1], changed[0])
    return ""


def moved(arguments: Any, device: str) -> Any:
    """A copy of a sample on a device, strides kept."""

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        twin = tensor.detach().to(device)
        twin = twin.clone() if device == "cpu" else twin
        return twin.requires_grad_(tensor.requires_grad)

    value, args, kwargs = tree_map_only(torch.Tensor, copy, arguments)
    if "device" in kwargs:
        kwargs = {**kwargs, "device": device}
    return value, args, kwargs


def run(function: Any, arguments: Any, device: str) -> tuple[list[torch.Tensor], Any]:
    """Results, and gradients of the sum of their squares."""
    value, args, kwargs = moved(arguments, device)
    outputs = tensors(function(value, *args, **kwargs))
    leaves = [t for t in tensors((value, args)) if t.requires_grad and t.is_leaf]
    scalars = [t.float().square().sum() for t in outputs if t.requires_grad]
    gradients: Any = ()
    if leaves and scalars:
        gradients = torch.autograd.grad(sum(scalars), leaves, allow_unused=True)  # type: ignore[arg-type]
    return [t.detach() for t in outputs], gradients


if __name__ == "__main__":
    sys.exit(main())
