"""Judge all kernels of one backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from accel_bridge._backend import Backend
from accel_bridge._environment import did_you_mean
from accel_bridge._errors import BridgeError
from accel_bridge.apps.parity._cases import all_cases
from accel_bridge.apps.parity._report import KernelReport
from accel_bridge.apps.parity._run import check_kernel, signature_difference
from accel_bridge.kernels import CONTRACTS, Contract, Kernel


def check_backend(
    backend: Backend, why: str = "", contracts: Sequence[str] | None = None
) -> KernelReport:
    """Every kernel of ``backend`` (or those of ``contracts``) against the ladder, on its device.

    :raises BridgeError: a contract that does not exist.
    """
    known = [_known(name) for name in contracts or CONTRACTS]
    kernels: tuple[Kernel[Any, Any], ...] = tuple(
        backend.kernels().resolve(contract) for contract in known
    )
    spec = backend.device()
    device = torch.device("cuda" if spec is None else spec.type)
    cases = all_cases()
    differences = {kernel.contract.name: signature_difference(kernel) for kernel in kernels}
    return KernelReport(
        backend=backend.name,
        why=why,
        device=_device_name(device),
        versions={"torch": torch.__version__, **backend.versions()},
        kernels=kernels,
        results=tuple(
            result for kernel in kernels for result in check_kernel(kernel, cases, device)
        ),
        signatures={name: text for name, text in differences.items() if text is not None},
    )


def _known(name: str) -> Contract[Any, Any]:
    if name not in CONTRACTS:
        raise BridgeError(
            f"there is no kernel contract {name!r}{did_you_mean(name, list(CONTRACTS))}",
            evidence=f"contracts: {', '.join(CONTRACTS)}",
            next="accel-bridge parity kernels --help",
        )
    return CONTRACTS[name]


def _device_name(device: torch.device) -> str:
    """The device's type and, if torch knows it, its name."""
    module = getattr(torch, device.type, None)
    name = getattr(module, "get_device_name", None)
    return device.type if name is None else f"{device.type} ({name()})"
