"""Runs torch's own operator samples on the (emulated) NPU and on the CPU, and compares them.

Started under ``accel-bridge emulate-ascend``; writes one JSON line for each operator and dtype:
its name, ``passed``, ``different`` or ``refused``, the reason, and the aclnn functions that ran.

The samples are torch's (``torch.testing._internal``), which torch's own devices are tested with.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch_npu  # noqa: F401
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_map_only

#: Random by nature, or without values to compare.
RANDOM = (
    *("bernoulli", "dropout", "empty", "exponential", "geometric", "log_normal", "cauchy"),
    *("multinomial", "new_empty", "normal", "rand", "uniform", "alpha_dropout", "rrelu"),
)
#: Families that no transformer trains with; torch_npu has them, the emulator does not.
FOREIGN = (
    *("linalg.", "fft.", "special.", "sparse.", "signal.", "masked.", "nn.functional.conv"),
    *("nn.functional.max_", "nn.functional.avg", "nn.functional.adaptive", "nn.functional.inter"),
    *("nn.functional.upsample", "nn.functional.grid", "nn.functional.fractional", "torch.ops."),
    *("nn.functional.lp_pool", "nn.functional.unfold", "nn.functional.fold", "stft", "istft"),
    *("nn.functional.ctc", "nn.functional.multi_head", "nn.functional.pdist", "cdist", "svd"),
    *("cholesky", "lu", "geqrf", "ormqr", "pinverse", "triangular", "logdet", "symeig", "lstsq"),
    *("nn.functional.pixel", "nn.functional.channel", "nn.functional.scaled", "jiterator"),
    *("to_sparse", "qr", "polygamma", "igamma", "_segment", "segment_reduce", "complex"),
    *("nn.functional.max_unpool", "ops.", "__rpow__", "unfold", "view_as_complex", "polar"),
    *("nn.functional.affine_grid", "nn.functional.bilinear", "nn.functional.instance_norm"),
    *("nn.functional.batch_norm", "nn.functional.local_resp", "native_batch", "_native_batch"),
    *("_batch_norm", "lgamma", "digamma", "erfinv", "i0", "nextafter", "hash_tensor", "histogram"),
)
#: Samples in float32; the other dtypes take one.
SAMPLES = 4
BIGGEST = 1 << 16


def main() -> int:
    """Run the operators whose names contain a word of the command line, or all."""
    words = sys.argv[2:]
    trace = Path(os.environ["ASCEND_EMULATOR_TRACE"])
    warnings.simplefilter("ignore")
    with open(sys.argv[1], "w") as report:
        for name, dtype, check in checks():
            if words and not any(word in name for word in words):
                continue
            trace.write_text("")
            status, reason = attempt(check)
            torch.npu.synchronize()
            ran = sorted(set(trace.read_text().split()))
            line = {"name": name, "dtype": dtype, "status": status, "reason": reason, "ran": ran}
            report.write(json.dumps(line) + "\n")
            report.flush()
    return 0


def checks() -> Iterator[tuple[str, str, Any]]:
    """Each operator that is of interest, with each dtype to try."""
    for op in op_db:
        name = op.formatted_name if op.variant_test_name else op.name
        if op.name.startswith(FOREIGN) or any(word in op.name for word in RANDOM):
            continue
        supported = op.supported_dtypes("cpu")
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            if dtype in supported:
                yield name, str(dtype).removeprefix("torch."), (op, dtype)


def attempt(check: tuple[Any, torch.dtype]) -> tuple[str, str]:
    """The verdict on one operator in one dtype, over its samples."""
    op, dtype = check
    torch.manual_seed(0)
    gradient = dtype.is_floating_point and op.supports_autograd
    count = 0
    for sample in op.sample_inputs("cpu", dtype, requires_grad=gradient):
        if count == (SAMPLES if dtype == torch.float32 else 1):
            break
        if sum(t.numel() for t in tensors((sample.input, sample.args))) > BIGGEST:
            continue
        count += 1
        arguments = (sample.input, sample.args, sample.kwargs)
        try:
            want = run(op, arguments, "cpu")
        except Exception:  # torch's CPU refuses this sample: nothing to compare with
            continue
        try:
            got = run(op, arguments, "npu")
            torch.npu.synchronize()
        except Exception as error:
            return "refused", str(error).split("\n")[0][:300]
        if problem := difference(got, want):
            return "different", f"sample {count}: {problem}"
    return ("passed", "") if count else ("refused", "no samples")


def run(op: Any, arguments: Any, device: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Results and gradients, on the CPU."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.detach().to(device)
        copy = copy.clone() if device == "cpu" else copy
        return copy.requires_grad_(tensor.requires_grad)

    inputs, args, kwargs = tree_map_only(torch.Tensor, moved, arguments)
    if "device" in kwargs:
        kwargs["device"] = device
    result = op.op(inputs, *args, **kwargs)
    outputs = [t for t in tensors(result) if t.dtype != torch.float64 or device == "cpu"]
    leaves = [t for t in tensors((inputs, args)) if t.requires_grad and t.is_leaf]
    scalars = [t.float().square().sum() for t in outputs if t.requires_grad]
    gradients: list[torch.Tensor] = []
    if leaves and scalars:
        found = torch.autograd.grad(sum(scalars), leaves, allow_unused=True)
        gradients = [g for g in found if g is not None]
    return [t.detach() for t in outputs], gradients


def difference(got: Any, want: Any) -> str:
    """What differs between two runs, or nothing."""
    for what, ours, theirs in zip(("result", "gradient"), got, want, strict=True):
        if len(ours) != len(theirs):
            return f"{what}: {len(ours)} tensors, not {len(theirs)}"
        for one, other in zip(ours, theirs, strict=True):
            if one.dtype != other.dtype or one.shape != other.shape:
                return f"{what}: {one.dtype} {tuple(one.shape)}, not {other.dtype} {tuple(other.shape)}"
            try:
                torch.testing.assert_close(one.cpu(), other, equal_nan=True)
            except AssertionError as error:
                return f"{what}: " + " ".join(str(error).split())[:200]
    return ""


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors in nested lists, tuples and dictionaries."""
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


if __name__ == "__main__":
    sys.exit(main())
