"""Kernels, the contracts between Megatron's seams and a backend's kernels, and their lookup."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar

import torch

from accel_bridge.process import log

if TYPE_CHECKING:
    from accel_bridge.kernels.cases import Case

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_CONTRACTS: Final[dict[str, Contract[Any, Any]]] = {}
#: Every contract by its name; a contract enters it when it is made.
CONTRACTS: Final[Mapping[str, Contract[Any, Any]]] = MappingProxyType(_CONTRACTS)


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
    :param cases: makes the parity cases; those of some contracts stand in the parity package.
    """

    name: str
    reference: Callable[P, R]
    formula: str
    source: str
    falls_back: bool = True
    cases: Callable[[], Iterable[Case]] | None = None

    def __post_init__(self) -> None:
        if self.name in _CONTRACTS:
            raise ValueError(f"two contracts are named {self.name!r}")
        _CONTRACTS[self.name] = self

    def kernel(
        self,
        function: Callable[P, R] | str,
        why: str,
        supports: Callable[P, str | None] | str = supports_every_call,
        source: str = "accel_bridge",
        choices: Callable[[], Sequence[tuple[str, str, str]]] | str | None = None,
    ) -> Kernel[P, R]:
        """A kernel of this contract; a type checker compares the functions with the reference.

        A function may be named as ``module:name``; it is then imported by the first call, so that
        a table of kernels imports none of them.
        """
        return Kernel(self, function, why, supports, source, choices)


class Kernel(Generic[P, R]):
    """One implementation of a contract; made by :meth:`Contract.kernel`.

    :ivar contract: what it implements.
    :ivar why: why this implementation was chosen, shown by ``accel-bridge backends``.
    :ivar source: library or file the implementation comes from.
    """

    __slots__ = ("_choices", "_function", "_supports", "contract", "source", "why")

    def __init__(
        self,
        contract: Contract[P, R],
        function: Callable[P, R] | str,
        why: str,
        supports: Callable[P, str | None] | str,
        source: str,
        choices: Callable[[], Sequence[tuple[str, str, str]]] | str | None,
    ) -> None:
        self.contract, self.why, self.source = contract, why, source
        self._function, self._supports, self._choices = function, supports, choices

    @property
    def function(self) -> Callable[P, R]:
        """Follows the contract's signature; valid if :attr:`supports` has no objection."""
        self._function = found = _imported(self._function)
        return found

    @property
    def supports(self) -> Callable[P, str | None]:
        """Takes the arguments of :attr:`function`; None, or why the call is out of its range."""
        self._supports = found = _imported(self._supports)
        return found

    @property
    def choices(self) -> Callable[[], Sequence[tuple[str, str, str]]] | None:
        """For a kernel that chooses per call: usual calls, what serves each, and why."""
        self._choices = found = _imported(self._choices)
        return found

    @property
    def is_reference(self) -> bool:
        """True when this is the contract's reference and nothing faster."""
        return self._function is self.contract.reference

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the kernel; outside its range run the reference, and report it once per reason.

        A kernel is out of ``torch.autocast``'s reach, as compiled code is: its caller casts.
        """
        function, supports = self._function, self._supports
        if isinstance(function, str):
            function = self.function
        if isinstance(supports, str):
            supports = self.supports
        reason = supports(*args, **kwargs)
        if reason is not None:
            function = self.contract.reference
            log.fall_back(f"{self.contract.name}: reference instead of {self.source}: {reason}")
        if _watcher is not None:
            function = _watcher(self.contract.name, function)
        if torch._C._is_any_autocast_enabled():
            return _outside_autocast(function, *args, **kwargs)
        return function(*args, **kwargs)


#: Wraps the function of a contract before it is called, while somebody watches.
Watcher = Callable[[str, Callable[..., Any]], Callable[..., Any]]
_watcher: Watcher | None = None


def watch_kernels(watcher: Watcher | None) -> None:
    """Let ``watcher(contract's name, function)`` give what is called instead of ``function``."""
    global _watcher
    _watcher = watcher


def _imported(found: T | str) -> T:
    """``found``, or what it names as ``module:name``."""
    if not isinstance(found, str):
        return found
    module, _, name = found.partition(":")
    imported: T = getattr(import_module(module), name)
    return imported


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


class Kernels:
    """At most one kernel of each contract, looked up by the contract.

    :raises ValueError: two kernels of one contract.
    """

    def __init__(self, *kernels: Kernel[Any, Any]) -> None:
        self._by_contract: dict[Contract[Any, Any], Kernel[Any, Any]] = {}
        for kernel in kernels:
            if kernel.contract in self._by_contract:
                raise ValueError(f"two kernels of the contract {kernel.contract.name!r}")
            self._by_contract[kernel.contract] = kernel

    def __getitem__(self, contract: Contract[P, R]) -> Kernel[P, R]:
        """:raises KeyError: there is no kernel of this contract."""
        return self._by_contract[contract]

    def get(self, contract: Contract[P, R]) -> Kernel[P, R] | None:
        """The kernel, or None if there is none."""
        return self._by_contract.get(contract)

    def resolve(self, contract: Contract[P, R]) -> Kernel[P, R]:
        """The kernel, or the contract's reference if there is none.

        A caller that only wants to be faster than Megatron's own code checks ``is_reference``. If
        it is true, the caller leaves that code alone and gives ``why`` as the reason.
        """
        found = self._by_contract.get(contract)
        if found is not None:  # shims ask in every call
            return found
        return reference_kernel(contract, f"the backend has no kernel for {contract.name}")

    def replaced(self, *kernels: Kernel[Any, Any]) -> Kernels:
        """These kernels, with ``kernels`` instead of those of the same contracts."""
        merged = self._by_contract | {kernel.contract: kernel for kernel in kernels}
        return Kernels(*merged.values())

    def __contains__(self, contract: Contract[Any, Any]) -> bool:
        return contract in self._by_contract

    def __iter__(self) -> Iterator[Kernel[Any, Any]]:
        return iter(self._by_contract.values())

    def __len__(self) -> int:
        return len(self._by_contract)
