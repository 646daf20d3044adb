"""Random generators: the device's, and the host's where the device shares it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
import torch.utils.data
from torch.utils.data import dataloader, sampler

from accel_bridge.device._context import Context
from accel_bridge.device._cuda_module import translating_class

#: Samplers that draw from the default generator when they are given none.
SAMPLERS: Final = ("RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler")


class HostGenerator:
    """A generator state for what a CUDA machine draws on the host.

    Where device tensors are host tensors, ``torch.default_generator`` serves as the device's
    generator. On a CUDA machine the base seed of a DataLoader and the order of a sampler come
    from the host's generator instead. Only some ranks of a tensor-parallel group have a data
    iterator, so drawing those from the shared generator would silently put the ranks' dropout
    out of step.
    """

    def __init__(self) -> None:
        self._state = torch.default_generator.get_state()
        self._depth = 0

    def manual_seed(self, seed: int) -> None:
        """Seed as ``torch.manual_seed`` does."""
        generator = torch.Generator()
        self._state = generator.manual_seed(seed).get_state()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Inside the block ``torch.default_generator`` is the host's; blocks can be nested."""
        self._depth += 1
        try:
            if self._depth > 1:
                yield
                return
            device_state = torch.default_generator.get_state()
            torch.default_generator.set_state(self._state)
            try:
                yield
            finally:
                self._state = torch.default_generator.get_state()
                torch.default_generator.set_state(device_state)
        finally:
            self._depth -= 1


def redirect_generators(context: Context) -> None:
    """Redirect ``torch.Generator(device=...)``."""
    proxy = translating_class(
        torch.Generator, context.devices, module="torch", name="Generator", numbers=True
    )
    context.replace(torch, "Generator", proxy)


def host_generator(context: Context) -> None:
    """A part for a device that draws from ``torch.default_generator``: the host gets its own."""
    host = HostGenerator()
    seeds = {
        name: (original, _seeding(original, host))
        for name in ("manual_seed", "seed")
        if (original := getattr(torch.random, name, None)) is not None
    }
    context.replace_everywhere("torch.random", seeds)
    for name, (_, new) in seeds.items():
        context.replace(torch, name, new)
    context.wrap(dataloader.DataLoader, "__iter__", lambda original: _on_host(original, host))
    context.wrap(
        dataloader._BaseDataLoaderIter, "__next__", lambda original: _on_host(original, host)
    )
    for name in SAMPLERS:
        context.wrap(
            getattr(sampler, name), "__iter__", lambda original: _iterate_on_host(original, host)
        )
    context.wrap(torch.utils.data, "random_split", lambda original: _on_host(original, host))


def _seeding(original: Callable[..., Any], host: HostGenerator) -> Callable[..., Any]:
    @functools.wraps(original)
    def seed(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        host.manual_seed(torch.default_generator.initial_seed())
        return result

    return seed


def _on_host(original: Callable[..., Any], host: HostGenerator) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with host.active():
            return original(*args, **kwargs)

    return call


def _iterate_on_host(original: Callable[..., Any], host: HostGenerator) -> Callable[..., Any]:
    def iterate(self: Any) -> Iterator[Any]:
        iterator = iter(original(self))
        while True:
            with host.active():
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item

    return iterate


def generator_state() -> torch.Tensor:
    """State of the generator that unqualified random operations draw from, as a byte tensor."""
    return torch.default_generator.get_state()


def set_generator_state(state: torch.Tensor) -> None:
    """Put back what :func:`generator_state` returned."""
    torch.default_generator.set_state(state)
