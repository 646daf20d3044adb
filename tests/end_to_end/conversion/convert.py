"""Between checkpoints of GPT and of a Hybrid with a pair of layers for each of GPT's.

Usage: convert.py (gpt-to-hybrid|hybrid-to-gpt) FROM TO [attention layer of each GPT layer]
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import dist_checkpoint_io as checkpoints
import torch

direction, source, target, *order = sys.argv[1:]
to_gpt = direction == "hybrid-to-gpt"
norms = ["decoder.final_layernorm", "decoder.final_norm"]
store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
weights, common, prefix, form, iteration = checkpoints.load_dist_checkpoint_full(Path(source))


def renamed(name: str) -> str:
    """The name of one weight in the other model."""
    number = re.match(r"decoder\.layers\.(\d+)\.", name)
    if number is None:
        return name.replace(norms[to_gpt], norms[not to_gpt])
    attends = "self_attention." in name or "input_layernorm." in name
    layer = int(number[1]) // 2 if to_gpt else 2 * int(number[1]) + (not attends)
    if order and attends:
        layer = int(order[layer])
    return f"decoder.layers.{layer}.{name[number.end() :]}"


weights = {renamed(name): tensor for name, tensor in weights.items() if "_extra" not in name}
layers = common["args"].num_layers
common["args"].num_layers = layers // 2 if to_gpt else layers * 2
common["args"].hybrid_layer_pattern = None if to_gpt else "*-" * layers
directory = Path(target, f"iter_{iteration:07d}")
checkpoints.save_dist_checkpoint_full(weights, common, directory, prefix, form)
(directory.parent / "latest_checkpointed_iteration.txt").write_text(str(iteration))
