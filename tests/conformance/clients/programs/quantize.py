"""Quantize a small Megatron model with modelopt, then train it: torchrun quantize.py OUT [INJECT]

It prints the loss before and after, and after by hand: inputs and weights of every linear layer
rounded to 8 bits by their largest values. INJECT leaves one layer out by hand. All ranks are tensor
parallel; the losses of the training go to OUT/logging.jsonl.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import modelopt.torch.quantization as mtq
import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import TransformerConfig

LAYERS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")

torch.distributed.init_process_group("nccl")
ranks = torch.distributed.get_world_size()
torch.cuda.set_device(torch.distributed.get_rank())
parallel_state.initialize_model_parallel(ranks)
tensor_parallel.model_parallel_cuda_manual_seed(0)
torch.manual_seed(0)
config = TransformerConfig(
    num_layers=2,
    hidden_size=64,
    num_attention_heads=4,
    use_cpu_initialization=True,
    attention_dropout=0.0,
    hidden_dropout=0.0,
    tensor_model_parallel_size=ranks,
)
model, by_hand = (
    GPTModel(config, get_gpt_layer_local_spec(), 96, 32, position_embedding_type="rope").cuda()
    for _ in range(2)
)
by_hand.load_state_dict(model.state_dict())
tokens = torch.randint(96, (4, 16)).cuda()
places = torch.arange(16).expand(4, 16).cuda()
mask = torch.ones(4, 1, 16, 16, dtype=torch.bool).triu(1).cuda()


def loss(net: torch.nn.Module) -> torch.Tensor:
    return net(tokens, places, mask, labels=tokens.roll(-1, 1)).mean()


def rounded(values: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    """To one of 255 multiples of ``largest / 127``."""
    return (values * 127 / largest).round().clamp(-127, 127) * largest / 127


def linears(net: torch.nn.Module) -> list[torch.nn.Module]:
    return [one for name, one in net.named_modules() if name.rpartition(".")[2] in LAYERS]


before = loss(model).item()
mtq.quantize(model, mtq.INT8_DEFAULT_CFG, loss)

peaks: dict[torch.nn.Module, torch.Tensor] = {}
watched = [
    one.register_forward_pre_hook(lambda layer, x: peaks.update({layer: x[0].detach().abs().max()}))
    for one in linears(by_hand)
]
loss(by_hand)
for hook in watched:
    hook.remove()
for number, layer in enumerate(linears(by_hand)):
    if number == 0 and len(sys.argv) > 2:
        continue
    weight = layer.weight.data
    largest = weight.abs().amax(1, keepdim=True)
    if type(layer).__name__.startswith("Row"):  # each rank has a part of the columns
        for peak in (largest, peaks[layer]):
            torch.distributed.all_reduce(peak, torch.distributed.ReduceOp.MAX)
    weight.copy_(rounded(weight, largest))
    layer.register_forward_pre_hook(lambda one, x: (rounded(x[0], peaks[one]), *x[1:]))
print(f"LOSS {before:.7f} {loss(model).item():.7f} {loss(by_hand).item():.7f}")

optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
losses = []
for _ in range(10):
    optimizer.zero_grad()
    value = loss(model)
    value.backward()
    optimizer.step()
    losses.append(value.item())
if torch.distributed.get_rank() == 0:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    rows = [json.dumps({"loss": one}) for one in losses]
    (out / "logging.jsonl").write_text("\n".join(rows) + "\n")
torch.distributed.destroy_process_group()
