"""Fine-grained activation offloading where a chunk keeps all its tensors on the device."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.megatron

CODE = """
import torch
from megatron.core.pipeline_parallel.fine_grained_activation_offload import (
    FineGrainedActivationOffloadingInterface as Offloading,
    PipelineOffloadManager,
)
from megatron.core.transformer import TransformerConfig

NAMES = ("attn_norm", "moe_act")


def layer(x):
    for name in NAMES:
        part = Offloading(True, x, name)
        with part as x:
            x = (x * x).tanh()
        x = part.group_offload(x)
    return x


def iteration(layers):
    Offloading.reset()
    losses = []
    for microbatch in range(2):  # of one chunk each, as with a pipeline of one stage
        Offloading.init_chunk_handler(0, 1, None, 1, 0, 1.0)
        x = torch.linspace(-1, 1, 64, device="cuda", requires_grad=True)
        y = x
        for _ in range(layers):
            y = layer(y)
        losses.append((x, y.sum()))
        losses[-1][1].backward()
    return [x.grad.sum().item() for x, _ in losses]


store = torch.distributed.HashStore()
torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
for layers in (1, 2):
    PipelineOffloadManager.reset_instance()
    assert len({tuple(iteration(layers)) for _ in range(3)}) == 1
print("the same gradients in each iteration")
"""


@pytest.mark.parametrize("patched", [True, False])
def test_a_chunk_of_one_layer(forked, tmp_path, patched: bool) -> None:
    script = tmp_path / "offload.py"
    script.write_text(CODE)
    environ = {"ACCEL_BRIDGE_BACKEND": "cpu"}
    if not patched:
        environ["ACCEL_BRIDGE_PATCHES"] = "-offload-chunks"
    done = forked("-m", "accel_bridge.run", str(script), **environ)
    if patched:
        assert done.returncode == 0, done.stderr[-2000:]
        assert "the same gradients" in done.stdout
    else:
        assert "Chunk mismatch" in done.stderr
