"""Megatron-Bridge converts a model and back: python auto_bridge.py MODEL_DIRECTORY BACK_DIRECTORY.

Prints the largest distance of the logits from Hugging Face's, the same with one weight injected
wrong, and how many tensors came back changed.
"""

from __future__ import annotations

import json
import os
import sys

import torch
from megatron.bridge import AutoBridge
from megatron.core import parallel_state
from transformers import AutoModelForCausalLM

source, back = sys.argv[1:]
reference = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
bridge = AutoBridge.from_hf_pretrained(source)
provider = bridge.to_megatron_provider()
provider.params_dtype = provider.pipeline_dtype = provider.autocast_dtype = torch.float32
provider.bf16 = provider.fp16 = False
provider.tensor_model_parallel_size = int(os.environ.get("WORLD_SIZE", "1"))
provider.finalize()
provider.initialize_model_parallel(seed=0)
model = provider.provide_distributed_model(wrap_with_ddp=False)
(part,) = model
part.eval()

torch.manual_seed(0)
tokens = torch.randint(3, 300, (2, 32))
positions = torch.arange(32)[None].expand(2, -1)


@torch.no_grad()
def distance() -> float:
    """Of the logits from Hugging Face's, over all ranks."""
    found = part(input_ids=tokens, position_ids=positions, attention_mask=None)
    pieces = [torch.empty_like(found) for _ in range(provider.tensor_model_parallel_size)]
    group = parallel_state.get_tensor_model_parallel_group()
    torch.distributed.all_gather(pieces, found.contiguous(), group=group)
    expected = reference(tokens).logits
    whole = torch.cat(pieces, -1)[..., : expected.shape[-1]]
    return float((whole - expected).abs().max())


logits = distance()
bridge.save_hf_pretrained(model, back)
injected_weight = next(one for name, one in part.named_parameters() if "linear_proj.weight" in name)
with torch.no_grad():
    injected_weight[0] += 0.1
injected = distance()
if torch.distributed.get_rank() == 0:
    before = reference.state_dict()
    after = AutoModelForCausalLM.from_pretrained(back, dtype=torch.float32).state_dict()
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    report = {"logits": logits, "injected": injected, "tensors": len(before), "changed": changed}
    print("REPORT", json.dumps(report))
torch.distributed.destroy_process_group()
