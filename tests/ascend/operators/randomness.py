"""Random operators: no values to compare, but distributions, seeds and states."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

COUNT = 20_000


def near(value: torch.Tensor, wanted: float, room: float) -> None:
    assert abs(value.item() - wanted) < room, f"{value.item()} is not {wanted} +- {room}"


def moments(x: torch.Tensor, mean: float, deviation: float) -> None:
    """Within five standard errors, roughly."""
    near(x.float().mean(), mean, 5 * deviation / COUNT**0.5)
    near(x.float().std(), deviation, 0.03 * deviation)


def uniform() -> None:
    x = torch.empty(COUNT, device="npu").uniform_(-2, 4)
    assert x.min() >= -2
    assert x.max() < 4
    moments(x, 1.0, 6 / 12**0.5)
    moments(torch.rand(COUNT, device="npu", dtype=torch.bfloat16), 0.5, 12**-0.5)


def normal() -> None:
    moments(torch.randn(COUNT, device="npu"), 0.0, 1.0)
    moments(torch.empty(COUNT, device="npu").normal_(3, 0.5), 3.0, 0.5)
    moments(torch.empty(COUNT, device="npu", dtype=torch.half).normal_(3, 0.5), 3.0, 0.5)


def integers() -> None:
    x = torch.randint(3, 13, (COUNT,), device="npu")
    assert x.min() == 3
    assert x.max() == 12
    moments(x, 7.5, (99 / 12) ** 0.5)


def bernoulli() -> None:
    moments(torch.empty(COUNT, device="npu").bernoulli_(0.3), 0.3, 0.21**0.5)
    chances = torch.full((COUNT,), 0.8, device="npu")
    moments(torch.bernoulli(chances), 0.8, 0.16**0.5)


def permutation() -> None:
    x = torch.randperm(100, device="npu")
    assert x.cpu().sort().values.equal(torch.arange(100))
    assert not x.cpu().equal(torch.arange(100))


def multinomial() -> None:
    weights = torch.tensor([0.0, 1.0, 3.0], device="npu")
    drawn = torch.multinomial(weights, COUNT, replacement=True)
    moments(drawn, 1.75, (0.75 * 0.25) ** 0.5)
    once = torch.multinomial(torch.ones(5, device="npu"), 5)
    assert once.cpu().sort().values.equal(torch.arange(5))


def dropout() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.ones(COUNT, device="npu", dtype=dtype, requires_grad=True)
        y = functional.dropout(x, 0.25)
        kept = y != 0
        near(kept.float().mean(), 0.75, 0.02)
        torch.testing.assert_close(y, kept.to(dtype) / 0.75, rtol=1e-2, atol=0)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(gradient, y.detach())
        # No stripes: neighbours, and places eight apart, are independent.
        for step in (1, 8, 128):
            near((kept[step:] & kept[:-step]).float().mean(), 0.75**2, 0.02)
    assert functional.dropout(x, 0.25, training=False).equal(x)
    assert functional.dropout(x, 1.0).eq(0).all()


def draws() -> list[torch.Tensor]:
    ones = torch.ones(64, device="npu")
    return [
        torch.rand(64, device="npu"),
        torch.randn(64, device="npu"),
        torch.randint(0, 1000, (64,), device="npu"),
        torch.randperm(64, device="npu"),
        torch.empty(64, device="npu").bernoulli_(0.5),
        torch.multinomial(ones, 64, replacement=True),
        functional.dropout(ones, 0.5),
    ]


def seeds() -> None:
    torch.manual_seed(7)
    first, next_ones = draws(), draws()
    torch.npu.manual_seed(7)
    again = draws()
    for one, same, other in zip(first, again, next_ones, strict=True):
        assert one.equal(same), "the same seed gives other numbers"
        assert not one.equal(other), "later numbers repeat the first"
    torch.manual_seed(8)
    for one, other in zip(first, draws(), strict=True):
        assert not one.equal(other), "another seed gives the same numbers"


def states() -> None:
    torch.npu.manual_seed(3)
    torch.rand(5, device="npu")
    state = torch.npu.get_rng_state()
    first = draws()
    torch.npu.set_rng_state(state)
    for one, same in zip(first, draws(), strict=True):
        assert one.equal(same)
    generator = torch.Generator("npu").manual_seed(5)
    own = torch.rand(8, device="npu", generator=generator)
    assert own.equal(torch.rand(8, device="npu", generator=generator.manual_seed(5)))


CHECKS: dict[str, Callable[[], None]] = {
    f"random-{check.__name__}": check
    for check in (
        *(uniform, normal, integers, bernoulli, permutation),
        *(multinomial, dropout, seeds, states),
    )
}
