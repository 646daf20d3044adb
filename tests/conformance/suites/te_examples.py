"""Runs Transformer Engine's documentation examples, unedited, on small data and models.

    python tests/conformance/suites/te_examples.py CHECKOUT [llama gemma fp8_primer ... mnist]

CHECKOUT is a source tree of Transformer Engine; any other name is a notebook of docs/examples
(quickstart: until 2.8). A cell that fails is printed and the next one tried: NVFP4, which
Transformer Engine refuses itself, is the last of fp8_primer.
"""

from __future__ import annotations

import json
import re
import runpy
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import torch

import accel_bridge.auto  # noqa: F401

#: Sizes in notebooks -> what they are divided by; their numbers of heads are at least 8.
_LARGE: Final = re.compile(r"^((?:ffn_)?hidden_size|sequence_length) = (\d+)$", re.M)
_HEADS: Final = re.compile(r"^num_attention_heads = \d+$", re.M)
_SIZES: Final[dict[str, Any]] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "vocab_size": 256, "max_position_embeddings": 64,
}  # fmt: skip


def notebook(path: Path) -> None:
    """Every cell of code."""
    sys.path.insert(0, str(path.parent))
    space: dict[str, Any] = {"__name__": "__main__"}
    cells = [one for one in json.loads(path.read_text())["cells"] if one["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        text = _LARGE.sub(
            lambda found: f"{found[1]} = {int(found[2]) // 16}", "".join(cell["source"])
        )
        text = _HEADS.sub("num_attention_heads = 8", text)
        try:
            exec(compile(text, f"{path.stem}[{number}]", "exec"), space)
            print(f"{path.stem}: cell {number} of {len(cells)} ran", flush=True)
        except Exception as error:
            print(f"{path.stem}: cell {number} of {len(cells)}: {error!r:.300}", flush=True)


class Digits(torch.utils.data.Dataset[Any]):
    """Images [1, 28, 28] of stripes, each with the number of its place."""

    def __init__(self, *unused: Any, train: bool = True, **options: Any) -> None:
        generator = torch.Generator().manual_seed(int(train))
        self.numbers = torch.randint(0, 10, (512,), generator=generator)
        self.images = torch.randn(512, 1, 28, 28, generator=generator) * 0.3
        for image, number in zip(self.images, self.numbers.tolist(), strict=True):
            image[0, 2 * number : 2 * number + 4] += 2

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index], int(self.numbers[index])


def mnist(root: Path, *options: str) -> None:
    """Two epochs; torchvision's data is not downloaded."""
    vision = ModuleType("torchvision")
    vision.__spec__ = ModuleSpec("torchvision", None)
    nothing = lambda *unused: None  # noqa: E731
    parts = {
        "datasets": SimpleNamespace(MNIST=Digits),
        "transforms": SimpleNamespace(Compose=nothing, ToTensor=nothing, Normalize=nothing),
    }
    vars(vision).update(parts)
    modules = {"torchvision": vision} | {f"torchvision.{name}": one for name, one in parts.items()}
    words = ["main.py", "--epochs", "2", "--batch-size", "64", "--test-batch-size", "128", *options]
    sys.modules.update(modules)  # type: ignore[arg-type]
    with patch.object(sys, "argv", words):
        runpy.run_path(str(root / "examples/pytorch/mnist/main.py"), run_name="__main__")


def llama(root: Path) -> None:
    """Transformers' model against the example's with the same weights; five steps in FP8."""
    sys.path.insert(0, str(root / "docs/examples/te_llama"))
    import te_llama  # type: ignore[import-not-found]
    import transformer_engine.pytorch as te
    from transformer_engine.common import recipe
    from transformers import LlamaConfig, LlamaForCausalLM  # type: ignore[import-untyped]

    torch.manual_seed(0)
    config = LlamaConfig(**_SIZES, num_key_value_heads=2, rms_norm_eps=1e-5)
    theirs, model = LlamaForCausalLM(config).cuda(), te_llama.TELlamaForCausalLM(config).cuda()
    te_llama.replace_params(theirs.state_dict(), model.state_dict(), config)
    model.load_state_dict(theirs.state_dict(), strict=False)
    ids = torch.randint(0, 256, (2, 32), device="cuda")
    off = (theirs(ids).logits - model(ids).logits).abs().max().item()
    print(f"llama: logits off by {off:.1e}; with another norm by", end=" ")
    with torch.no_grad():
        theirs.model.norm.weight.mul_(1.01)
    print(f"{(theirs(ids).logits - model(ids).logits).abs().max().item():.1e}")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(5):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            with te.autocast(enabled=True, recipe=recipe.DelayedScaling()):
                loss = model(ids, labels=ids).loss
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"llama: loss {loss.item():.4f}", flush=True)


def gemma(root: Path) -> None:
    """Generate in bfloat16 and in FP8."""
    sys.path.insert(0, str(root / "docs/examples/te_gemma"))
    import te_gemma  # type: ignore[import-not-found]
    from transformers import GemmaConfig

    for fp8 in (False, True):
        torch.manual_seed(0)
        config = GemmaConfig(**_SIZES, num_key_value_heads=4, head_dim=16)
        vars(config).update(fp8=fp8, fuse_qkv_params=False, is_paged=False, max_seq_length=64)
        vars(config).update(generation_cuda_graphs=False)
        ids = torch.randint(1, 256, (8, 16), device="cuda")
        made = te_gemma.TEGemmaForCausalLM(config).generate(ids, max_new_tokens=8)
        print("gemma:", "FP8" if fp8 else "bf16", made[0, 16:].tolist(), flush=True)


def main() -> None:
    """Run those that are named."""
    root = Path(sys.argv[1])
    # mnist last: Transformers would take its torchvision for the real one.
    for name in sys.argv[2:] or ("llama", "gemma", "fp8_primer", "mnist"):
        if name == "mnist":
            mnist(root, "--use-te")
            mnist(root, "--use-fp8")
        elif name in ("llama", "gemma"):
            {"llama": llama, "gemma": gemma}[name](root)
        else:
            notebook(root / "docs/examples" / f"{name}.ipynb")


if __name__ == "__main__":
    main()
