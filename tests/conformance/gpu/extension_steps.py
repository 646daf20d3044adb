"""Layers of NVIDIA's own Transformer Engine over the extension: time, agreement, and waiting.

    python tests/conformance/gpu/extension_steps.py [--out FILE]

Each layer runs forward and backward on the device with the backend's kernels, and once more on the
same device with the contracts' references, from the same numbers: outputs and gradients must agree
to a part in 50 of their largest entry (FP8: 1 in 8). Then the host's time of a step is measured,
and ``torch.cuda.set_sync_debug_mode`` counts where the host waits for the device. One line of JSON
for each layer; status 1 if any disagrees or waits.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final

import torch

import accel_bridge.auto  # noqa: F401 - before Transformer Engine
from accel_bridge.kernels import active

# isort: split
import transformer_engine.pytorch as te
from transformer_engine.common import recipe as recipes

_TOKENS, _HIDDEN = 256, 512
_RECIPES: Final = {
    "bf16": None,
    "delayed": lambda: recipes.DelayedScaling(),
    "tensorwise": lambda: recipes.Float8CurrentScaling(),
    "blockwise": lambda: recipes.Float8BlockScaling(),
}
_LAYERS: Final[dict[str, Callable[[], Any]]] = {
    "Linear": lambda: te.Linear(_HIDDEN, _HIDDEN, params_dtype=torch.bfloat16),
    "LayerNormLinear": lambda: te.LayerNormLinear(
        _HIDDEN, _HIDDEN, normalization="RMSNorm", params_dtype=torch.bfloat16
    ),
    "LayerNormMLP": lambda: te.LayerNormMLP(
        _HIDDEN, 2 * _HIDDEN, activation="swiglu", params_dtype=torch.bfloat16
    ),
    "GroupedLinear": lambda: te.GroupedLinear(4, _HIDDEN, _HIDDEN, params_dtype=torch.bfloat16),
    "LayerNorm": lambda: te.LayerNorm(_HIDDEN, params_dtype=torch.bfloat16),
    "RMSNorm": lambda: te.RMSNorm(_HIDDEN, params_dtype=torch.bfloat16),
    "DotProductAttention": lambda: te.DotProductAttention(
        8, 64, num_gqa_groups=4, attention_dropout=0.0, attn_mask_type="causal"
    ),
}


def step(name: str, layer: Any, x: torch.Tensor, recipe: Any) -> list[torch.Tensor]:
    """Output and gradients of one forward and backward pass."""
    x = x.detach().requires_grad_()
    for parameter in layer.parameters():
        parameter.grad = None
    inputs: tuple[Any, ...] = (x,)
    if name == "GroupedLinear":
        inputs = (x, [64, 32, 96, 64])
    elif name == "DotProductAttention":
        wide = x.view(128, 2, 8, 64)
        inputs = (wide, wide[:, :, :4].contiguous(), wide[:, :, 4:].contiguous())
    quantized = recipe is not None
    with te.fp8_autocast(fp8_recipe=recipe) if quantized else nullcontext():
        output = layer(*inputs)
    # A gradient of equal numbers would have none before a LayerNorm.
    generator = torch.Generator().manual_seed(2)
    gradient = torch.randn(output.shape, generator=generator) / 8
    output.backward(gradient.to(output))
    assert x.grad is not None
    grads = [one.grad for one in layer.parameters() if one.grad is not None]
    return [output.detach(), x.grad, *grads]


def errors(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> list[float]:
    """Largest error of each tensor, relative to its largest entry."""
    pairs = [(a.float().cpu(), b.float().cpu()) for a, b in zip(found, wanted, strict=True)]
    return [float((a - b).abs().max() / b.abs().max().clamp(min=1e-20)) for a, b in pairs]


def waits(run: Callable[[], object]) -> int:
    """How often the host waits for the device in a step."""
    if not torch.cuda.is_available() or torch.version.cuda is None:
        return 0
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(one.message) for one in caught)


def measure(name: str, kind: str, device: str, repeat: int) -> dict[str, Any]:
    """One line."""
    torch.manual_seed(1)
    layer = _LAYERS[name]().to(device)
    x = torch.randn(_TOKENS, _HIDDEN, dtype=torch.bfloat16, device=device)
    make = _RECIPES[kind]
    recipe = None if make is None else make()

    def run() -> list[torch.Tensor]:
        return step(name, layer, x, recipe)

    run()  # delayed scaling learns its scales
    found = run()
    provider = active._provider
    active.provide(None)  # references alone, on the same device
    try:
        wanted = run()
    finally:
        active.provide(provider)
    for _ in range(3):
        run()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
        torch.cuda.synchronize()
    worst = max(errors(found, wanted))
    row = {
        "layer": name,
        "recipe": kind,
        "error": worst,
        "us": min(times) * 1e6,
        "waits": waits(run),
    }
    row["ok"] = worst <= (1 / 50 if recipe is None else 1 / 8) and not row["waits"]
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--out")
    options = parser.parse_args()
    rows = []
    for name in _LAYERS:
        kinds = ["bf16"] if name.endswith("Norm") or "Attention" in name else list(_RECIPES)
        for kind in kinds:
            try:
                row = measure(name, kind, options.device, options.repeat)
            except Exception as error:
                row = {"layer": name, "recipe": kind, "ok": False, "raised": f"{error}"[:300]}
            rows.append(row)
            print(json.dumps(row), flush=True)
    if options.out:
        with open(options.out, "w") as file:
            json.dump(rows, file, indent=1)
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
