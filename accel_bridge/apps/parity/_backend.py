"""Judge all kernels of one backend."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Final

import torch

from accel_bridge.apps.parity._case import Case
from accel_bridge.apps.parity._cases import all_cases
from accel_bridge.apps.parity._report import KernelReport
from accel_bridge.apps.parity._run import CaseResult, Verdict, check_kernel, signature_difference
from accel_bridge.apps.parity._tolerances import Measurement
from accel_bridge.bridge.selection import select
from accel_bridge.device.backend import Backend, device_of, kernels_of
from accel_bridge.errors import BridgeError
from accel_bridge.kernels import CONTRACTS, Contract, Kernel, Kernels
from accel_bridge.plugins.manager import load_plugins
from accel_bridge.process.environment import Settings, did_you_mean

#: Cores for each process: one compiles kernels, others compute references.
_CORES: Final = 2
_MOST_JOBS: Final = 8
#: Cases of one contract and precision that a process takes at a time: they share compiled kernels.
_CASES: Final = 24


def check_backend(
    backend: Backend,
    why: str = "",
    contracts: Sequence[str] | None = None,
    jobs: int | None = None,
) -> KernelReport:
    """Every kernel of ``backend`` (or those of ``contracts``) against the tolerances, there.

    :param jobs: processes that share the cases; by default as many as there are cores for.
        Most of the time goes into compiling kernels, one for each kind of call.
    :raises BridgeError: a contract that does not exist, or a process that died.
    """
    known = [_known(name) for name in contracts or CONTRACTS]
    there = kernels_of(backend)
    kernels: tuple[Kernel[Any, Any], ...] = tuple(there.resolve(contract) for contract in known)
    device = _device(backend)
    differences = {kernel.contract.name: signature_difference(kernel) for kernel in kernels}
    if jobs is None:
        jobs = max(1, min(_MOST_JOBS, len(os.sched_getaffinity(0)) // _CORES))
    cases = all_cases()
    results: Iterable[list[CaseResult]]
    if jobs == 1:
        results = (_judged(there, contract, cases, device) for contract in known)
    else:
        results = _in_processes(backend.name, [contract.name for contract in known], cases, jobs)
    return KernelReport(
        backend=backend.name,
        why=why,
        device=_device_name(device),
        versions={"torch": torch.__version__, **backend.versions()},
        kernels=kernels,
        results=tuple(result for some in results for result in some),
        signatures={name: text for name, text in differences.items() if text is not None},
    )


def _judged(
    kernels: Kernels, contract: Contract[Any, Any], cases: Sequence[Case], device: torch.device
) -> list[CaseResult]:
    """The cases of one contract; outside where nobody would call it on this backend."""
    if contract.falls_back or contract in kernels:
        return check_kernel(kernels.resolve(contract), cases, device)
    reason = f"the backend has no kernel for {contract.name}, and is refused what needs it"
    own = (case for case in cases if case.contract == contract.name)
    return [CaseResult(case, "outside", reason=reason) for case in own]


def _device(backend: Backend) -> torch.device:
    spec = device_of(backend)
    return torch.device("cuda" if spec is None else spec.type)


def _in_processes(
    backend: str, contracts: Sequence[str], cases: Sequence[Case], jobs: int
) -> Iterator[list[CaseResult]]:
    """The results of each contract.

    :raises BridgeError: a process died.
    """
    # Not forked: a forked process cannot use the device that its parent opened.
    context = multiprocessing.get_context("spawn")
    groups: dict[tuple[str, torch.dtype], list[int]] = {}
    for place, case in enumerate(cases):
        if case.contract in contracts:
            groups.setdefault((case.contract, case.dtype), []).append(place)
    parts = {
        (name, dtype, first): places[first : first + _CASES]
        for (name, dtype), places in groups.items()
        for first in range(0, len(places), _CASES)
    }
    found: dict[int, CaseResult] = {}
    # More would have nothing to do.
    with ProcessPoolExecutor(min(jobs, len(parts)), mp_context=context) as pool:
        runs = {part: pool.submit(_in_process, backend, *part) for part in parts}
        try:
            for part, run in runs.items():
                for place, rest in zip(parts[part], run.result(), strict=True):
                    found[place] = CaseResult(cases[place], *rest)
        except BrokenProcessPool:
            ended = {(name, dtype): True for name, dtype, _ in runs}
            for (name, dtype, _), run in runs.items():
                ended[name, dtype] &= _has_result(run)
            done = [f"{name} in {dtype}" for (name, dtype), whole in ended.items() if whole]
            raise BridgeError(
                "a process that checked kernels died",
                evidence=f"what was finished: {', '.join(done) or 'nothing'}",
                next="accel-bridge parity kernels --jobs 1",
            ) from None
    for contract in contracts:
        yield [found[place] for place in sorted(found) if cases[place].contract == contract]


def _has_result(run: Any) -> bool:
    return bool(run.done()) and run.exception() is None


def _in_process(
    backend: str, contract: str, dtype: torch.dtype, first: int
) -> list[tuple[Verdict, tuple[Measurement, ...], str]]:
    """Some cases of one precision, in a new process, whose parent set the backend's environment.

    :returns: verdict, measurements and reason of each case; cases themselves hold functions that
        cannot be sent.
    """
    settings = Settings.from_environ(os.environ)
    chosen = select(load_plugins(settings.plugins), settings, backend).chosen
    own = [case for case in all_cases() if case.contract == contract and case.dtype == dtype]
    cases = own[first : first + _CASES]
    results = _judged(kernels_of(chosen), CONTRACTS[contract], cases, _device(chosen))
    return [(result.verdict, result.measurements, result.reason) for result in results]


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
