"""Faults that every contract can have: something a call gives is used wrongly, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final

import torch

from accel_bridge.kernels.cases import Case

Change = Callable[[Any], Any]

#: Inputs that promise something about the call, or allow a faster way: no result depends on them.
HINTS: Final = {"complete", "precise"}


def changes(cases: Iterable[Case]) -> Iterator[tuple[str, str, Change]]:
    """For the cases of one contract: what is wrong, the input's name, and its wrong value.

    A change gives back a value that it does not apply to.
    """
    seen: dict[str, list[Any]] = {}
    differentiated, in_place = set[str](), set[str]()
    for case in cases:
        differentiated |= set(case.gradients)
        in_place |= set(case.changed)
        for name, value in case.inputs().items():
            seen.setdefault(name, []).append(value)
    for name, values in seen.items():
        if name in in_place | HINTS:
            continue
        for words, change in _of_one(values):
            yield f"{name} {words}", name, change
        if name in differentiated:
            yield f"{name} has half of its gradient", name, _half_detached


def changed(cases: Iterable[Case], name: str, change: Change) -> Iterator[Case]:
    """The cases to which the change applies."""
    for case in cases:
        inputs = case.inputs()
        for one in case.gradients:
            inputs[one].requires_grad_()
        if name in inputs and _differs(change(inputs[name]), inputs[name]):
            yield case


def _differs(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return first.requires_grad or not torch.equal(first, second)
    if isinstance(first, list):
        return any(map(_differs, first, second))
    if is_dataclass(first):
        return any(_differs(getattr(first, f.name), getattr(second, f.name)) for f in fields(first))
    return type(first) is not type(second) or bool(first != second)


def _of_one(values: list[Any]) -> Iterator[tuple[str, Change]]:
    if any(isinstance(value, torch.Tensor) for value in values):
        yield "moved by one", _moved
        if any(value is None for value in values):
            yield "left out", lambda value: None
    elif isinstance(values[0], list) and isinstance(values[0][0], torch.Tensor):
        yield "moved by one", lambda value: [_moved(one) for one in value]
    elif is_dataclass(values[0]):
        for field in fields(values[0]):
            for words, change in _of_one([getattr(value, field.name) for value in values]):
                yield f"{field.name} {words}", _in_field(field.name, change)
    else:
        if any(isinstance(value, (tuple, list)) and len(value) > 1 for value in values):
            yield "in another order", lambda value: value and type(value)((*value[1:], value[0]))
        elif len(set(values)) > 1:
            for other in set(values):
                yield f"taken as {other}", _always(other)
        elif isinstance(values[0], (int, float)) and not isinstance(values[0], bool):
            yield "doubled", lambda value: 2 * value


def _always(other: Any) -> Change:
    return lambda value: other


def _in_field(name: str, change: Change) -> Change:
    return lambda value: replace(value, **{name: change(getattr(value, name))})


def _moved(value: Any) -> Any:
    """Each number in the place of the one before it; a single one is 2% larger."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.numel() == 1:
        return value * 1.02 if value.is_floating_point() else value + 1
    if value.is_floating_point() and value.element_size() == 1:
        return _moved(value.view(torch.uint8)).view(value.dtype)
    return value.flatten().roll(1).view_as(value)


def _half_detached(value: Any) -> Any:
    return (value + value.detach()) / 2 if isinstance(value, torch.Tensor) else value
