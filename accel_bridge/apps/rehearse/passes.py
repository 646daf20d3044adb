"""Forward and backward passes of a model chunk: what one left, and a copy that leaves the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._subclasses import FakeTensor

from accel_bridge.apps.rehearse import values
from accel_bridge.apps.rehearse.mode import Rehearsal
from accel_bridge.apps.rehearse.work import less

#: A release of what no copy has.
UNKNOWN = ("", 0)
#: (bytes, module, operation, which of these) of an allocation of a pass.
Key = tuple[Any, ...]


class Own(int):
    """An allocation of a pass, counted from 0."""


class Like:
    """How to make a tensor again, without keeping it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.given = tensor.shape, tensor.stride(), tensor.dtype, tensor.device
        self.value = values.known(tensor)

    def make(self) -> torch.Tensor:
        shape, stride, dtype, device = self.given
        made = torch.empty_strided(shape, stride, dtype=dtype, device=device)
        if self.value is not None:
            values.give(made, self.value)
        return made


class Pass:
    """What a pass that is run in full leaves, from here to :meth:`end`.

    :ivar events: (bytes, (phase, module, operation)) of an allocation; (whose, which) of a release.
    :ivar kept: allocation of the pass, counted from 0 -> a tensor that the schedule gets, and
        releases.
    :ivar held: allocation -> its key, where a module holds it until its next pass.
    """

    def __init__(self, mode: Rehearsal) -> None:
        self.mode = mode
        self.first, self.begins = len(mode.ledger.sizes), len(mode.ledger.events)
        self.ends, self._call = 0, len(mode.collectives.calls)
        self.work = mode.work.rows()
        self.events: list[tuple[Any, Any]] = []
        self.kept: dict[int, Like] = {}
        self.held: dict[int, Key] = {}
        self._keys: list[Key] = []

    def end(
        self,
        names: dict[int | None, tuple[str, int]],
        before: Iterable[Pass],
        held: dict[Key, Any],
    ) -> None:
        """:param names: older allocations whose releases a copy can repeat.
        :param before: the passes that may have left something to the modules.
        :param held: what they hold, of which a copy takes the place.
        """
        ledger = self.mode.ledger
        self.ends = len(ledger.events)
        count: Counter[Any] = Counter()
        older = {reference.index: key for key, reference in held.items()}
        for one in before:
            older |= {one.first + place: key for place, key in enumerate(one._keys)}
        freed = set()
        for event in ledger.events[self.begins :]:
            if event >= 0:
                size, mark = ledger.sizes[event], ledger.marks[event][1:]
                what = size, *mark[1:]
                self._keys.append((*what, count[what]))
                count[what] += 1
                self.events.append((size, mark))
            elif ~event >= self.first:
                self.events.append(("own", ~event - self.first))
            elif ~event in names:
                self.events.append(names[~event])
            else:
                freed.add(older.get(~event))
                self.events.append(("held", older[~event]) if ~event in older else UNKNOWN)
        self.held = {place: key for place, key in enumerate(self._keys) if key in freed}
        taken = ((key, ledger.reference(self.first + place)) for place, key in self.held.items())
        now = {key: reference for key, reference in taken if reference is not None}
        held |= now
        if not freed <= now.keys():
            self.events.append(UNKNOWN)  # nothing takes its place
        self.calls = self.mode.collectives.calls[self._call :]
        self.work = less(self.mode.work.kinds, self.work)

    def keep(self, tensor: torch.Tensor) -> Own | torch.Tensor:
        """A tensor that the schedule gets: its allocation, or itself if it is older."""
        storage = tensor.untyped_storage()
        number = self.mode.ledger.number(storage)
        if number is None or number < self.first:
            return tensor
        own = Own(number - self.first)
        if own in self.kept or storage.nbytes() != tensor.numel() * tensor.element_size():
            self.events.append(UNKNOWN)  # others have a part of it
        self.kept[own] = Like(tensor)
        return own

    def names(self) -> dict[int | None, tuple[str, int]]:
        """Its allocations, for the backward pass, which releases them.

        None if the schedule has released some that a copy would not.
        """
        places = set(range(len(self._keys))) - self.kept.keys() - self.held.keys()
        own = {self.first + place: place for place in sorted(places)}
        if any(~event in own for event in self.mode.ledger.events[self.ends :]):
            return {}
        return {number: ("forward", place) for number, place in own.items()}

    def let_go(self, model: torch.nn.Module) -> None:
        """The next pass would give the modules other tensors than its own, and end its graph."""
        own = self.names()
        for module in model.modules():
            for owner in (module, *vars(module).values()):
                for name, value in list(getattr(owner, "__dict__", {}).items()):
                    if type(value) is FakeTensor is not type(owner):
                        number = self.mode.ledger.number(value.untyped_storage())
                        if number in own or value.grad_fn is not None:
                            new = torch.empty(0) if number in own else value.detach()
                            vars(owner)[name] = new

    def leaves(self) -> bool:
        """Whether any of them outlived its graph."""
        return not self.mode.ledger.alive().isdisjoint(self.names())

    def same(self, other: Pass | None) -> bool:
        """Whether the copies of two are the same, and there can be any."""
        return other is not None and UNKNOWN not in self.events and self._all() == other._all()

    def _all(self) -> tuple[Any, ...]:
        return self.events, [one.row()[1:] for one in self.calls], self.work, list(self.kept)


class Copy:
    """The passes of a microbatch that is not run in full.

    :param backward: gives the backward pass to copy, when it is due.
    """

    def __init__(
        self,
        forward: Pass,
        backward: Callable[[], Pass],
        inputs: Sequence[torch.Tensor],
        held: dict[Key, Any],
    ) -> None:
        self.mode, self._forward, self._backward = forward.mode, forward, backward
        self._inputs, self._held = inputs, held
        #: Its allocations that are not released: (whose, which) -> number.
        self._alive: dict[tuple[str, int], int] = {}

    def forward(self) -> dict[int, torch.Tensor]:
        """The tensors that the schedule gets."""
        return self._play(self._forward, "forward", ())

    def backward(self, gradient: torch.Tensor) -> None:
        made = self._play(self._backward(), "backward", (gradient, *self._inputs))
        for one, grad in zip(self._inputs, made.values(), strict=True):
            one.grad = grad

    def _play(self, one: Pass, whose: str, older: Sequence[torch.Tensor]) -> dict[int, Any]:
        mode, ledger = self.mode, self.mode.ledger
        made: dict[int, torch.Tensor] = {}
        number = 0
        for what, which in one.events:
            if what == "older":
                ledger.drop(older[which].untyped_storage())
            elif what == "held":
                ledger.release(self._held[which].index)
            elif isinstance(what, str):
                ledger.release(self._alive.pop((whose if what == "own" else what, which)))
            else:
                if number in one.kept:
                    made[number] = one.kept[number].make()
                    ledger.marks[-1] = (mode.step, *which)
                else:
                    place = ledger.allocate(what, (mode.step, *which))
                    self._alive[whose, number] = place
                number += 1
        for place, key in one.held.items():
            self._held[key].index = self._alive.pop((whose, place))
        mode.collectives.again(one.calls)
        mode.work.again(one.work, 1)
        return {number: made[number] for number in one.kept}

    def __del__(self) -> None:  # with its graph, which has what no operation released
        for number in self._alive.values():
            self.mode.ledger.release(number)


class Graph(torch.autograd.Function):
    """The graph of a copy, below the tensor that its forward pass gives to the next stage."""

    @staticmethod
    def forward(ctx: Any, copy: Copy, made: dict[int, torch.Tensor], anchor: torch.Tensor) -> Any:
        ctx.copy = copy
        made |= copy.forward()
        return next(iter(made.values()))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.copy.backward(gradients[0])
        return None, None, None
