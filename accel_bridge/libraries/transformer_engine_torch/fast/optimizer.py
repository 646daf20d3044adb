"""The step of ``FusedAdam`` whose parameters, gradients and moments are plain float32 tensors.

Such a step can clip the gradients and write the model's copies of the parameters, too, which then
are not read once more before and after it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, compress, zip_longest
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch

from accel_bridge.kernels.adamw import scale_in_place, write_copies
from accel_bridge.libraries.adam import AdamNumbers, adam
from accel_bridge.libraries.transformer_engine_torch.fast import PLAIN, is_above_our_extension

_MOMENTS: Final = ("exp_avg", "exp_avg_sq")
#: Name of the number of tensors above which Transformer Engine makes several calls.
_MOST: Final = "_MAX_TENSORS_PER_MULTI_TENSOR_ADAM_CALL"

#: Gradients, parameters and both moments.
Lists = list[list[torch.Tensor]]

#: Optimizers that took such a step -> the factor of the gradients in the next one, or None.
_scales: Final[WeakKeyDictionary[Any, torch.Tensor | None]] = WeakKeyDictionary()


#: Optimizers -> copies of their parameters that a step is to write; none are left when it did.
_copies: Final[WeakKeyDictionary[Any, dict[torch.Tensor, torch.Tensor]]] = WeakKeyDictionary()


@contextmanager
def copies_in_step(optimizer: Any, copies: Mapping[torch.Tensor, torch.Tensor]) -> Iterator[None]:
    """Have a step of the optimizer inside write the model's copies of its parameters.

    :param optimizer: any object; one that takes no such step is left alone.
    :param copies: parameter -> its copy, in the same order of elements and any dtype.
    """
    if not copies or optimizer not in _scales or any(type(c) not in PLAIN for c in copies.values()):
        yield
        return
    _copies[optimizer] = dict(copies)
    try:
        yield
    finally:
        del _copies[optimizer]


def has_written_copies(optimizer: Any) -> bool:
    """Whether the step inside of :func:`copies_in_step` wrote all of them."""
    return optimizer in _copies and not _copies[optimizer]


def clip_in_step(
    parameters: Sequence[torch.Tensor], max_norm: float, total_norm: float | torch.Tensor
) -> bool:
    """Have the gradients clipped by the next step of the optimizer with just these parameters.

    :param max_norm: largest norm of the gradients that is left as it is.
    :param total_norm: their norm: a number, or float32 [1] on their device.
    :returns: False if there is no such optimizer; nothing is done.
    """
    optimizer = next((one for one in _scales if _has_just(one, parameters)), None)
    if optimizer is None:
        return False
    scale = max_norm / (total_norm + 1.0e-6)
    if isinstance(scale, torch.Tensor):
        _scales[optimizer] = scale.clamp(max=1.0)
    else:
        device = parameters[0].device
        _scales[optimizer] = torch.full((1,), scale, device=device) if scale < 1.0 else None
    return True


def _has_just(optimizer: Any, parameters: Sequence[torch.Tensor]) -> bool:
    own = _parameters(optimizer)
    return all(one is other for one, other in zip_longest(own, parameters))


def _parameters(optimizer: Any) -> Iterator[torch.Tensor]:
    return chain.from_iterable(group["params"] for group in optimizer.param_groups)


def adam_step(original: Callable[..., Any], module: Any) -> Callable[..., Any]:
    """``FusedAdam.step``.

    :param original: Transformer Engine's own.
    :param module: the module that defines it.
    """
    most = getattr(module, _MOST, None)

    @functools.wraps(original)
    def step(self: Any, closure: Any = None, grad_scaler: Any = None) -> Any:
        groups, scale = self.param_groups, _scales.pop(self, None)
        found = None if closure is not None or grad_scaler is not None else _lists(self)
        if found is None or (most is not None and any(len(one[0]) > most for one in found)):
            if scale is not None:
                gradients = [one.grad for one in _parameters(self) if one.grad is not None]
                scale_in_place(gradients, scale)
            return original(self, closure, grad_scaler)
        if is_above_our_extension():
            _scales[self] = None
        copies = _copies.get(self, {})
        for group, lists in zip(groups, found, strict=True):
            group["step"] = group.get("step", 0) + 1
            if not lists[0]:
                continue
            numbers = (
                group["lr"],
                *group["betas"],
                group["eps"],
                group["step"],
                self.adam_w_mode,
                1 if group["bias_correction"] else 0,
                group["weight_decay"],
            )
            if scale is not None or copies:
                _adam(lists, AdamNumbers(*numbers), copies, scale)
                continue
            module.multi_tensor_applier(
                self.multi_tensor_adam, self._dummy_overflow_buf, lists, *numbers
            )
        # Of parameters without a gradient.
        write_copies(list(copies), list(copies.values()))
        copies.clear()
        return None

    # As torch does with the class of the first optimizer that is made.
    hooked: Any = torch.optim.Optimizer.profile_hook_step(step)
    hooked.hooked = True
    return hooked  # type: ignore[no-any-return]


def _adam(
    lists: Lists,
    numbers: AdamNumbers,
    copies: dict[torch.Tensor, torch.Tensor],
    scale: torch.Tensor | None,
) -> None:
    """A step of one group, which takes what it writes out of ``copies``."""
    found = [copies.pop(one, None) for one in lists[1]]
    for has_copy in (True, False):
        chosen = [(one is not None) is has_copy for one in found]
        gradients, parameters, first, second = (list(compress(one, chosen)) for one in lists)
        if has_copy:
            written = [one for one in found if one is not None]
            adam(gradients, written, first, second, numbers, parameters, scale)
        else:
            adam(gradients, parameters, first, second, numbers, scale=scale)


def _lists(optimizer: Any) -> list[Lists] | None:
    """Tensors of each group; None where the step needs Transformer Engine's own way."""
    if optimizer.capturable or optimizer.master_weights or optimizer.use_decoupled_grad:
        return None
    found: list[Lists] = []
    for group in optimizer.param_groups:
        parameters = [one for one in group["params"] if one.grad is not None]
        states = [optimizer.state.get(one) for one in parameters]
        # The first step makes the moments. Releases differ in how they count an empty group's.
        if not group["params"] or not all(states):
            return None
        lists = [
            [one.grad for one in parameters],
            parameters,
            *([state[name] for state in states] for name in _MOMENTS),
        ]
        if not all(map(_is_plain, lists)):
            return None
        found.append(lists)
    return found


def _is_plain(tensors: Iterable[torch.Tensor]) -> bool:
    kinds = {(type(one), one.dtype, one.layout) for one in tensors}
    return kinds <= {(kind, torch.float32, torch.strided) for kind in PLAIN}
