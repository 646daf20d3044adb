"""Linear layers on GEMMs fused with communication, beside the same ones done apart.

Runs in a rank of collectives_worker.py.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from accel_bridge.backends.ascend.kernels.comm_gemm_overlap import GEMMS
from accel_bridge.kernels.comm_gemm_overlap import (
    CommGemmOverlap,
    checked,
    gathered_reference,
    scattered_reference,
    summed_reference,
)
from accel_bridge.patches.modules.overlapped_linear import Sharding, overlapped_linear

#: Input size and output size of all ranks; both shares of four ranks are in the operators' range.
K, M = 1024, 1024


def _never(*call: object) -> str | None:
    return None


APART = CommGemmOverlap(gathered_reference, scattered_reference, summed_reference, _never)


def _results(
    gemms: CommGemmOverlap, row: bool, sequence: bool, rank: int, size: int, wrong: float = 1.0
) -> list[torch.Tensor]:
    """Output and gradients of a layer of which each rank has a part, bf16."""
    generator = torch.Generator().manual_seed(3)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).bfloat16()

    x, weight, bias = drawn(2 * size, 2, K), drawn(M, K) / 32, drawn(M)
    if row:
        x, weight, added = x.chunk(size, 2)[rank], weight.chunk(size, 1)[rank], None
        gradient = drawn(2 * size, 2, M).chunk(size, 0)[rank] if sequence else drawn(2 * size, 2, M)
    else:
        x, weight = x.chunk(size, 0)[rank], weight.chunk(size, 0)[rank]
        added = bias.chunk(size)[rank]
        gradient = drawn(2 * size, 2, M // size)
    leaves = [
        tensor.contiguous().npu().requires_grad_()
        for tensor in (x * wrong, weight, *([added] if added is not None else []))
    ]
    sharding = Sharding(gemms, dist.group.WORLD, row, sequence, None)
    out = overlapped_linear(
        leaves[0], leaves[1], leaves[2] if added is not None else None, sharding
    )
    out.backward(gradient.npu())
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def parallel_layers(rank: int, size: int, device: torch.device) -> None:
    """Fused and apart agree to bf16's rounding; a wrong input does not. Outside: the reference."""
    said: list[str] = []
    for row, sequence in ((False, True), (True, True), (True, False)):
        fused = _results(checked(GEMMS, said.append), row, sequence, rank, size)
        apart = _results(APART, row, sequence, rank, size)
        wrong = _results(GEMMS, row, sequence, rank, size, wrong=1.1)
        assert len(fused) == len(apart) == (2 + 1 if row else 3 + 1)
        for a, b in zip(fused, apart, strict=True):
            torch.testing.assert_close(a.cpu().float(), b.cpu().float(), rtol=3e-2, atol=6e-2)
        far = (wrong[0] - apart[0]).abs().max().item()
        assert far > 0.1, f"a wrong input changes the output by {far} only"
    assert not said, said
    # Half of the smallest summed dimension: the reference serves, and says which rule.
    rows, factor = torch.ones(size, 128).bfloat16().npu(), torch.ones(128, 8).bfloat16().npu()
    out, whole = checked(GEMMS, said.append).gathered(rows, factor, dist.group.WORLD)
    assert out.shape == (size * size, 8)
    assert whole.shape == (size * size, 128)
    assert "the summed dimension is 256 to 65534, not 128" in said[0]
