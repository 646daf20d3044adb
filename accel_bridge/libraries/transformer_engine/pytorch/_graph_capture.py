"""Captures the graphs of several callables, in the order in which they will be played."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ._graph_order import Order, pipeline_order, plain_order
from ._graph_slots import Slot
from .quantization import FP8GlobalStateManager


def capture(
    modules: Sequence[torch.nn.Module],
    args: list[Any],
    kwargs: list[Any],
    warmups: int,
    allow_unused_input: bool,
    caches: bool,
    passes: Sequence[float] | None,
    layers: Sequence[int] | int | None,
    pool: Any,
    retains: bool,
    reuses: bool,
) -> list[Any]:
    """The modules, or with ``passes`` a function for each sample; see ``make_graphed_callables``.

    :raises AssertionError: modules in training and others, with hooks or with trained buffers;
        numbers of samples and passes that do not fit together.
    """
    trains = all(module.training for module in modules)
    assert trains or not any(module.training for module in modules), (
        "make_graphed_callables only supports when modules are all in training or all in"
        " inference mode."
    )
    for module in modules:
        if module._backward_hooks or module._forward_hooks or module._forward_pre_hooks:
            raise AssertionError(
                "Modules must not have hooks registered at the time they are passed. However, "
                "registering hooks on modules after passing them through make_graphed_callables "
                "is allowed."
            )
        assert not any(buffer.requires_grad for buffer in module.buffers()), (
            "In any Module passed to make_graphed_callables, only parameters may be trainable."
        )
    assert len(args) == len(kwargs), f"{len(args)} sample_args, {len(kwargs)} sample_kwargs"
    if passes is None:
        assert len(args) == len(modules), f"{len(args)} sample_args, {len(modules)} modules"
        order = plain_order(len(modules))
    else:
        order = pipeline_order(passes, layers, len(modules), len(args))
    if reuses:
        assert passes is not None, (
            "`_order` must be provided when `_reuse_graph_input_output_buffers` is True."
        )
        assert trains, "`_reuse_graph_input_output_buffers` is only available in training mode."
        _share_inputs(order, args, kwargs)
    slots = [
        Slot(modules[order.layer_of(index)], *sample, trains)
        for index, sample in enumerate(zip(args, kwargs, strict=True))
    ]
    pool = torch.cuda.graph_pool_handle() if pool is None else pool
    torch.cuda.synchronize()
    steps = list(order.steps())
    with torch.cuda.stream(torch.cuda.Stream()):
        for _, step, index in steps:
            if step == "forward":
                slots[index].warm_up(warmups, allow_unused_input)
    torch.cuda.synchronize()
    if passes is not None:
        _check_weight_gradients(steps, slots)
    _capture_all(steps, slots, pool, retains, reuses)
    return [_graphed(slot, caches, passes is None) for slot in slots]


def _capture_all(
    steps: Sequence[tuple[int, str, int]],
    slots: Sequence[Slot],
    pool: Any,
    retains: bool,
    reuses: bool,
) -> None:
    shared: dict[Any, tuple[Any, ...]] | None = {} if reuses else None
    before: Slot | None = None
    sent: Slot | None = None
    numbers = [number for number, *_ in steps]
    for place, (number, step, index) in enumerate(steps):
        slot = slots[index]
        if step == "forward":
            slot.capture_forward(pool)
        elif step == "wgrad":
            if slot.delays:
                slot.capture_wgrad(pool)
        else:
            slot.capture_backward(pool, retains, shared)
            if not reuses:
                continue
            # Its outputs were read for the last time, and so was what the layer after it returned.
            slot.weaken(outputs=True)
            if before is not None:
                before.weaken(gradients=True)
            before = slot
            if place + 1 == len(steps) or numbers[place + 1] != number:
                # What the chunk returns is sent to another stage while the next one runs.
                if sent is not None:
                    sent.weaken(gradients=True)
                before, sent = None, slot


def _check_weight_gradients(steps: Sequence[tuple[int, str, int]], slots: Sequence[Slot]) -> None:
    """:raises AssertionError: delayed weight gradients without their pass, or the reverse."""
    counted = {"backward": 0, "wgrad": 0}
    for _, step, index in steps:
        if step != "forward" and slots[index].delays:
            counted[step] += 1
        assert step != "wgrad" or slots[index].delays, (
            "No module needs wgrad computation but get float in order"
        )
    assert counted["backward"] == counted["wgrad"], (
        f"Number of wgrad graph({counted['wgrad']}) doesn't match number "
        f"of dgrad graphs ({counted['backward']})."
    )


def _share_inputs(order: Order, args: list[Any], kwargs: list[Any]) -> None:
    """Let samples that are never under way together have the same tensors, in place."""

    def key(index: int) -> tuple[Any, ...]:
        named = sorted(kwargs[index].items())
        return (
            *((one.shape, one.dtype, one.layout) for one in args[index]),
            *((name, one.shape, one.dtype, one.layout) for name, one in named),
        )

    free: defaultdict[Any, list[int]] = defaultdict(list)
    for _, step, index in order.steps():
        if step == "forward":
            if free[key(index)]:
                other = free[key(index)].pop(0)
                args[index], kwargs[index] = args[other], kwargs[other]
        elif step == "backward":
            free[key(index)].append(index)


def _graphed(slot: Slot, caches: bool, replaces: bool) -> Any:
    """The slot's module with a forward pass that plays graphs, or that forward pass."""
    play = slot.replay(caches)
    module = slot.function
    original: Callable[..., Any] = module.forward
    trains = module.training

    def forward(*args: Any, **kwargs: Any) -> Any:
        if module.training != trains:
            return original(*args, **kwargs)
        if FP8GlobalStateManager.is_fp8_enabled():
            slot.share_fp8_state()
        return play(*args, **kwargs)

    result: Any = forward
    if replaces:
        module.forward = forward
        result = module
    result.backward_dw = slot.backward_dw
    result.reset = slot.reset
    return result
