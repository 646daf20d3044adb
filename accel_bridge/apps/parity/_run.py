"""Run cases: kernel, float64 reference and plain PyTorch on the same inputs, then tolerances.

With dropout the kernel's own random mask is read from its output.
"""

from __future__ import annotations

import inspect
import math
import multiprocessing
import os
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

import torch

from accel_bridge.apps.parity._case import (
    BACKWARD_LIMIT,
    FORWARD_LIMIT,
    Measurement,
    as_arguments,
    bitwise,
    by_ratio,
    convert_all,
)
from accel_bridge.apps.parity._cases import all_cases
from accel_bridge.bridge.selection import select_here
from accel_bridge.device.backend import Backend, device_of, kernels_of
from accel_bridge.errors import BridgeError
from accel_bridge.kernels import CONTRACTS, Contract, Kernel, Kernels
from accel_bridge.kernels.cases import Case, Inputs, Rule
from accel_bridge.process.environment import did_you_mean


def compare(
    result: dict[str, torch.Tensor], exact: dict[str, torch.Tensor], plain: dict[str, torch.Tensor]
) -> list[Measurement]:
    """The ratio rule for every part, results and gradients; whole numbers bitwise."""
    scales = {kind: _scale(exact, kind) for kind in (True, False)}
    measurements = []
    for part, baseline in plain.items():
        if not baseline.is_floating_point():
            measurements.append(bitwise(part, result[part], baseline))
            continue
        backward = _is_gradient(part)
        limit = BACKWARD_LIMIT if backward else FORWARD_LIMIT
        measurements.append(
            by_ratio(part, result[part], exact[part], baseline, limit, scales[backward])
        )
    return measurements


def _is_gradient(part: str) -> bool:
    return part.startswith("grad ")


def _scale(exact: dict[str, torch.Tensor], gradients: bool) -> float:
    """Largest finite value among the results, or among the gradients."""
    values = [
        float(tensor.nan_to_num(0.0, 0.0, 0.0).abs().max())
        for part, tensor in exact.items()
        if _is_gradient(part) == gradients and tensor.is_floating_point() and tensor.numel()
    ]
    return max(values, default=0.0)


def evaluate(case: Case, function: Callable[..., Any], inputs: Inputs) -> dict[str, torch.Tensor]:
    """Call ``function`` and return its results and gradients by name, on the host.

    Gradients are those of the sum of the outputs weighted by fixed random numbers.
    """
    leaves = {name: inputs[name].requires_grad_() for name in case.gradients}
    returned = function(**as_arguments(case.contract, inputs))
    if case.changed:
        returned = [tensor for name in case.changed for tensor in _as_list(inputs[name])]
    found = dict(zip(_names(case, inputs), _as_list(returned), strict=True))
    differentiable = [tensor for tensor in found.values() if tensor.requires_grad]
    parts = {name: tensor.detach().cpu() for name, tensor in found.items()}
    if leaves:
        weights = [_weights(tensor, case.sliced_gradient) for tensor in differentiable]
        gradients = torch.autograd.grad(differentiable, list(leaves.values()), weights)
        named = zip(leaves, gradients, strict=True)
        parts |= {f"grad {name}": gradient.cpu() for name, gradient in named}
    return parts


def _names(case: Case, inputs: Inputs) -> list[str]:
    if not case.changed:
        return list(case.outputs)
    counted = [(name, _as_list(inputs[name])) for name in case.changed]
    return [
        name if len(tensors) == 1 else f"{name}[{index}]"
        for name, tensors in counted
        for index in range(len(tensors))
    ]


def _as_list(value: Any) -> list[torch.Tensor]:
    if isinstance(value, (list, tuple)):
        return [one for one in value if one is not None]
    return [value]


def _weights(output: torch.Tensor, sliced: bool) -> torch.Tensor:
    """Random numbers of the output's shape, equal for every precision up to rounding.

    :param sliced: their last dimension is the first half of a wider one.
    """
    generator = torch.Generator().manual_seed(20170612)
    drawn = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    # Rounded to bfloat16 first: all precisions then see exactly the same gradient.
    weights = drawn.to(torch.bfloat16).to(output)
    if sliced:
        return torch.cat((weights, torch.ones_like(weights)), -1)[..., : output.shape[-1]]
    return weights


_SEED = 1234
#: Elements of the result without dropout that are below this share of the largest are not counted:
#: they may round to zero.
_COUNTED = 1e-3
#: Standard deviations that a share of elements may be off.
_DEVIATIONS = 5.0


def measure_dropout(
    case: Case, kernel: Kernel[Any, Any], inputs: Inputs, device: torch.device | str
) -> list[Measurement]:
    """The ratio rule under the kernel's own mask, and the tests of that mask."""
    result = _seeded(case, kernel, inputs, device, _SEED)
    following = evaluate(case, kernel.function, convert_all(inputs, device=device))
    again = _seeded(case, kernel, inputs, device, _SEED)
    other = _seeded(case, kernel, inputs, device, _SEED + 1)
    (name,) = case.outputs
    kept = result[name] != 0
    exact = _expected(case, convert_all(inputs, torch.float64), kept)
    plain = _expected(case, convert_all(inputs), kept)
    whole = _expected(case, convert_all(inputs, torch.float64), torch.ones_like(kept))[name]
    counted = whole.abs() > _COUNTED * whole.abs().max()
    rate = inputs["dropout"]
    return [
        *compare(result, exact, plain),
        _share("dropped share", ~kept, counted, rate),
        _independent("next call", kept, following[name] != 0, counted, rate),
        *_neighbours(kept, counted, rate),
        bitwise("same seed", again[name], result[name]),
        _differs(other[name], result[name]),
    ]


def _seeded(
    case: Case, kernel: Kernel[Any, Any], inputs: Inputs, device: torch.device | str, seed: int
) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return evaluate(case, kernel.function, convert_all(inputs, device=device))


def _expected(case: Case, inputs: Inputs, kept: torch.Tensor) -> dict[str, torch.Tensor]:
    expected = case.expected
    assert expected is not None

    def function(**arguments: Any) -> torch.Tensor:
        return expected(inputs, kept)  # the same tensors, each input by its name

    return evaluate(case, function, inputs)


def _share(part: str, event: torch.Tensor, counted: torch.Tensor, expected: float) -> Measurement:
    """How far the counted elements' share of ``event`` is from ``expected``, in deviations."""
    total = int(counted.sum())
    share = float((event & counted).sum()) / total
    off = abs(share - expected) / math.sqrt(expected * (1 - expected) / total)
    return Measurement(part, Rule.TOLERANCE, off, _DEVIATIONS, abs(share - expected))


def _independent(
    part: str, kept: torch.Tensor, other: torch.Tensor, counted: torch.Tensor, dropout: float
) -> Measurement:
    """Whether two masks agree as often as independent ones do."""
    return _share(part, kept == other, counted, dropout**2 + (1 - dropout) ** 2)


def _neighbours(kept: torch.Tensor, counted: torch.Tensor, dropout: float) -> list[Measurement]:
    """Every second element of a dimension against the one before it, for every dimension."""
    found = []
    for dimension, size in enumerate(kept.shape):
        even = torch.arange(0, size - 1, 2)
        first, second, both, each = (
            tensor.index_select(dimension, index)
            for tensor in (kept, counted)
            for index in (even, even + 1)
        )
        if len(even):
            part = f"neighbours in dimension {dimension}"
            found.append(_independent(part, first, second, both & each, dropout))
    return found


def _differs(other: torch.Tensor, result: torch.Tensor) -> Measurement:
    same = torch.equal(other, result)
    note = "another seed gives the same mask" if same else ""
    return Measurement("other seed", Rule.BITWISE, math.inf if same else 0.0, 0.0, 0.0, note=note)


#: ``outside``: the kernel reports that the call is outside its range; the reference serves it.
Verdict = Literal["pass", "fail", "outside"]


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What one case showed.

    :param measurements: every part that was compared.
    :param reason: why the call is outside the kernel's range, or the error it raised.
    """

    case: Case
    verdict: Verdict
    measurements: tuple[Measurement, ...] = ()
    reason: str = ""

    @property
    def severity(self) -> float:
        """Ratio over limit of the worst part; above 1 is a failure."""
        if self.verdict == "fail" and not self.measurements:
            return float("inf")
        return max((part.severity for part in self.measurements), default=-1.0)

    @property
    def worst(self) -> Measurement | None:
        """The part furthest from the reference."""
        return max(self.measurements, key=lambda part: part.severity, default=None)


def check_kernel(
    kernel: Kernel[Any, Any], cases: Sequence[Case], device: torch.device | str = "cpu"
) -> list[CaseResult]:
    """Every case of the kernel's contract, on ``device``."""
    name = kernel.contract.name
    return [run_case(case, kernel, device) for case in cases if case.contract == name]


def run_case(
    case: Case, kernel: Kernel[Any, Any], device: torch.device | str = "cpu"
) -> CaseResult:
    """One case. Any exception from the kernel is a failure with its last line as the reason.

    The references run on the host, so that every machine has the same yardstick.
    """
    inputs = case.inputs()
    try:
        reason = kernel.supports(**as_arguments(case.contract, convert_all(inputs, device=device)))
        if reason is not None:
            return CaseResult(case, "outside", reason=reason)
        if case.expected is not None:
            measurements = measure_dropout(case, kernel, inputs, device)
        else:
            measurements = _measure(case, kernel, inputs, device)
    except Exception as error:  # a kernel may raise anything; here that is a result
        line = traceback.format_exception_only(error)[-1].strip()
        return CaseResult(case, "fail", reason=f"raised {line}")
    passed = all(part.passed for part in measurements)
    return CaseResult(case, "pass" if passed else "fail", tuple(measurements))


def signature_difference(kernel: Kernel[Any, Any]) -> str | None:
    """How the kernel's parameters differ from its contract's; None when they agree.

    ``supports`` must take each of them by its name.
    """
    expected = list(inspect.signature(kernel.contract.reference).parameters.values())
    found = list(inspect.signature(kernel.function).parameters.values())
    described = [[(p.name, p.kind, p.default) for p in side] for side in (expected, found)]
    if described[0] != described[1]:
        return f"parameters {[str(p) for p in found]}, expected {[str(p) for p in expected]}"
    try:
        inspect.signature(kernel.supports).bind(**{p.name: None for p in expected})
    except TypeError as error:
        return f"supports: {error}"
    return None


def _measure(
    case: Case, kernel: Kernel[Any, Any], inputs: Inputs, device: torch.device | str
) -> list[Measurement]:
    result = evaluate(case, kernel.function, convert_all(inputs, device=device))
    plain, exact = _yardstick(case, inputs)
    if case.rule is Rule.BITWISE:
        return [bitwise(part, result[part], plain[part]) for part in plain]
    return compare(result, exact, plain)


def _yardstick(
    case: Case, inputs: Inputs
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What plain PyTorch gives for a case: in its precision, and in float64 unless bitwise."""
    reference = CONTRACTS[case.contract].reference
    plain = evaluate(case, reference, convert_all(inputs))
    if case.rule is Rule.BITWISE:
        return plain, plain
    return plain, evaluate(case, reference, convert_all(inputs, torch.float64))


_Step = TypeVar("_Step")
#: Cores for each process: one compiles kernels, others compute references.
_CORES: Final = 2
_MOST_JOBS: Final = 8
#: Cases of one contract and precision that a process takes at a time: they share compiled kernels.
_CASES: Final = 24


@dataclass(frozen=True, slots=True)
class KernelReport:
    """All results of one backend.

    :param backend: its name.
    :param why: why this backend.
    :param device: torch device the kernels ran on, with its name.
    :param versions: what the result depends on.
    :param kernels: the kernels that were judged.
    :param signatures: contract -> how a kernel's parameters differ from it.
    """

    backend: str
    why: str
    device: str
    versions: dict[str, str]
    kernels: tuple[Kernel[Any, Any], ...]
    results: tuple[CaseResult, ...]
    signatures: dict[str, str]

    @property
    def without_case(self) -> list[str]:
        """The contracts of which nothing was compared."""
        compared = {row.case.contract for row in self.results}
        names = [kernel.contract.name for kernel in self.kernels]
        return [name for name in names if name not in compared]

    @property
    def passed(self) -> bool:
        """Whether every contract has rows, none failed, and every signature is its contract's."""
        if self.signatures or self.without_case:
            return False
        return all(row.verdict != "fail" for row in self.results)

    @property
    def worst_first(self) -> list[CaseResult]:
        """The rows, the nearest to (or furthest beyond) its limit first."""
        return sorted(self.results, key=lambda row: -row.severity)

    @property
    def verdict(self) -> str:
        """One sentence."""
        count = Counter(row.verdict for row in self.results)
        rows = f"{count['pass']} passed, {count['fail']} failed, {count['outside']} outside"
        found = "PASS" if self.passed else "FAIL"
        signatures = f", {len(self.signatures)} wrong signatures" if self.signatures else ""
        if self.without_case:
            signatures += f", no case of {', '.join(self.without_case)}"
        return f"{found}: {len(self.results)} rows on {self.backend} ({rows}{signatures})"


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
        results = (_judged(there, contract, cases, device) for contract in _shown(known))
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
    with ProcessPoolExecutor(max(1, min(jobs, len(parts))), mp_context=context) as pool:
        runs = {part: pool.submit(_in_process, backend, *part) for part in parts}
        try:
            for part, run in _shown(runs.items()):
                for place, rest in zip(parts[part], run.result(), strict=True):
                    found[place] = CaseResult(cases[place], *rest)
        except BrokenProcessPool:
            ended = {(name, dtype): True for name, dtype, _ in runs}
            for (name, dtype, _), run in runs.items():
                ended[name, dtype] &= run.done() and run.exception() is None
            done = [f"{name} in {dtype}" for (name, dtype), whole in ended.items() if whole]
            raise BridgeError(
                "a process that checked kernels died",
                evidence=f"what was finished: {', '.join(done) or 'nothing'}",
                next="accel-bridge parity kernels --jobs 1",
            ) from None
    for contract in contracts:
        yield [found[place] for place in sorted(found) if cases[place].contract == contract]


def _shown(steps: Collection[_Step]) -> Iterable[_Step]:
    """``steps``, with a bar on a terminal: on a GPU compiling kernels takes minutes."""
    from rich.console import Console  # not for the processes that compare
    from rich.progress import track

    console = Console(stderr=True)
    return track(
        steps, "comparing", console=console, transient=True, disable=not console.is_terminal
    )


def _in_process(
    backend: str, contract: str, dtype: torch.dtype, first: int
) -> list[tuple[Verdict, tuple[Measurement, ...], str]]:
    """Some cases of one precision, in a new process, whose parent set the backend's environment.

    :returns: verdict, measurements and reason of each case; cases themselves hold functions that
        cannot be sent.
    """
    chosen = select_here(backend).chosen
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
