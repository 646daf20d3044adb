"""Kernels, and the contracts between Megatron's seams and a backend's kernels."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, Generic, ParamSpec, TypeVar

import torch

from accel_bridge import _log

P = ParamSpec("P")
R = TypeVar("R")

#: (contract, reason) of fallbacks that were already reported, so that each is one line.
_REPORTED: Final[set[tuple[str, str]]] = set()


def supports_every_call(*args: Any, **kwargs: Any) -> str | None:
    """The ``supports`` of a kernel without limits: it never objects."""
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Contract(Generic[P, R]):
    """Name, signature and meaning of one kernel.

    :param name: key in :data:`accel_bridge.kernels.CONTRACTS`, and the name that patches use.
    :param reference: the contract in plain PyTorch; its signature is the contract's. It runs in
        float64 as well as in low precision, on every device, differentiable by autograd. In low
        precision it does what Megatron's unfused code does: element-wise steps in the tensors'
        own dtype, and float32 where the contract asks for float32.
    :param formula: the mathematics in one line.
    :param source: where the formula comes from.
    :param falls_back: where a backend has no kernel, callers run the reference; else they refuse.
    """

    name: str
    reference: Callable[P, R]
    formula: str
    source: str
    falls_back: bool = True

    @property
    def doc(self) -> str:
        """The reference's documentation: shapes, dtypes, errors."""
        return inspect.getdoc(self.reference) or ""

    def kernel(
        self,
        function: Callable[P, R],
        why: str,
        supports: Callable[P, str | None] = supports_every_call,
        source: str = "accel_bridge",
        choices: Callable[[], Sequence[tuple[str, str, str]]] | None = None,
    ) -> Kernel[P, R]:
        """A kernel of this contract; a type checker compares the functions with the reference."""
        return Kernel(self, function, why, supports, source, choices)


@dataclass(frozen=True, slots=True, eq=False)
class Kernel(Generic[P, R]):
    """One implementation of a contract; made by :meth:`Contract.kernel`.

    :param contract: what it implements.
    :param function: follows the contract's signature; valid if ``supports`` has no objection.
    :param why: why this implementation was chosen, shown by ``accel-bridge backends``.
    :param supports: takes the arguments of ``function`` and returns None, or the reason why this
        call is outside the kernel's range.
    :param source: library or file the implementation comes from.
    :param choices: for a kernel that chooses per call: usual calls, what serves each, and why.
    """

    contract: Contract[P, R]
    function: Callable[P, R]
    why: str
    supports: Callable[P, str | None] = supports_every_call
    source: str = "accel_bridge"
    choices: Callable[[], Sequence[tuple[str, str, str]]] | None = None

    @property
    def is_reference(self) -> bool:
        """True when this is the contract's reference and nothing faster."""
        return self.function is self.contract.reference

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the kernel; outside its range run the reference, and report it once per reason.

        A kernel is out of ``torch.autocast``'s reach, as compiled code is: its caller casts.
        """
        function = self.function
        reason = self.supports(*args, **kwargs)
        if reason is not None:
            function = self.contract.reference
            name = self.contract.name
            if (name, reason) not in _REPORTED:
                _REPORTED.add((name, reason))
                _log.say(f"{name}: reference instead of {self.source}: {reason}")
        if torch._C._is_any_autocast_enabled():
            return _outside_autocast(function, *args, **kwargs)
        return function(*args, **kwargs)


def _outside_autocast(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    values = (*args, *kwargs.values())
    devices = {value.device.type for value in values if isinstance(value, torch.Tensor)}
    with ExitStack() as stack:
        for device in devices - {"meta"}:
            stack.enter_context(torch.autocast(device, enabled=False))
        return function(*args, **kwargs)


def reference_kernel(contract: Contract[P, R], why: str) -> Kernel[P, R]:
    """The contract's reference as a kernel.

    :param why: why nothing faster is used; shown after the word ``reference``.
    """
    return contract.kernel(contract.reference, f"reference: {why}", source="accel_bridge.kernels")


def compute_dtype(*tensors: torch.Tensor) -> torch.dtype:
    """The dtype for sums and transcendental functions: float32, or float64 for float64 tensors."""
    if any(tensor.dtype == torch.float64 for tensor in tensors):
        return torch.float64
    return torch.float32
