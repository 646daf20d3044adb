"""One rank of attention with context parallelism, against attention on the whole sequence.

Run by torchrun with ACCEL_BRIDGE_LIBRARIES=transformer_engine; prints the largest difference of
outputs, gradients and logits for each case, and again (``wrong``) with the two chunks that a rank
holds exchanged.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

import accel_bridge

HEADS, GROUPS, SIZE, VALUE = 4, 2, 8, 4
Tensors = list[torch.Tensor]


def chunks(whole: torch.Tensor, dim: int, wrong: bool) -> torch.Tensor:
    """This rank's two chunks of a sequence."""
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = whole.chunk(2 * size, dim)
    held = [parts[rank], parts[2 * size - 1 - rank]]
    return torch.cat(held[::-1] if wrong else held, dim)


def compare(module: Any, groups: Any, whole: Tensors, cut: Any, **options: Any) -> float:
    """Largest difference between the module on all tokens and on this rank's."""
    leaves = [one.clone().requires_grad_() for one in whole]
    module.set_context_parallel_group(None, None, None)
    output, logit = module(*leaves, **options)
    grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output)
    output.backward(grad)
    local = [cut(one).requires_grad_() for one in whole]
    module.set_context_parallel_group(*groups)
    found, found_logit = module(*local, **options)
    found.backward(cut(grad))
    pairs = [(found, cut(output)), (found_logit, logit)]
    pairs += [(one.grad, cut(leaf.grad)) for one, leaf in zip(local, leaves, strict=True)]
    return max(float((one - other).detach().abs().max()) for one, other in pairs)


def rows(make: Callable[..., Any], wrong: bool) -> Iterator[tuple[str, float]]:
    """Sequences of equal lengths, or padded to them."""
    length = 8 * dist.get_world_size()
    kinds = (
        ("causal", None),
        ("causal", (5, 0)),
        ("no_mask", None),
        ("no_mask", (3, 7)),
        ("padding_causal", None),
    )
    for kind, window in kinds:
        for layout, dim in (("sbhd", 0), ("bshd", 1)):
            for communication in ("p2p", "a2a"):
                torch.manual_seed(0)
                shape = (length, 2) if layout == "sbhd" else (2, length)
                whole = [
                    torch.randn(*shape, heads, size, dtype=torch.float64)
                    for heads, size in ((HEADS, SIZE), (GROUPS, SIZE), (GROUPS, VALUE))
                ]
                module = make(
                    HEADS,
                    (SIZE, VALUE),
                    num_gqa_groups=GROUPS,
                    qkv_format=layout,
                    attn_mask_type=kind,
                    window_size=window,
                    softmax_type="off-by-one",
                    return_max_logit=True,
                )
                ends = torch.tensor([0, length - 5, 2 * length - 9], dtype=torch.int32)
                lengths = {"cu_seqlens_q": ends, "cu_seqlens_kv": ends}
                difference = compare(
                    module,
                    (dist.group.WORLD, None, None, communication),
                    whole,
                    lambda one, dim=dim: chunks(one, dim, wrong),
                    **(lengths if "padding" in kind else {}),
                )
                yield f"{kind} {window} {layout} {communication}", difference


def packed(make: Callable[..., Any], wrong: bool) -> Iterator[tuple[str, float]]:
    """Packed sequences, with and without padding between them."""
    step = 2 * dist.get_world_size()
    room = [3 * step, step, 2 * step]
    padded = torch.tensor([0, *room]).cumsum(0).int()
    for kind, window in (("padding_causal", None), ("padding_causal", (5, 0)), ("padding", None)):
        for gap in (0, 2):
            for communication in ("all_gather", "a2a"):
                torch.manual_seed(0)
                whole = [
                    torch.randn(sum(room), heads, size, dtype=torch.float64)
                    for heads, size in ((HEADS, SIZE), (GROUPS, SIZE), (GROUPS, VALUE))
                ]
                module = make(
                    HEADS,
                    (SIZE, VALUE),
                    num_gqa_groups=GROUPS,
                    qkv_format="thd",
                    attn_mask_type=kind,
                    window_size=window,
                    return_max_logit=True,
                )
                ends = torch.tensor([0, *(one - gap for one in room)]).cumsum(0).int()
                difference = compare(
                    module,
                    (dist.group.WORLD, None, None, communication),
                    whole,
                    lambda one: torch.cat([chunks(part, 0, wrong) for part in one.split(room)]),
                    cu_seqlens_q=ends,
                    cu_seqlens_kv=ends,
                    cu_seqlens_q_padded=padded,
                    cu_seqlens_kv_padded=padded,
                )
                yield f"packed {kind} {window} gap {gap} {communication}", difference


def main() -> None:
    """Every case, the worst rank's difference each."""
    warnings.simplefilter("ignore")
    accel_bridge.activate("cpu", after_import=True)
    from transformer_engine.pytorch import DotProductAttention as make

    dist.init_process_group("gloo")
    for wrong, cases in itertools.product((False, True), (rows, packed)):
        for name, difference in cases(make, wrong):
            worst = torch.tensor(difference)
            dist.all_reduce(worst, op=dist.ReduceOp.MAX)
            if dist.get_rank() == 0:
                print(f"{'wrong ' * wrong}{name}: {float(worst)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
