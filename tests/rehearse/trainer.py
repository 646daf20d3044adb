"""A small training without Megatron; ``FAULT`` names what is wrong with it."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

FAULT = os.environ.get("FAULT", "")


def main() -> None:
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)
    )
    first = next(model.parameters())
    setattr(first, "mark", "stays")  # noqa: B010 - as Megatron marks its parameters
    model = model.cuda().bfloat16()
    assert vars(next(model.parameters()))["mark"] == "stays"
    sizes = torch.full((2,), 7 if rank == 0 else 0, device="cuda")
    dist.broadcast(sizes, src=0)
    assert sizes.cpu().tolist() == [7, 7]
    parts = [torch.zeros(2 + n, device="cuda") for n in range(dist.get_world_size())]
    dist.all_gather(parts, parts[rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    kept = []
    for _ in range(8):
        device = torch.device("cuda", torch.cuda.current_device())
        x = torch.randn(64, 256, device=device, dtype=torch.bfloat16)
        loss = model(x).float().pow(2).mean()
        loss.backward()
        gradients = [p.grad for p in model.parameters()]
        if FAULT == "skipped" and rank == 1:
            gradients = gradients[:-1]
        if FAULT == "order" and rank == 1:
            gradients[0], gradients[1] = gradients[1], gradients[0]
        if FAULT == "shape" and rank == 1:
            gradients[-1] = torch.zeros(255, device="cuda", dtype=torch.bfloat16)
        for gradient in gradients:
            dist.all_reduce(gradient)
        if FAULT == "unanswered":
            if rank == 0:
                dist.send(loss.detach(), dst=1)
        elif rank == 0:
            sent = dist.P2POp(dist.isend, loss.detach(), 1)
            for work in dist.batch_isend_irecv([sent]):
                work.wait()
        elif rank == 1:
            dist.recv(loss.detach(), src=0)
        if FAULT == "grows":
            kept.append(loss.detach() * torch.ones(1024, device="cuda"))
        if FAULT == "value" and loss.item() != 1.25:
            raise ValueError("the program's own error")
        counts = torch.tensor([1, 2, 3], device="cuda")
        assert int((counts * 2).sum()) == 12  # values that follow from constants are right
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    if FAULT != "nothing":
        main()
