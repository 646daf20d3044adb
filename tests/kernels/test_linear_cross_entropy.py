"""Output layer and loss in chunks: any gradients of the losses, any split of the vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from accel_bridge.backends import _linear_cross_entropy as chunked
from accel_bridge.backends.cpu.kernels import KERNELS
from accel_bridge.kernels import LINEAR_CROSS_ENTROPY, saves_memory

_KERNEL = KERNELS[LINEAR_CROSS_ENTROPY]
#: Tokens of a chunk here, so that there are several, the last one shorter.
_CHUNK = 16
LIMIT = 1e-12


def problem(seed: int) -> dict[str, Any]:
    """Random sizes and values in float64, the gradients of the losses by name among them."""
    draws = torch.Generator().manual_seed(seed)

    def size(least: int, most: int) -> int:
        return int(torch.randint(least, most, (), generator=draws))

    tokens, hidden, vocabulary = size(1, 70), size(1, 20), 2 * size(1, 40)
    shape = (tokens, size(1, 3))
    mask = (torch.rand(shape, generator=draws) > 0.3).double()
    few = torch.ones(shape, dtype=torch.float64)
    few[-1] = 0  # as in MTP, whose last token has no label
    return {
        "input": torch.randn(*shape, hidden, generator=draws, dtype=torch.float64),
        "weight": torch.randn(vocabulary, hidden, generator=draws, dtype=torch.float64),
        "target": torch.randint(-1, vocabulary, shape, generator=draws),
        "scale": (1.0, 0.3)[seed % 2],
        "mask": mask,
        "losses": {
            "a mask": mask * 0.01,
            "one number": torch.full_like(mask, 3.0),
            "few without": few * -2,
            "all different": torch.rand(shape, generator=draws, dtype=torch.float64),
            "one is large": torch.ones_like(mask).index_fill(0, torch.tensor([0]), 1e9),
            "none": torch.zeros_like(mask),
        },
    }


def worst(
    function: Callable[..., Any],
    given: dict[str, Any],
    losses: str,
    *,
    masked: bool,
    added: bool,
    group: dist.ProcessGroup | None = None,
) -> float:
    """Largest error of loss and gradients against the reference on one process, relative."""
    rank, ranks = (0, 1) if group is None else (group.rank(), group.size())
    results = []
    for call, weight, within in (
        (LINEAR_CROSS_ENTROPY.reference, given["weight"], None),
        (function, given["weight"].chunk(ranks)[rank], group),
    ):
        x, w = given["input"].clone().requires_grad_(), weight.clone().requires_grad_()
        main_grad = torch.ones_like(w, requires_grad=False) if added else None
        loss = call(
            x,
            w,
            given["target"],
            token_weight=given["mask"] if masked else None,
            group=within,
            scale=given["scale"],
            main_grad=main_grad,
        )
        loss.backward(given["losses"][losses])
        assert added is (w.grad is None)
        assert x.grad is not None
        gradient = x.grad
        if within is not None:
            dist.all_reduce(gradient, group=within)
        found = main_grad if main_grad is not None else w.grad
        assert found is not None
        results.append((loss.detach(), gradient, found))
    exact, mine = results
    exact = (*exact[:2], exact[2].chunk(ranks)[rank])
    return max(
        float((one - other).abs().max() / other.abs().max().clamp(min=1e-3))
        for one, other in zip(mine, exact, strict=True)
    )


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "LOSS_CHUNK", _CHUNK)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("added", [False, True])
def test_equals_the_reference(masked: bool, added: bool) -> None:
    for seed in range(8):
        given = problem(seed)
        for losses in given["losses"]:
            error = worst(_KERNEL, given, losses, masked=masked, added=added)
            assert error < LIMIT, (seed, losses)


def test_tokens_that_fit_are_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    given = problem(3)
    products: list[int] = []
    made = chunked._logits

    def counted(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        products.append(len(x))
        return made(x, *rest)

    monkeypatch.setattr(chunked, "_logits", counted)
    tokens = given["target"].numel()
    last = given["target"].shape[1]
    for losses, masked, again in (
        ("a mask", True, 0),
        ("one number", False, 0),
        ("few without", False, last),
        ("none", False, 0),
    ):
        products.clear()
        worst(_KERNEL, given, losses, masked=masked, added=True)
        assert sum(products) == tokens + again, losses


def test_nothing_is_kept_without_gradients() -> None:
    given = problem(5)
    with torch.no_grad():
        loss = _KERNEL(given["input"], given["weight"], given["target"])
    assert loss.grad_fn is None
    x = given["input"].requires_grad_()
    _KERNEL(x, given["weight"], given["target"]).sum().backward()  # a frozen weight
    assert x.grad is not None


def test_small_models_and_short_batches_keep_their_logits() -> None:
    assert saves_memory(32768, 4096, 128256, 2, trains_weight=True)
    assert not saves_memory(8192, 4096, 128256, 2, trains_weight=True)
    assert saves_memory(8192, 4096, 128256, 2, trains_weight=False)
    assert not saves_memory(4096, 4096, 128256, 2, trains_weight=False)


def over_ranks(group: dist.ProcessGroup) -> float:
    """The largest error of this rank; test_vocab_parallel.py has the ranks."""
    chunked.LOSS_CHUNK = _CHUNK
    return max(
        worst(_KERNEL, given, losses, masked=bool(seed % 2), added=seed > 2, group=group)
        for seed in range(5)
        for given in [problem(seed)]
        for losses in given["losses"]
    )
