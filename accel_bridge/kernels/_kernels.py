"""A backend's kernels, looked up by contract."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accel_bridge.kernels._contract import Contract, Kernel, P, R, reference_kernel


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
