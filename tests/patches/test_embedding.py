"""The embedding whose gradient goes into ``main_grad``, beside upstream's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from upstream_linear import linear

from accel_bridge.kernels import EMBEDDING_GRADIENT, reference_kernel

# Not imported here: collecting the tests would import Megatron.
pytestmark = pytest.mark.megatron
KERNEL = reference_kernel(EMBEDDING_GRADIENT, "for a test")
ROWS, HIDDEN = 8, 5


class Group:
    """A tensor-parallel group that is only asked for its size."""

    def __init__(self, size: int) -> None:
        self._size = size

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return 0


def module(start: int = 0, ranks: int = 1, **changes: Any) -> Any:
    """A ``VocabParallelEmbedding`` with rows ``start`` to ``start + ROWS`` of its table."""
    from megatron.core.tensor_parallel import layers

    made: Any = layers.VocabParallelEmbedding.__new__(layers.VocabParallelEmbedding)
    torch.nn.Module.__init__(made)
    table = torch.randn(ROWS, HIDDEN, generator=torch.Generator().manual_seed(1))
    made.weight = torch.nn.Parameter(table)
    made.weight.main_grad = torch.ones(ROWS, HIDDEN)
    made.weight.grad_added_to_main_grad = False
    made.config = SimpleNamespace(gradient_accumulation_fusion=True)
    made.tp_group, made.gtp_remat_size = Group(ranks), 1
    made.vocab_start_index, made.vocab_end_index = start, start + ROWS
    made.deterministic_mode = made.reduce_scatter_embeddings = False
    made.use_inference_optimized_reduce_scatter = False
    for name, value in changes.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(("start", "ranks"), [(0, 1), (0, 2), (8, 2)])
def test_it_equals_upstreams(monkeypatch: pytest.MonkeyPatch, start: int, ranks: int) -> None:
    from megatron.core.tensor_parallel import layers

    from accel_bridge.patches.modules import embedding

    def own_rows(rows: Any, group: Any) -> Any:
        """The sum over ranks, of which the other has zeros."""
        return rows * 1.0

    for place in (layers, embedding):
        monkeypatch.setattr(place, "reduce_from_tensor_model_parallel_region", own_rows)
    tokens = torch.tensor([[0, 3, 9, 3], [15, 8, 7, 0]]) if ranks == 2 else torch.arange(8) % 3
    ours, theirs = module(start, ranks), module(start, ranks)
    assert embedding.is_fused(ours)
    output = embedding.embedding_forward(ours, tokens, KERNEL)
    expected = theirs(tokens)
    torch.testing.assert_close(output, expected)
    for result in (output, expected):
        result.square().sum().backward()
    assert theirs.weight.grad is not None
    torch.testing.assert_close(ours.weight.main_grad, 1 + theirs.weight.grad)
    assert ours.weight.grad_added_to_main_grad is True
    assert ours.weight.grad.shape == ours.weight.shape  # what Megatron's hook sees


def megatrons_hook(weight: Any) -> list[bool]:
    """What Megatron hangs on a weight, in short; True each time that it adds a gradient."""
    node = weight.expand_as(weight).grad_fn.next_functions[0][0]
    added: list[bool] = []

    def hook(*unused: object) -> None:
        assert weight.grad is not None
        added.append(not weight.grad_added_to_main_grad or weight.zero_out_wgrad)
        if added[-1]:
            weight.main_grad.add_(weight.grad)
        weight.grad = None

    node.register_hook(hook)
    weight.keep = node
    return added


@pytest.mark.parametrize("other_use", [False, True])
def test_tied_weights_get_both_gradients(other_use: bool) -> None:
    """From embedding and output layer; a use that knows nothing of main_grad counts as well."""
    from accel_bridge.patches.modules.embedding import embedding_forward

    tokens = torch.tensor([[1, 5, 1]])
    made, twin = module(), module()
    weight = made.weight
    weight.zero_out_wgrad = True
    added = megatrons_hook(weight)
    for _ in range(2):  # micro batches
        hidden = embedding_forward(made, tokens, KERNEL)
        logits = linear(hidden, weight)
        (logits.square().sum() + (weight.cos().sum() if other_use else 0)).backward()
        assert weight.zero_out_wgrad is True
    assert added == [other_use] * 2
    plain = torch.nn.functional.linear(twin(tokens), twin.weight).square().sum()
    (2 * plain + (2 * twin.weight.cos().sum() if other_use else 0)).backward()
    torch.testing.assert_close(weight.main_grad, 1 + twin.weight.grad)


def test_an_output_layer_without_its_embedding_passes_zeros() -> None:
    weight = module().weight
    weight.zero_out_wgrad = True
    linear(torch.ones(2, 1, HIDDEN), weight).sum().backward()
    assert weight.grad.shape == weight.shape
    assert not weight.grad.any()
    assert torch.equal(weight.main_grad, torch.full((ROWS, HIDDEN), 3.0))


@pytest.mark.parametrize("what", ["frozen", "no buffer", "evaluation"])
def test_other_weights_stay_upstreams(what: str) -> None:
    from accel_bridge.patches.modules.embedding import is_fused

    made = module()
    if what == "frozen":
        made.weight.requires_grad_(False)
    elif what == "no buffer":
        del made.weight.main_grad
    with torch.set_grad_enabled(what != "evaluation"):
        assert not is_fused(made)
