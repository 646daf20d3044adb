"""The local spec's attention beside upstream's own: prints a JSON object, name -> difference.

A subclass of Megatron's class keeps upstream's code: it is what ours is compared with. ``injected``
are the differences with scores that are 1% too large.
"""

from __future__ import annotations

import json
from typing import Any

import accel_bridge.auto  # noqa: F401 - before Megatron

# isort: split
import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnBackend, AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig

LENGTH, BATCH, SIZE = 12, 2, 8


class Upstream(DotProductAttention):  # type: ignore[misc]
    """Upstream's code: the patch leaves subclasses alone."""


def masks() -> dict[str, torch.Tensor]:
    """Explicit masks [b, 1, s, s], True = hidden."""
    later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    document = torch.arange(LENGTH) // 5
    padding = torch.arange(LENGTH) >= LENGTH - torch.tensor([[0], [3]])
    return {
        "documents": (later | (document[:, None] != document)).expand(BATCH, 1, -1, -1),
        "padding": (padding[:, None, :, None] | padding[:, None, None, :]),
    }


#: Name -> (mask type, explicit mask, options of the configuration, length of the query).
CASES: dict[str, tuple[str, str | None, dict[str, Any], int]] = {
    "causal": ("causal", None, {}, LENGTH),
    "window": ("causal", None, {"window_size": (3, 0)}, LENGTH),
    "documents": ("causal", "documents", {}, LENGTH),
    "bert": ("padding", "padding", {}, LENGTH),
    "everything": ("no_mask", None, {}, LENGTH),
    "new token": ("causal", None, {}, 1),
    "off by one": ("causal", None, {"softmax_type": "off-by-one"}, LENGTH),
    "sink": ("causal", None, {"softmax_type": "learnable"}, LENGTH),
    "scaled": (
        "causal",
        None,
        {"apply_query_key_layer_scaling": True, "attention_softmax_in_fp32": True},
        LENGTH,
    ),
    "deterministic": ("causal", None, {"deterministic_mode": True}, LENGTH),
    "scale": ("causal", None, {}, LENGTH),
    "local": ("causal", None, {"attention_backend": AttnBackend.local}, LENGTH),
}


def build(cls: Any, name: str) -> Any:
    """One layer's attention, in its second layer."""
    kind, _, options, _ = CASES[name]
    config = TransformerConfig(
        num_layers=2,
        hidden_size=4 * SIZE,
        num_attention_heads=4,
        num_query_groups=2,
        attention_dropout=0.0,
        masked_softmax_fusion=False,
        **options,
    )
    torch.manual_seed(3)
    more = {"softmax_scale": 0.7} if name == "scale" else {}
    return cls(config, 2, AttnMaskType[kind], "self", **more)


def compare(name: str, factor: float) -> float:
    """Largest difference of outputs and gradients; upstream's queries are ``factor`` as large."""
    mask, length = CASES[name][1], CASES[name][3]
    found = []
    for cls in (DotProductAttention, Upstream):
        module = build(cls, name)
        torch.manual_seed(7)
        shapes = ((length, BATCH, 4, SIZE), (LENGTH, BATCH, 2, SIZE), (LENGTH, BATCH, 2, SIZE))
        leaves = [torch.randn(shape).requires_grad_() for shape in shapes]
        hidden = masks()[mask] if mask is not None else None
        scaled = leaves[0] * (factor if cls is Upstream else 1.0)
        output = module(scaled, *leaves[1:], hidden)
        # Rows without any visible key: upstream gives the mean of all values, ours zeros.
        rows = torch.ones(length, BATCH, 1)
        if mask is not None:
            rows = 1.0 - masks()[mask][:, 0].all(-1).T.unsqueeze(-1).float()
        (output * rows).square().sum().backward()
        found.append([output.detach() * rows, *(leaf.grad for leaf in leaves)])
        if name == "sink":
            found[-1].append(module.softmax_offset.grad)
    return max(float((one - other).abs().max()) for one, other in zip(*found, strict=True))


def main() -> None:
    """Print the differences, the keys of the state and the classes."""
    torch.set_default_device("cuda")
    method = "tcp://127.0.0.1:0"
    torch.distributed.init_process_group("gloo", init_method=method, rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    made, kept = build(DotProductAttention, "causal"), build(Upstream, "causal")
    sink = build(DotProductAttention, "sink")
    bases = [type(made).__name__, type(made).__mro__[1].__name__]
    found = {
        "differences": {name: compare(name, 1.0) for name in CASES},
        "injected": {name: compare(name, 1.01) for name in CASES},
        "state": {"causal": list(made.state_dict()), "sink": list(sink.state_dict())},
        "kinds": [*bases, hasattr(kept, "scale_mask_softmax")],
    }
    print(json.dumps(found))


main()
