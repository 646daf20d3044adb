"""Child process of ``test_schemas``: our kernels' calls on the real torch_npu, without a device.

    python -m ascend.schema_runner SITE [--inject]

Runs every case of the policy on meta tensors through the NPU's kernels. Each call is checked
against the operator's registered schema by the dispatcher, and computed by its Meta kernel where
there is one; the results' shapes and dtypes are compared with the references'. Prints one JSON
object: calls by operator, problems, schemas. ``--inject`` makes the kernels' calls wrong.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

#: Operators whose Meta kernel asks for a device; their results are made here, after the sequence.
NO_META = ("npu_fusion_attention",)
#: Inputs whose values the kernels read.
ON_HOST = ("cu_seqlens_q", "cu_seqlens_kv", "tokens_per_expert")


def forget_allocator_keys(torch_directory: Path) -> None:
    """Empty torch's set of allocator options, so that torch_npu can register its own.

    A CUDA build has registered one of the same name, and a second aborts the process. The set is a
    libstdc++ ``unordered_set``: buckets, their number, first node, number of elements.
    """
    library = ctypes.CDLL(str(torch_directory / "lib" / "libc10.so"))
    keys = library._ZN3c1016CachingAllocator26AcceleratorAllocatorConfig14getMutableKeysB5cxx11Ev
    keys.restype = ctypes.c_void_p
    words = (ctypes.c_size_t * 4).from_address(keys())
    ctypes.memset(words[0], 0, ctypes.sizeof(ctypes.c_size_t) * words[1])
    words[2] = words[3] = 0


def run_cases(inject: bool) -> dict[str, Any]:
    """Every case on meta tensors; torch_npu is imported."""
    import torch
    from case_sample import sample
    from torch.utils._python_dispatch import TorchDispatchMode

    from accel_bridge.apps.parity._case import as_arguments
    from accel_bridge.apps.parity._cases import all_cases
    from accel_bridge.backends.ascend.kernels import KERNELS
    from accel_bridge.kernels import CONTRACTS
    from accel_bridge.kernels.cases import convert

    calls: Counter[str] = Counter()
    computed: Counter[str] = Counter()

    class Recorder(TorchDispatchMode):
        """Counts the calls, and stands in where a Meta kernel wants a device."""

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = func._schema.name
            if name.startswith("npu::") or name == "aten::_fused_adamw_":
                calls[name] += 1
            if name.removeprefix("npu::") in NO_META:
                query, heads, layout = args[0], args[3], args[4]
                batch, length = _batch_and_length(query, layout)
                sums = query.new_empty(batch, heads, length, 8, dtype=torch.float32)
                return torch.empty_like(query), sums, sums, sums.new_empty(0), 0, 0, 0
            result = func(*args, **(kwargs or {}))
            if name in calls:
                computed[name] += 1
            return result

    def outcome(function: Any, inputs: dict[str, Any], gradients: tuple[str, ...]) -> Any:
        leaves = [inputs[name].requires_grad_() for name in gradients]
        result = function(**as_arguments(case.contract, inputs))
        results = [result] if isinstance(result, torch.Tensor) else list(result or ())
        if leaves:
            results += torch.autograd.grad(results[0].sum(), leaves)
        return [(list(part.shape), str(part.dtype)) for part in results]

    wrong = {
        "swiglu": lambda input, bias=None: torch.ops.npu.npu_swiglu(input, axis=-1),
        "rms_norm": lambda input, weight, **options: torch.ops.npu.npu_rms_norm(input, weight)[1],
    }
    problems = []
    for case in sample(all_cases(), 7):
        kernel = KERNELS.get(CONTRACTS[case.contract])
        if kernel is None or kernel.is_reference:
            continue
        # torch_npu's gradients are its own; those of grouped GEMMs are ours.
        gradients = case.gradients if case.contract == "grouped_matmul" else ()

        def inputs() -> dict[str, Any]:
            made = case.inputs()  # noqa: B023 - called at once
            return {
                name: value if name in ON_HOST else convert(value, device="meta")
                for name, value in made.items()
            }

        if kernel.supports(**as_arguments(case.contract, inputs())) is not None:
            continue
        function = wrong.get(case.contract, kernel.function) if inject else kernel.function
        try:
            with Recorder():
                found = outcome(function, inputs(), gradients)
            expected = outcome(CONTRACTS[case.contract].reference, inputs(), gradients)
            if found != expected:
                problems.append(f"{case.contract} {case.name}: {found}, expected {expected}")
        except Exception as error:  # whatever the dispatcher or a Meta kernel objects to
            problems.append(f"{case.contract} {case.name}: {error!r}"[:400])
    names = [name.removeprefix("npu::") for name in calls if name.startswith("npu::")]
    schemas = {name: str(getattr(torch.ops.npu, name).default._schema) for name in names}
    return {"calls": calls, "computed": computed, "problems": problems, "schemas": schemas}


def _batch_and_length(query: Any, layout: str) -> tuple[int, int]:
    places = {"SBH": (1, 0), "BSH": (0, 1), "BSND": (0, 1), "BNSD": (0, 2)}
    if layout == "TND":
        return 1, query.shape[0]
    batch, length = places[layout]
    return query.shape[batch], query.shape[length]


def main(site: str, inject: bool) -> None:
    """Load torch_npu from ``site`` and print what its operators say to our calls."""
    sys.path.append(site)
    import torch

    forget_allocator_keys(Path(torch.__path__[0]))
    import torch_npu  # noqa: F401

    print(json.dumps(run_cases(inject)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], "--inject" in sys.argv)
    # Nothing of the substitute libraries runs at the end.
    os._exit(0)
