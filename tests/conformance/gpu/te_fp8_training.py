"""A small GPT of Transformer Engine's layers, 100 steps in bfloat16 and in FP8.

    python tests/conformance/gpu/te_fp8_training.py train real.json
    python tests/conformance/gpu/te_fp8_training.py train ours.json --shim
    python tests/conformance/gpu/te_fp8_training.py compare real.json ours.json

Each FP8 recipe's distance from bfloat16 is the mean difference of the losses. The shim's is at
most the real library's own, plus what bfloat16 itself differs by when the batch is in another
order.
``--size small --steps 10`` runs on a CPU.
"""

from __future__ import annotations

import json
import time
import zlib
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import torch
from te_compare import choose_library, parse, recipe
from torch.nn import functional

#: hidden, feed-forward, heads, groups, layers, sequence, batch, vocabulary.
SIZES: Final = {
    "small": (64, 128, 4, 2, 2, 32, 4, 128),
    "medium": (768, 2048, 12, 4, 6, 512, 8, 4096),
}
MODES: Final = ("bfloat16", "bfloat16 reversed", "tensorwise", "delayed", "blockwise")


class Model(torch.nn.Module):
    """Embedding, layers, norm and output layer; the latter stay in bfloat16."""

    def __init__(self, size: tuple[int, ...]) -> None:
        super().__init__()
        import transformer_engine.pytorch as te

        hidden, ffn, heads, groups, layers, _, _, vocabulary = size
        options: Any = {"params_dtype": torch.bfloat16, "device": "cuda"}
        self.embedding = torch.nn.Embedding(vocabulary, hidden, device="cuda", dtype=torch.bfloat16)
        self.layers = torch.nn.ModuleList(
            te.TransformerLayer(
                hidden,
                ffn,
                heads,
                num_gqa_groups=groups,
                hidden_dropout=0.0,
                attention_dropout=0.0,
                normalization="RMSNorm",
                activation="swiglu",
                bias=False,
                self_attn_mask_type="causal",
                **options,
            )
            for _ in range(layers)
        )
        self.norm = te.RMSNorm(hidden, **options)
        self.output = torch.nn.Linear(
            hidden, vocabulary, bias=False, device="cuda", dtype=torch.bfloat16
        )

    def forward(self, tokens: torch.Tensor, mode: str) -> torch.Tensor:
        """Tokens [s, b] -> logits [s, b, vocabulary]."""
        import transformer_engine.pytorch as te

        x = self.embedding(tokens)
        low = nullcontext() if "bfloat16" in mode else te.autocast(enabled=True, recipe=self.recipe)
        with low:
            for layer in self.layers:
                x = layer(x)
        output: torch.Tensor = self.output(self.norm(x))
        return output

    recipe: Any = None


def fill(model: torch.nn.Module) -> None:
    """The same first values on every machine and in either library."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            values = 0.02 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(values if parameter.dim() > 1 else torch.ones(parameter.shape))


def batch(step: int, size: tuple[int, ...]) -> torch.Tensor:
    """Tokens [s + 1, b]: nine times of ten a token has the same successor."""
    *_, sequence, count, vocabulary = size
    successor = torch.randperm(vocabulary, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1000 + step)
    tokens = torch.randint(vocabulary, (sequence + 1, count), generator=generator)
    kept = torch.rand(sequence + 1, count, generator=generator) < 0.9
    for place in range(sequence):
        follow = successor[tokens[place]]
        tokens[place + 1] = torch.where(kept[place], follow, tokens[place + 1])
    return tokens


def train(mode: str, size: tuple[int, ...], steps: int) -> tuple[list[float], float]:
    """Losses, and seconds per step."""
    from transformer_engine.pytorch.optimizers import FusedAdam

    model = Model(size)
    fill(model)
    if "bfloat16" not in mode:
        model.recipe = recipe(mode, history=16)
    optimizer = FusedAdam(
        model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, master_weights=True
    )
    losses, times = [], []
    for step in range(steps):
        tokens = batch(step, size)
        tokens = (tokens.flip(1) if "reversed" in mode else tokens).cuda()
        torch.cuda.synchronize()
        start = time.perf_counter()
        logits = model(tokens[:-1], mode)
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), tokens[1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append(time.perf_counter() - start)
    return losses, sorted(times)[len(times) // 2]


def distance(content: dict[str, Any], mode: str) -> float:
    """Mean difference of the losses from bfloat16's."""
    pairs = list(zip(content["losses"][mode], content["losses"]["bfloat16"], strict=True))
    return sum(abs(a - b) for a, b in pairs) / len(pairs)


def record(options: Any) -> int:
    """Train in each mode, and write the file."""
    choose_library(options.shim)
    import transformer_engine

    content: dict[str, Any] = {
        "version": transformer_engine.__version__,
        "torch": torch.__version__,
        "losses": {},
        "seconds": {},
        "refused": {},
    }
    for mode in MODES:
        try:
            losses, took = train(mode, SIZES[options.size], options.steps)
        except Exception as error:
            if options.raise_ or mode == "bfloat16":
                raise
            content["refused"][mode] = f"{type(error).__name__}: {error}".splitlines()[0]
            print(f"{mode:18} refused: {content['refused'][mode]}", flush=True)
            continue
        content["losses"][mode], content["seconds"][mode] = losses, took
        print(
            f"{mode:18} loss {losses[0]:.4f} -> {losses[-1]:.4f}, "
            f"distance {distance(content, mode):.5f}, {1e3 * took:.1f} ms a step",
            flush=True,
        )
    Path(options.file).write_text(json.dumps(content))
    return 0


def compare(options: Any) -> int:
    """Print the distances; 1 if one of ours is too large."""
    real, ours = (json.loads(Path(name).read_text()) for name in (options.real, options.ours))
    noise = max(distance(one, "bfloat16 reversed") for one in (real, ours))
    print(f"real {real['version']}, ours {ours['version']}; bfloat16 differs by {noise:.5f} itself")
    failed = 0
    for mode in MODES[2:]:
        if mode not in real["losses"] or mode not in ours["losses"]:
            print(f"{mode:12} real {real['refused'].get(mode)}, ours {ours['refused'].get(mode)}")
            failed += mode in real["losses"]
            continue
        a, b = distance(real, mode), distance(ours, mode)
        passed = b <= a + noise
        failed += not passed
        print(
            f"{'PASS' if passed else 'FAIL'} {mode:12} distance from bfloat16: real {a:.5f}, "
            f"ours {b:.5f}; ms a step: {1e3 * real['seconds'][mode]:.1f}, "
            f"{1e3 * ours['seconds'][mode]:.1f}"
        )
    return int(bool(failed))


def add_options(parser: Any) -> None:
    """Those of ``train`` alone."""
    parser.add_argument("--size", default="medium", choices=list(SIZES))
    parser.add_argument("--steps", type=int, default=100)


def main() -> int:
    """The exit status."""
    options = parse(__doc__, "train", add_options)
    return compare(options) if options.command == "compare" else record(options)


if __name__ == "__main__":
    raise SystemExit(main())
