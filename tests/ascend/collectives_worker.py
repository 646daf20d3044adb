"""Collectives on emulated NPUs: started under ``accel-bridge emulate-ascend``, starts its ranks.

``collectives_worker.py RANKS NAME ...`` runs the named checks in as many processes as there are
ranks, without torchrun. Rank 0 prints ``ok NAME`` for each that passed; the exit status is the
worst of the ranks'.
"""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from parallel_layers import parallel_layers

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
DTYPES = (*FLOATS, torch.int32, torch.int64)
OPS = ("SUM", "PRODUCT", "MAX", "MIN", "AVG")
Device = torch.device


def part(rank: int, count: int = 6, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What a rank brings, on the CPU; no two ranks bring the same."""
    return ((torch.arange(count) * 7 + rank * 3) % 5 + 1).to(dtype)


def combined(op: str, parts: list[torch.Tensor]) -> torch.Tensor:
    """What a reduction should give."""
    whole = torch.stack(parts)
    wide = whole.float() if whole.is_floating_point() else whole
    if op == "AVG":
        return wide.sum(0).to(whole.dtype) / len(parts)
    function = {"SUM": wide.sum, "PRODUCT": wide.prod, "MAX": wide.amax, "MIN": wide.amin}[op]
    return function(0).to(whole.dtype)


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.dtype == want.dtype, (got.dtype, want.dtype)
    torch.testing.assert_close(got.cpu(), want, rtol=0, atol=0)


def everyone(size: int, **options: Any) -> list[torch.Tensor]:
    return [part(rank, **options) for rank in range(size)]


def all_reduce(rank: int, size: int, device: Device) -> None:
    for dtype in DTYPES:
        for op in OPS:
            if op == "AVG" and not dtype.is_floating_point:
                continue
            if op == "PRODUCT" and dtype == torch.bfloat16:
                continue
            tensor = part(rank, dtype=dtype).to(device)
            dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
            same(tensor, combined(op, everyone(size, dtype=dtype)))


def refused_reductions(rank: int, size: int, device: Device) -> None:
    """HCCL reduces no float64, and no product of bfloat16."""
    for dtype, op in ((torch.float64, "SUM"), (torch.bfloat16, "PRODUCT")):
        tensor = torch.ones(2, dtype=dtype).to(device)
        try:
            dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
        except (RuntimeError, TypeError, ValueError) as error:
            reason = str(error).replace("\n", " ")
        else:
            raise AssertionError(f"{dtype} {op} was accepted: {tensor}")
        if rank == 0:
            say("refused", dtype, reason)


def wide_reductions(rank: int, size: int, device: Device) -> None:
    """Float64 through the bridge's redirection: exact, where float32 would round."""
    from accel_bridge.backends.ascend._backend import AscendBackend
    from accel_bridge.device import DeviceRedirection

    spec = AscendBackend().device()
    assert spec is not None
    values = [1.7e9 + rank * 1e-6 for rank in range(size)]
    with DeviceRedirection(spec):
        for op, want in (("SUM", sum(values)), ("MAX", max(values)), ("MIN", min(values))):
            tensor = torch.tensor([values[rank]], dtype=torch.float64, device=device)
            dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
            assert tensor.dtype == torch.float64
            assert tensor.item() == want, (op, tensor.item(), want)


def reduce(rank: int, size: int, device: Device) -> None:
    root = size - 1
    tensor = part(rank).to(device)
    dist.reduce(tensor, root)
    if rank == root:
        same(tensor, combined("SUM", everyone(size)))


def all_gather(rank: int, size: int, device: Device) -> None:
    for dtype in (*DTYPES, torch.bool, torch.uint8):
        tensor = part(rank, dtype=dtype).to(device)
        outputs = [torch.empty_like(tensor) for _ in range(size)]
        dist.all_gather(outputs, tensor)
        whole = torch.empty(size * 6, dtype=dtype, device=device)
        dist.all_gather_into_tensor(whole, tensor)
        for output, want in zip(outputs, everyone(size, dtype=dtype), strict=True):
            same(output, want)
        same(whole, torch.cat(everyone(size, dtype=dtype)))
    uneven = [torch.empty(r + 1, device=device) for r in range(size)]
    dist.all_gather(uneven, part(rank, rank + 1).to(device))
    for r in range(size):
        same(uneven[r], part(r, r + 1))


def reduce_scatter(rank: int, size: int, device: Device) -> None:
    for dtype in FLOATS:
        whole = part(rank, 3 * size, dtype).to(device)
        output = torch.empty(3, dtype=dtype, device=device)
        dist.reduce_scatter_tensor(output, whole)
        want = combined("SUM", everyone(size, count=3 * size, dtype=dtype)).chunk(size)[rank]
        same(output, want)
        dist.reduce_scatter(output.zero_(), list(whole.chunk(size)))
        same(output, want)


def broadcast(rank: int, size: int, device: Device) -> None:
    for root in range(size):
        tensor = part(rank).to(device)
        dist.broadcast(tensor, root)
        same(tensor, part(root))
    items: list[Any] = [{"from": rank}, None]
    dist.broadcast_object_list(items, 1)
    assert items[0] == {"from": 1}


def scatter_and_gather(rank: int, size: int, device: Device) -> None:
    output = torch.empty(6, device=device)
    parts = [part(r).to(device) for r in range(size)] if rank == 1 else None
    dist.scatter(output, parts, 1)
    same(output, part(rank))
    gathered = [torch.empty(6, device=device) for _ in range(size)] if rank == 0 else None
    dist.gather(output, gathered, 0)
    for r, tensor in enumerate(gathered or ()):
        same(tensor, part(r))
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, rank * 2)
    assert objects == [r * 2 for r in range(size)]


def all_to_all(rank: int, size: int, device: Device) -> None:
    received = torch.empty(2 * size, device=device)
    dist.all_to_all_single(received, part(rank, 2 * size).to(device))
    pieces = [p.chunk(size)[rank] for p in everyone(size, count=2 * size)]
    same(received, torch.cat(pieces))
    # Rank r sends r + to + 1 numbers to each; nothing at all to itself.
    counts = [[0 if to == r else r + to + 1 for to in range(size)] for r in range(size)]
    mine = part(rank, sum(counts[rank])).to(device)
    wanted = [counts[r][rank] for r in range(size)]
    received = torch.empty(sum(wanted), device=device)
    dist.all_to_all_single(received, mine, wanted, counts[rank])
    pieces = [part(r, sum(counts[r])).split(counts[r])[rank] for r in range(size)]
    same(received, torch.cat(pieces))
    outputs = [torch.empty(n + 1, device=device) for n in range(size)]
    dist.all_to_all(outputs, [part(rank, rank + 1).to(device) for _ in range(size)])
    for r in range(size):
        same(outputs[r], part(r, r + 1))
    all_to_all_of_formats(rank, size, device)


def all_to_all_of_formats(rank: int, size: int, device: Device) -> None:
    """Lists in an internal format (29 is ACL_FORMAT_FRACTAL_NZ)."""
    import torch_npu

    torch.npu.config.allow_internal_format = True
    given = [part(rank, rank + 1).view(-1, 1).to(device) for _ in range(size)]
    outputs = [torch.empty(r + 1, 1, device=device) for r in range(size)]
    outputs = [torch_npu.npu_format_cast(one, 29) for one in outputs]
    dist.all_to_all(outputs, [torch_npu.npu_format_cast(one, 29) for one in given])
    torch.npu.config.allow_internal_format = False
    for r in range(size):
        assert int(torch_npu.get_npu_format(outputs[r])) == 29
        same(outputs[r], part(r, r + 1).view(-1, 1))


def point_to_point(rank: int, size: int, device: Device) -> None:
    after, before = (rank + 1) % size, (rank - 1) % size
    received = torch.empty(6, device=device)
    if rank == 0:
        dist.send(part(rank).to(device), after)
        dist.recv(received, before)
    else:
        dist.recv(received, before)
        dist.send(part(rank).to(device), after)
    same(received, part(before))
    # Everyone to both neighbours at once, twice in a row: messages keep their order.
    for turn in range(2):
        left, right = torch.empty(6, device=device), torch.empty(6, device=device)
        operations = [
            dist.P2POp(dist.isend, part(rank + turn).to(device), after),
            dist.P2POp(dist.irecv, left, before),
        ]
        # And to oneself, received before it is sent.
        own = torch.empty(6, device=device)
        operations[:0] = [
            dist.P2POp(dist.irecv, own, rank),
            dist.P2POp(dist.isend, part(rank + turn).to(device), rank),
        ]
        if size > 2:
            operations += [
                dist.P2POp(dist.isend, part(rank + 10).to(device), before),
                dist.P2POp(dist.irecv, right, after),
            ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        same(left, part(before + turn))
        same(own, part(rank + turn))
        if size > 2:
            same(right, part(after + 10))


def groups(rank: int, size: int, device: Device) -> None:
    """A group of the last two, groups of evens and odds, and orders other than the ranks'."""
    last = dist.new_group([size - 2, size - 1])
    if rank >= size - 2:
        tensor = part(rank).to(device)
        dist.all_reduce(tensor, group=last)
        same(tensor, combined("SUM", [part(size - 2), part(size - 1)]))
    halves = [dist.new_group([r for r in range(size) if r % 2 == k]) for k in (0, 1)]
    members = [r for r in range(size) if r % 2 == rank % 2]
    tensor = part(rank).to(device)
    dist.all_reduce(tensor, group=halves[rank % 2])
    same(tensor, combined("SUM", [part(r) for r in members]))
    dist.broadcast(tensor, members[-1], group=halves[rank % 2])
    dist.barrier(group=halves[rank % 2])
    again = dist.new_group(list(range(size)))
    dist.all_reduce(tensor.fill_(1), group=again)
    assert tensor[0].item() == size
    dist.destroy_process_group(again)


def asynchronous(rank: int, size: int, device: Device) -> None:
    tensors = [part(rank + n).to(device) for n in range(4)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()
    torch.npu.synchronize()
    assert all(work.is_completed() for work in works)
    for n, tensor in enumerate(tensors):
        same(tensor, combined("SUM", [part(r + n) for r in range(size)]))
    for options in ({}, {"device": device}):  # one call of many tensors; or a group of calls
        with dist._coalescing_manager(async_ops=True, **options) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor.div_(size))
        manager.wait()
        same(tensors[0], combined("SUM", [part(r) for r in range(size)]))
    # Within a group, everyone may receive first.
    received = torch.empty(6, device=device)
    with dist._coalescing_manager(device=device, async_ops=True) as manager:
        dist.irecv(received, (rank - 1) % size)
        dist.isend(part(rank).to(device), (rank + 1) % size)
    manager.wait()
    same(received, part((rank - 1) % size))


def barrier(rank: int, size: int, device: Device) -> None:
    time.sleep(0.1 * rank)
    came = time.time()
    dist.barrier()
    torch.npu.synchronize()
    times: list[Any] = [None] * size
    dist.all_gather_object(times, (came, time.time()))
    assert min(left for _, left in times) >= max(came for came, _ in times)


def dies(rank: int, size: int, device: Device) -> None:
    """The last rank is killed in the middle of it all."""
    tensor = torch.ones(4, device=device)
    dist.all_reduce(tensor)
    torch.npu.synchronize()
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(tensor)
    torch.npu.synchronize()


def stays_away(rank: int, size: int, device: Device) -> None:
    """The last rank lives on, and never comes."""
    dist.barrier()
    if rank == size - 1:
        time.sleep(5)
    dist.all_reduce(torch.ones(4, device=device))
    torch.npu.synchronize()


def fused_gemms(rank: int, size: int, device: Device) -> None:
    """GEMMs before and after a collective, in one operator."""
    import torch_npu

    backend = dist.group.WORLD._get_backend(torch.device("npu"))  # type: ignore[union-attr]
    name = backend.get_hccl_comm_name(rank)

    def half(seed: int, *shape: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(shape, generator=generator).bfloat16()

    def close(got: torch.Tensor, want: torch.Tensor) -> None:
        torch.testing.assert_close(got.cpu().float(), want.float(), rtol=2e-2, atol=2e-1)

    xs, ws = (
        [half(r, 2 * size, 256) for r in range(size)],
        [half(9 + r, 256, 8) for r in range(size)],
    )
    x, w = xs[rank].to(device), ws[rank].to(device)
    gemms = [a.float() @ b.float() for a, b in zip(xs, ws, strict=True)]
    for mode in ("ai_cpu", "aiv"):
        y, whole = torch_npu.npu_all_gather_base_mm(x, w, name, size, comm_mode=mode)
        close(y, torch.cat(xs).float() @ ws[rank].float())
        same(whole, torch.cat(xs))
        y = torch_npu.npu_mm_reduce_scatter_base(x, w, name, size, comm_mode=mode)
        close(y, sum(gemms).chunk(size)[rank])  # type: ignore[union-attr]
    close(torch_npu.npu_mm_all_reduce_base(x, w, name), sum(gemms))  # type: ignore[arg-type]
    added = half(5, 2 * size, 8)
    y = torch_npu.npu_mm_all_reduce_base(x, w, name, x3=added.to(device))
    close(y, sum(gemms) + size * added.float())
    # Two experts on each rank; rank r sends r + to + e tokens to expert e of rank `to`.
    counts = [[[r + to + e for e in range(2)] for to in range(size)] for r in range(size)]
    tokens = [half(20 + r, sum(map(sum, counts[r])), 8) for r in range(size)]
    experts = [half(30 + r, 2, 8, 6) for r in range(size)]
    sent = [n for to in counts[rank] for n in to]
    received = [n for r in range(size) for n in counts[r][rank]]
    rows: list[list[torch.Tensor]] = [[], []]
    for r in range(size):
        flat = [n for to in counts[r] for n in to]
        for e, block in enumerate(tokens[r].split(flat)[2 * rank : 2 * rank + 2]):
            rows[e].append(block)
    mine = [torch.cat(blocks) for blocks in rows]
    want = torch.cat([a.float() @ experts[rank][e].float() for e, a in enumerate(mine)])
    y, _, permuted = torch_npu.npu_alltoallv_gmm(
        tokens[rank].to(device),
        experts[rank].to(device),
        name,
        size,
        sent,
        received,
        permute_out_flag=True,
    )
    same(permuted, torch.cat(mine))
    close(y, want)
    # And back: the experts' GEMMs return to the tokens' ranks, in the order they were sent.
    y, _ = torch_npu.npu_gmm_alltoallv(
        permuted, experts[rank].to(device), name, size, received, sent
    )
    blocks = tokens[rank].split(sent)
    home = [b.float() @ experts[i // 2][i % 2].float() for i, b in enumerate(blocks)]
    close(y, torch.cat(home))


def refused_gemms(rank: int, size: int, device: Device) -> None:
    """Of two ranks, biases other than 0; of three, their number."""
    import torch_npu

    backend = dist.group.WORLD._get_backend(torch.device("npu"))  # type: ignore[union-attr]
    name = backend.get_hccl_comm_name(rank)
    x = torch.ones(2 * size, 256, dtype=torch.bfloat16, device=device)
    bias = torch.ones(256, dtype=torch.bfloat16, device=device)
    try:
        if size == 3:
            torch_npu.npu_mm_all_reduce_base(x, x.new_ones(256, 8), name)
        elif rank == 0:
            torch_npu.npu_all_gather_base_mm(x, x.new_ones(256, 256), name, size, bias=bias)
        else:
            torch_npu.npu_mm_reduce_scatter_base(x, x.new_ones(256, 256), name, size, bias=bias)
        torch.npu.synchronize()
    except RuntimeError as error:
        say("refused", str(error).splitlines()[-1])


CHECKS: dict[str, Callable[[int, int, Device], None]] = {
    check.__name__: check
    for check in (
        *(all_reduce, refused_reductions, wide_reductions, reduce, all_gather, reduce_scatter),
        *(broadcast, scatter_and_gather, all_to_all, point_to_point, groups, asynchronous),
        *(barrier, fused_gemms, refused_gemms, parallel_layers, dies, stays_away),
    )
}


def say(*words: object) -> None:
    """A line of its own, at once, whatever the other ranks are writing."""
    os.write(1, f"\n{' '.join(map(str, words))}\n".encode())


def work(names: list[str]) -> None:
    """One rank."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("npu", rank)
    torch.npu.set_device(device)
    # A file: between asking for a free port and using it, another test may take that port.
    dist.init_process_group(
        "hccl",
        init_method=f"file://{os.environ['MEETING']}",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=60),
    )
    for name in names:
        CHECKS[name](rank, size, device)
        if rank == 0:
            say("ok", name)
    if "refused_gemms" in names:
        # An error stays on the device's queue: what comes after it may wait for ever.
        os._exit(0)
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    """One rank, or all of them."""
    if "RANK" in os.environ:
        work(sys.argv[2:])
        return 0
    print("root", os.environ["ASCEND_EMULATOR_ROOT"], flush=True)
    with tempfile.TemporaryDirectory() as directory:
        return start(int(sys.argv[1]), f"{directory}/meeting")


def start(size: int, meeting: str) -> int:
    """Start the ranks, and end those that are left when one fails and 15 seconds have gone."""
    common = {**os.environ, "MEETING": meeting}
    common.update(WORLD_SIZE=str(size), OMP_NUM_THREADS="1")
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:]],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(size)
    ]
    first_failure: float | None = None
    while any(process.poll() is None for process in ranks):
        if first_failure is None and any(process.poll() for process in ranks):
            first_failure = time.monotonic()
        if first_failure is not None and time.monotonic() - first_failure > 15:
            for process in ranks:
                process.kill()
            print("hung", flush=True)
        time.sleep(0.05)
    if first_failure is not None:
        print(f"ended {time.monotonic() - first_failure:.1f} s later", flush=True)
    statuses = [process.returncode for process in ranks]
    print("statuses", statuses, flush=True)
    return int(any(statuses))


if __name__ == "__main__":
    sys.exit(main())
