"""What the launches of all kernels share."""

from __future__ import annotations

import torch
import triton

#: Precisions that the kernels read and write; they compute in float32.
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def power_of_two(size: int) -> int:
    """The next power of two: Triton's block sizes must be powers of two."""
    return int(triton.next_power_of_2(size))


def warps(block: int) -> int:
    """Warps for a program that holds ``block`` elements: 16 elements a thread, 1 to 16 warps."""
    return max(1, min(16, block // 512))


def blocks(size: int, block: int) -> int:
    """Blocks that cover ``size``."""
    return -(-size // block)


def draw_seed(device: torch.device) -> int:
    """A seed for one launch, drawn from the device's current generator, which advances.

    On a GPU the generator's state is its seed and an offset, both known on the host: nothing is
    launched and nothing waits. Megatron's RNG tracker and recomputation switch that state and so
    also the seeds drawn here.
    """
    if device.type != "cuda":
        return int(torch.randint(2**62, (1,)))
    index = torch.cuda.current_device() if device.index is None else device.index
    generator = torch.cuda.default_generators[index]
    offset = generator.get_offset()
    generator.set_offset(offset + 4)
    # Odd multipliers keep neighbouring offsets and neighbouring seeds apart.
    return (generator.initial_seed() * 0x9E3779B97F4A7C15 + offset * 0xD1B54A32D192ED03) % 2**62
