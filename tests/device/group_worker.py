"""Run by torchrun in two processes: a script that only ever says nccl and cuda.

Nothing in it knows of accel_bridge, except that the first lines put the redirection in force.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable

import torch

from accel_bridge.backends.cpu import CpuBackend
from accel_bridge.device import DeviceRedirection

_spec = CpuBackend().device()
assert _spec is not None
DeviceRedirection(_spec).apply()

import torch.distributed as dist  # noqa: E402 - the script begins here

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool)


def all_reduce(rank: int, device: torch.device, group: dist.ProcessGroup) -> None:
    for dtype in DTYPES:
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
            tensor = torch.full((3,), rank, device=device).to(dtype)
            dist.all_reduce(tensor, op=op, group=group)
            assert tensor.tolist() == [1, 1, 1], (dtype, op, tensor)


def averages(rank: int, device: torch.device, group: dist.ProcessGroup) -> None:
    average = dist.ReduceOp.AVG
    tensor = torch.full((4,), float(rank + 1), device=device)
    part = torch.empty(2, device=device)
    dist.reduce_scatter_tensor(part, tensor, op=average, group=group, async_op=True).wait()
    assert part.tolist() == [1.5, 1.5]
    assert tensor.tolist() == [rank + 1.0] * 4
    with dist._coalescing_manager(group, async_ops=True) as manager:
        dist.all_reduce(tensor, average, group, async_op=True)
    manager.wait()
    assert tensor.tolist() == [1.5] * 4
    dist.all_reduce(tensor.mul_(rank), op=average, async_op=True).wait()
    assert tensor.tolist() == [0.75] * 4
    for factor in (2.0, torch.full((1,), 2.0, device=device)):
        scaled = dist._make_nccl_premul_sum(factor)
        dist.reduce_scatter_tensor(part, tensor, op=scaled, group=group)
        assert part.tolist() == [3.0, 3.0]
        dist.all_reduce(part, op=scaled, group=group)
        assert part.tolist() == [12.0, 12.0]
    dist.all_reduce(part, op=dist._make_nccl_premul_sum(0.0), group=group)
    assert part.tolist() == [0.0, 0.0]


def scatter_and_gather(rank: int, device: torch.device, group: dist.ProcessGroup) -> None:
    whole = torch.arange(4.0, device=device) * (rank + 1)
    part = torch.empty(2, device=device)
    dist.reduce_scatter_tensor(part, whole, group=group, async_op=True).wait()
    assert part.tolist() == [[0.0, 3.0], [6.0, 9.0]][rank]
    dist.all_gather_into_tensor(whole, part, group=group, async_op=True).wait()
    assert whole.tolist() == [0.0, 3.0, 6.0, 9.0]


def mixed_gathers(rank: int, device: torch.device, group: dist.ProcessGroup) -> None:
    """Bytes and bfloat16 in one coalesced gather, in place, as FP8 weights beside biases."""
    for named in (None, device):
        numbers = torch.arange(256, device=device).to(torch.uint8)
        halves = torch.linspace(-1, 1, 64, device=device).bfloat16()
        expected = numbers.clone(), halves.clone()
        for tensor in (numbers, halves):
            other = tensor.chunk(2)[1 - rank]
            other.zero_()
        with dist._coalescing_manager(group, named, async_ops=True) as manager:
            for tensor in (numbers, halves):
                mine = tensor.chunk(2)[rank]
                dist.all_gather_into_tensor(tensor, mine, group=group, async_op=True)
        manager.wait()
        assert torch.equal(numbers, expected[0])
        assert torch.equal(halves, expected[1])


def shapes(rank: int, device: torch.device, group: dist.ProcessGroup) -> None:
    """NCCL looks at numbers of elements only; scalars ended gloo's process."""
    for part, whole in (((), (2,)), ((3,), (3, 2)), ((2, 3), (12,)), ((1, 1, 4), (2, 4))):
        count = torch.Size(part).numel()
        mine = (torch.arange(count, device=device) + 100.0 * rank).reshape(part)
        gathered = torch.empty(whole, device=device)
        dist.all_gather_into_tensor(gathered, mine, group=group)
        assert gathered.flatten().tolist() == [*range(count), *range(100, 100 + count)]
        summed = torch.empty(part, device=device)
        dist.reduce_scatter_tensor(summed, gathered, group=group)
        assert torch.equal(summed, 2 * mine)


def uneven_gathers(rank: int, device: torch.device, group: dist.ProcessGroup) -> None:
    """One element of the first rank and two of the second; nothing may wait for a third."""
    own = torch.arange(1.0, rank + 2.0, device=device)
    for options in ({}, {"async_op": True}):
        outputs = [torch.zeros(size, device=device) for size in (1, 2)]
        work = dist.all_gather(outputs, own, group=group, **options)
        assert (work is None) is (not options)
        if work is not None:
            work.wait()
        assert [output.tolist() for output in outputs] == [[1.0], [1.0, 2.0]]


def coalesced(rank: int, device: torch.device, group: dist.ProcessGroup) -> None:
    wholes = [torch.full((4,), float(rank + 1), device=device) for _ in range(2)]
    parts = [torch.empty(2, device=device) for _ in range(2)]
    with dist._coalescing_manager(group, async_ops=True) as manager:
        for whole, part in zip(wholes, parts, strict=True):
            dist.reduce_scatter_tensor(part, whole, group=group, async_op=True)
    manager.wait()
    assert [part.tolist() for part in parts] == [[3.0, 3.0]] * 2


def all_to_all(rank: int, device: torch.device, group: dist.ProcessGroup) -> None:
    sent = torch.arange(3, device=device) + 10 * rank
    received = torch.empty(2 if rank == 0 else 4, dtype=sent.dtype, device=device)
    dist.all_to_all_single(received, sent, [1, 1] if rank == 0 else [2, 2], [1, 2], group=group)
    assert received.tolist() == ([0, 10] if rank == 0 else [1, 2, 11, 12])


def point_to_point(rank: int, device: torch.device, group: dist.ProcessGroup) -> None:
    sent, received = torch.full((2,), float(rank), device=device), torch.empty(2, device=device)
    operations = [
        dist.P2POp(dist.isend, sent, 1 - rank, group),
        dist.P2POp(dist.irecv, received, 1 - rank, group),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
        work.wait()  # as NCCL: it has been waited for
        assert work.is_completed()
    assert received.tolist() == [float(1 - rank)] * 2


def in_order(rank: int, device: torch.device, group: dist.ProcessGroup) -> None:
    """Whoever waits for a gather has waited for a longer one before it, into the same memory."""
    whole, ones = torch.zeros(1 << 22, device=device), torch.ones(1 << 21, device=device)
    for _ in range(5):
        longer = dist.all_gather_into_tensor(whole, ones, group=group, async_op=True)
        dist.all_gather_into_tensor(whole[-2:], 2 * ones[:1], group=group, async_op=True).wait()
        assert [whole[place].item() for place in (0, -3, -1)] == [1.0, 1.0, 2.0]
        longer.wait()
        assert whole[-1].item() == 2.0


def emptied_sends(rank: int, device: torch.device, group: dist.ProcessGroup) -> None:
    """What Megatron's pipeline does: the sent tensor is emptied before the receiver is ready."""
    if rank == 0:
        sent = torch.full((64, 64), 3.0, device=device)
        work = dist.isend(sent, 1, group=group)
        sent.data = torch.empty(1, device=device)
        others = [torch.full((64, 64), -7.0, device=device) for _ in range(4)]
        dist.barrier(group)
        work.wait()
        assert len(others) == 4
    else:
        received = torch.empty(64, 64, device=device)
        dist.barrier(group)
        dist.irecv(received, 0, group=group).wait()
        assert bool((received == 3).all()), received


def objects(rank: int, device: torch.device, group: dist.ProcessGroup) -> None:
    gathered: list[object] = [None, None]
    dist.all_gather_object(gathered, {"rank": rank}, group=group)
    assert gathered == [{"rank": 0}, {"rank": 1}]


def barriers(rank: int, device: torch.device, group: dist.ProcessGroup) -> None:
    dist.barrier(device_ids=[rank])
    dist.barrier(group, device_ids=[torch.cuda.current_device()])


def groups(rank: int, device: torch.device, group: dist.ProcessGroup) -> None:
    assert dist.get_backend() == "gloo"
    assert dist.get_backend(group) == "gloo"
    mixed = dist.new_group([0, 1], backend="cpu:gloo,cuda:nccl")
    inherited = dist.new_group([0, 1])
    _, every = dist.new_subgroups_by_enumeration([[0], [1]], backend="nccl")
    assert len(every) == 2
    for each in (mixed, inherited):
        tensor = torch.ones(1, device=device)
        dist.all_reduce(tensor, group=each)
        assert tensor.item() == 2.0
    mesh = dist.init_device_mesh("cuda", (2,), mesh_dim_names=("dp",))
    assert mesh.device_type == "cpu"


def data_parallel(rank: int, device: torch.device, group: dist.ProcessGroup) -> None:
    module = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Linear(1, 1, bias=False).cuda(rank), device_ids=[rank], output_device=rank
    )
    module(torch.full((1, 1), float(rank), device=device)).sum().backward()
    assert module.module.weight.grad.item() == 0.5


CHECKS: tuple[Callable[[int, torch.device, dist.ProcessGroup], None], ...] = (
    all_reduce,
    averages,
    scatter_and_gather,
    mixed_gathers,
    shapes,
    uneven_gathers,
    coalesced,
    all_to_all,
    point_to_point,
    in_order,
    emptied_sends,
    objects,
    barriers,
    groups,
    data_parallel,
)


def main() -> None:
    rank = int(os.environ["LOCAL_RANK"])
    assert torch.cuda.device_count() == 2
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    dist.init_process_group("nccl", device_id=device, timeout=datetime.timedelta(seconds=60))
    group = dist.new_group(
        [0, 1],
        backend="nccl",
        pg_options=dist.ProcessGroupNCCL.Options(is_high_priority_stream=True),
    )
    for check in CHECKS:
        check(rank, device, group)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
