"""Ten steps of a small model under a trainer: python trainers.py TRAINER OUT [LEARNING_RATE]

TRAINER is plain (PyTorch alone, on the CPU), accelerate or fabric. The losses of all ranks together
go to OUT/logging.jsonl.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

BATCH, STEPS = 8, 10

trainer, out = sys.argv[1], Path(sys.argv[2])
rate = float(sys.argv[3]) if len(sys.argv) > 3 else 1e-2
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
model = torch.nn.Sequential(
    torch.nn.Embedding(50, 32), torch.nn.TransformerEncoder(layer, 2), torch.nn.Linear(32, 50)
)
tokens = torch.randint(50, (BATCH * STEPS, 12), generator=torch.Generator().manual_seed(1))
data = TensorDataset(tokens)
optimizer = torch.optim.AdamW(model.parameters(), rate)
losses = []


def loss_of(net: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    logits = net(batch[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def train(net: Any, steps: Any, loader: Any, backward: Any, mean: Any) -> None:
    for (batch,) in loader:
        steps.zero_grad()
        loss = loss_of(net, batch)
        backward(loss)
        steps.step()
        losses.append(float(mean(loss.detach())))


if trainer == "plain":
    train(model, optimizer, DataLoader(data, BATCH), torch.Tensor.backward, torch.Tensor.mean)
    first = True
elif trainer == "accelerate":
    from accelerate import Accelerator

    accelerator = Accelerator()
    loader = DataLoader(data, BATCH // accelerator.num_processes)
    prepared = accelerator.prepare(model, optimizer, loader)
    assert accelerator.device.type == "cuda", accelerator.device
    train(*prepared, accelerator.backward, lambda loss: accelerator.gather(loss).mean())
    first = accelerator.is_main_process
else:
    from lightning.fabric import Fabric

    fabric = Fabric()
    net, steps = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(DataLoader(data, BATCH // fabric.world_size))
    assert fabric.device.type == "cuda", fabric.device
    train(net, steps, loader, fabric.backward, lambda loss: fabric.all_gather(loss).mean())
    first = fabric.global_rank == 0
if first:
    out.mkdir(parents=True, exist_ok=True)
    rows = [json.dumps({"loss": loss}) for loss in losses]
    (out / "logging.jsonl").write_text("\n".join(rows) + "\n")
    print("LOSSES", *(f"{loss:.5f}" for loss in losses))
