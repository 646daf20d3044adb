"""Optimizers, lists of tensors, MoE functions and Apex's extensions: the device against the host.

    python tests/gpu/misc_on_device.py

Each case runs with the same numbers in two processes: on the CPU backend and on the one that is
found. What promises not to wait for the device runs while torch refuses to synchronize. Prints a
line for each case; the exit status is the number of failures.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("ACCEL_BRIDGE_LIBRARIES", "all")

# isort: off
import accel_bridge.auto  # noqa: F401

# isort: on
import amp_C
import fused_weight_gradient_mlp_cuda
import scaled_masked_softmax_cuda
import torch
import transformer_engine.pytorch as te
from apex.contrib.layer_norm.layer_norm import FastLayerNormFN
from transformer_engine.pytorch.optimizers import FusedAdam, FusedSGD

ON_HOST = os.environ.get("ACCEL_BRIDGE_BACKEND") == "cpu"
Case = Callable[[str], list[torch.Tensor]]


@contextmanager
def no_waiting() -> Any:
    """Synchronizing with the device is an error."""
    if ON_HOST:
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def normal(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """On the host, so that both sides get the same numbers."""
    return torch.randn(size).to(dtype)


def optimizer(kind: Any, dtype: torch.dtype, **options: Any) -> Case:
    def run(device: str) -> list[torch.Tensor]:
        params = [torch.nn.Parameter(normal(n, dtype=dtype).to(device)) for n in (999, 64, 4097)]
        made = kind(params, lr=0.01, weight_decay=0.1, **options)
        name = "decoupled_grad" if options.get("use_decoupled_grad") else "grad"
        for step in range(3):
            for param in params:
                setattr(param, name, normal(param.numel(), dtype=dtype).to(device))
            if step == 0:  # states are made
                made.step()
                continue
            with no_waiting():
                made.step()
        return [param.detach() for param in params]

    return run


def lists(device: str) -> list[torch.Tensor]:
    tensors = [normal(n, dtype=t).to(device) for n in (5, 3000) for t in (torch.float32,)]
    halves = [torch.empty_like(tensor, dtype=torch.bfloat16) for tensor in tensors]
    flag = torch.zeros(1, dtype=torch.int32, device=device)
    factor = torch.full((1,), 0.5, device=device)
    bad = [torch.full((4,), float("nan"), device=device)]
    raised = torch.zeros(1, dtype=torch.int32, device=device)
    with no_waiting():
        norm, each = amp_C.multi_tensor_l2norm(2048, flag, [tensors], True)
        amp_C.multi_tensor_scale(2048, flag, [tensors, halves], 1.0)
        te.optimizers.multi_tensor_scale_tensor(2048, flag, [tensors, tensors], factor)
        amp_C.multi_tensor_scale(2048, raised, [bad, bad], 0.5)
    return [norm, each, *halves, *tensors, flag.float(), raised.float()]


def permutation(align: int) -> Case:
    def run(device: str) -> list[torch.Tensor]:
        tokens = normal(300, 64, dtype=torch.bfloat16).to(device).requires_grad_()
        routed = torch.zeros(300, 8).scatter(1, torch.rand(300, 8).topk(2).indices, 1).bool()
        probs = (torch.rand(300, 8) * routed).to(device).requires_grad_()
        routed = routed.to(device)
        offsets = None
        if align:
            rows, weights, where, offsets, _ = te.moe_permute_and_pad_with_probs(
                tokens, probs, routed, routed.sum(0), align
            )
        else:
            with no_waiting():
                rows, weights, where = te.moe_permute_with_probs(tokens, probs, routed, 600)
        with no_waiting():
            merged = te.moe_unpermute(rows, where, probs, tokens.shape, pad_offsets=offsets)
            (merged.float().sum() + (weights**2).sum()).backward()
        return [rows, weights, merged, tokens.grad, probs.grad]

    return run


def chunks_and_index(device: str) -> list[torch.Tensor]:
    rows = normal(20, 16).to(device).requires_grad_()
    sizes = torch.tensor([7, 0, 8, 5], device=device)
    order = torch.tensor([2, 0, 3, 1], device=device)
    index = torch.stack([torch.randperm(6)[:2] for _ in range(20)]).int().to(device)
    probs = torch.rand(20, 2).to(device).requires_grad_()
    with no_waiting():
        moved = te.moe_sort_chunks_by_index(rows, sizes, order)
        copies, where = te.moe_permute(moved, index, 40, map_type="index")
        merged = te.moe_unpermute(copies, where, probs, map_type="index")
        merged.square().sum().backward()
    return [moved, copies, merged, rows.grad, probs.grad]


def router(function: str) -> Case:
    def run(device: str) -> list[torch.Tensor]:
        logits = normal(500, 16).to(device).requires_grad_()
        with no_waiting():
            probs, chosen = te.router.fused_topk_with_score_function(
                logits, 4, False, 4, 2, 1.5, function, None
            )
            _, scores = te.router.fused_compute_score_for_moe_aux_loss(logits, 4, function)
            loss = te.router.fused_moe_aux_loss(scores, chosen.sum(0), 500, 16, 4, 0.1)
            (loss + probs.square().sum()).backward()
        return [probs, chosen.float(), loss, logits.grad]

    return run


def loss(device: str) -> list[torch.Tensor]:
    logits = normal(40, 2, 1000).to(device)
    target = torch.randint(0, 1000, (40, 2))
    target[3] = -100
    target = target.to(device)
    leaf = logits.clone().requires_grad_()
    with no_waiting():
        value = te.parallel_cross_entropy(leaf * 1.0, target, 0.1, True)
        value.backward()
    return [value, leaf.grad]


def extensions(device: str) -> list[torch.Tensor]:
    x, gradient = normal(256, 64, dtype=torch.bfloat16), normal(256, 32, dtype=torch.bfloat16)
    main_grad = torch.ones(32, 64, device=device)
    scores = normal(2, 4, 32, 32, dtype=torch.bfloat16).to(device)
    mask = (torch.rand(2, 1, 32, 32) < 0.3).to(device)
    x, gradient = x.to(device), gradient.to(device)
    hidden = normal(8, 4, 1024).to(device).requires_grad_()
    gamma, beta = torch.rand(1024).to(device), torch.rand(1024).to(device)
    with no_waiting():
        fused_weight_gradient_mlp_cuda.wgrad_gemm_accum_fp32(x, gradient, main_grad)
        weights = scaled_masked_softmax_cuda.forward(scores, mask, torch.tensor([0.5])[0])
        slope = scaled_masked_softmax_cuda.backward(scores, weights, torch.tensor([0.5])[0])
        output = FastLayerNormFN.apply(hidden, gamma, beta, 1e-5)
        output.square().sum().backward()
    return [main_grad, weights, slope, output, hidden.grad]


BF16, FP32 = torch.bfloat16, torch.float32
CASES: dict[str, Case] = {
    "adam fp32": optimizer(FusedAdam, FP32),
    "adam fp32 L2": optimizer(FusedAdam, FP32, adam_w_mode=False),
    "adam capturable": optimizer(FusedAdam, FP32, capturable=True),
    "adam bf16 main": optimizer(FusedAdam, BF16, master_weights=True),
    "adam remainders": optimizer(FusedAdam, BF16, master_weights=True, store_param_remainders=True),
    "adam low precision": optimizer(
        FusedAdam,
        BF16,
        master_weights=True,
        master_weight_dtype=torch.float16,
        exp_avg_dtype=torch.float16,
        exp_avg_sq_dtype=BF16,
        use_decoupled_grad=True,
    ),
    "sgd fp32": optimizer(FusedSGD, FP32, momentum=0.9),
    "lists": lists,
    "permutation": permutation(0),
    "permutation padded": permutation(16),
    "chunks and index": chunks_and_index,
    "router softmax": router("softmax"),
    "router sigmoid": router("sigmoid"),
    "router sqrtsoftplus": router("sqrtsoftplus"),
    "cross entropy": loss,
    "apex extensions": extensions,
}


def record(path: Path) -> None:
    """Run every case on this process's backend."""
    results = {}
    for name, case in CASES.items():
        torch.manual_seed(7)
        results[name] = [tensor.detach().cpu() for tensor in case("cuda")]
    torch.save(results, path)


def compare(host: dict[str, list[torch.Tensor]], device: dict[str, list[torch.Tensor]]) -> int:
    """Print every case's distance; the number of failures."""
    failed = 0
    for name, results in host.items():
        worst = 0.0
        for one, other in zip(results, device[name], strict=True):
            tolerance = 2**-7 if one.dtype in (BF16, torch.float16) else 2e-5
            span = one.abs().nan_to_num().max().item() or 1.0
            error = (one.double() - other.double()).abs().nan_to_num().max().item() / span
            worst = max(worst, error / tolerance)
        failed += worst > 1
        print(f"{name}: {'ok' if worst <= 1 else 'FAILED'} ({worst:.2g} of the tolerance)")
    return failed


def main() -> int:
    """Record in two processes, and compare; the number of failures."""
    if len(sys.argv) > 1:
        record(Path(sys.argv[1]))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / "host.pt", Path(folder) / "device.pt"]
        for path, backend in zip(files, ({"ACCEL_BRIDGE_BACKEND": "cpu"}, {}), strict=True):
            command = [sys.executable, __file__, str(path)]
            subprocess.run(command, env={**os.environ, **backend}, check=True)
        return compare(*(torch.load(path) for path in files))


if __name__ == "__main__":
    sys.exit(main())
