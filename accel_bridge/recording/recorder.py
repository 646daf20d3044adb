"""The recorder: hooks on modules, statistics on the device, one transfer a step.

It knows torch and no framework: whoever trains says which modules and parameters there are, when
a step begins and ends, and what the loss was.

Hooks exist only while a step that measures modules runs; other steps pay for a clock and for the
fingerprint of the batch.
"""

from __future__ import annotations

import contextlib
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
import torch.distributed

from accel_bridge.recording._capsule import ROOM, Operator, Value
from accel_bridge.recording._document import Observation, Step
from accel_bridge.recording._moments import Moments
from accel_bridge.recording._plan import Plan
from accel_bridge.recording.tape import RankTape, Tape

T = TypeVar("T")

#: Multiplier of positions in the fingerprint of a batch (a prime, so that positions count).
_POSITION = 1_000_003
_WORD = 1 << 64
#: Elements of a row of a long vector.
_ROW = 2048


@dataclass(frozen=True, slots=True)
class Watched:
    """A module to watch.

    :param name: its global name.
    :param stage: its pipeline stage in order of execution.
    :param inputs: names of its first positional inputs that are watched too, as ``name.input``.
    :param counts: whether a call that has just been made is one of its own.
    """

    name: str
    stage: int
    module: torch.nn.Module
    inputs: tuple[str, ...] = ()
    counts: Callable[[], bool] = lambda: True


@dataclass(frozen=True, slots=True)
class Slice:
    """A parameter (or the part of it that this rank is responsible for) and its gradient.

    :param whole: it is the rank's whole parameter.
    """

    name: str
    stage: int
    weight: torch.Tensor
    gradient: torch.Tensor
    whole: bool


@dataclass(slots=True)
class _Pending:
    """A measured tensor whose numbers are still on the device."""

    kind: str
    name: str
    stage: int
    order: int
    count: int
    shape: tuple[int, ...]
    numbers: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    sample: torch.Tensor | None
    scale: float = 1.0


@dataclass
class RankRecord:
    """What one rank recorded."""

    steps: list[Step] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)


def measure(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sum, L2 norm and largest absolute value, each one number in float32 on the device.

    Three operations and no copy: on a fast device it is their number that costs.
    """
    values = tensor.detach()
    if values.dtype is torch.float64:  # of a router, which torch does not narrow by itself
        values = values.float()
    return (
        values.sum(dtype=torch.float32),
        _norm(values),
        torch.linalg.vector_norm(values, float("inf"), dtype=torch.float32),
    )


def _norm(values: torch.Tensor) -> torch.Tensor:
    if not values.is_cpu or values.dim() == 0:
        norm: torch.Tensor = torch.linalg.vector_norm(values, dtype=torch.float32)
        return norm
    # Row by row: torch's CPU norm of a whole large tensor is off by up to 3e-3.
    rest = values.new_zeros(())
    if values.dim() == 1:  # the part of a parameter that a distributed optimizer owns
        whole = values.numel() // _ROW * _ROW
        values, rest = values[:whole].view(-1, _ROW), values[whole:]
    rows: torch.Tensor = torch.linalg.vector_norm(values, dim=-1, dtype=torch.float32)
    return (rows.square().sum() + rest.float().square().sum()).sqrt()


def sample(tensor: torch.Tensor, values: int) -> torch.Tensor:
    """At most ``values`` elements at even distances, in float32."""
    flat = tensor.detach().reshape(-1)
    if flat.numel() > values:
        places = torch.arange(values, device=flat.device) * (flat.numel() - 1) // (values - 1)
        flat = flat[places]
    return flat.to(torch.float32, copy=True)


class Recorder:
    """Records the steps of one rank.

    :param plan: what to record.
    :param modules: modules to watch.
    :param slices: gives the parameters; called at each step that measures them.
    :param synchronize: waits for the device.
    :param counts_data: this rank's batches are counted in the fingerprint (one rank of several
        that see the same batch).
    """

    def __init__(
        self,
        plan: Plan,
        modules: Sequence[Watched],
        slices: Callable[[], Iterable[Slice]],
        synchronize: Callable[[], object],
        *,
        counts_data: bool,
    ) -> None:
        self.plan = plan
        self.record = RankRecord()
        self._modules = modules
        self._slices = slices
        self._synchronize = synchronize
        self._counts_data = counts_data
        self._step = 0
        self._gradient_scale = 1.0
        self._weight_gradient_scale = 1.0
        self._pending: list[_Pending] = []
        self._seen: dict[tuple[str, str], int] = {}
        self._data: list[torch.Tensor] = []
        self._hooks: list[Any] = []
        self._began = 0.0
        self._noise: torch.Generator | None = None
        #: The capsule's operators, at the step that the plan names.
        ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        self.tape = Tape(plan.capsule, ROOM // ranks) if plan.capsule else None

    def begin(
        self, step: int, *, gradient_scale: float = 1.0, weight_gradient_scale: float = 1.0
    ) -> None:
        """A step begins.

        :param step: its number, from 1.
        :param gradient_scale: factor from this rank's gradients of activations to those of the
            mean loss over the global batch.
        :param weight_gradient_scale: the same for gradients of weights.
        """
        self._step = step
        self._gradient_scale = gradient_scale
        self._weight_gradient_scale = weight_gradient_scale
        self._seen.clear()
        self._synchronize()
        self._began = time.perf_counter()
        if self.tape is not None and step == self.plan.capsule_step:
            self.tape.start(self.modules)
        if self.plan.measures_modules(step):
            for item in self._slices():
                shown = item.weight
                self._observe("weight", item.name, item.stage, shown, 1.0, keep=item.whole)
            for watched in self._modules:
                self._watch(watched)

    @property
    def modules(self) -> Sequence[tuple[str, torch.nn.Module]]:
        """(global name, module) of what is watched."""
        return [(one.name, one.module) for one in self._modules]

    def rescale_gradients(self, scale: float) -> None:
        """The factor of this step's gradients of activations is known only now.

        :param scale: instead of what :meth:`begin` was given.
        """
        for item in self._pending:
            if item.kind == "gradient":
                item.scale = scale

    def gradients_ready(self) -> None:
        """The gradients of the weights are summed over all ranks and micro batches."""
        if self._hooks:
            scale = self._weight_gradient_scale
            for item in self._slices():
                self._observe(
                    "weight gradient", item.name, item.stage, item.gradient, scale, keep=item.whole
                )

    def batch(self, tokens: torch.Tensor, positions: torch.Tensor) -> None:
        """A micro batch is read: tokens and their positions, int64 of one shape."""
        if self._counts_data:
            mixed = (tokens.detach() + 1) * (positions.detach() * _POSITION + 1)
            self._data.append((mixed * mixed + mixed).sum())

    def end(self, loss: float | None, gradient_norm: float) -> None:
        """The step has ended.

        :param loss: mean loss over the global batch, on ranks that know it.
        """
        self._synchronize()
        seconds = time.perf_counter() - self._began
        if self.tape is not None:
            self.tape.stop()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        data = int(torch.stack(self._data).sum()) % _WORD if self._data else 0
        self._data.clear()
        known = float("nan") if loss is None else loss
        self.record.steps.append(Step(self._step, known, gradient_norm, seconds, data))
        self._collect()

    def part(self, name: str) -> contextlib.AbstractContextManager[None]:
        """What runs inside belongs to the part ``name`` of a capsule's step."""
        return contextlib.nullcontext() if self.tape is None else self.tape.part(name)

    def _watch(self, watched: Watched) -> None:
        def after(module: torch.nn.Module, inputs: Any, output: Any) -> Any:
            tensor = _first_tensor(output)
            if tensor is None or not watched.counts():
                return None
            if self.plan.perturbs and tensor.is_floating_point():
                tensor = self._perturbed(tensor)
                output = (tensor, *output[1:]) if isinstance(output, tuple) else tensor
            self._observe("output", watched.name, watched.stage, tensor, 1.0)
            if tensor.requires_grad:
                tensor.register_hook(gradient)
            return output if self.plan.perturbs else None

        def gradient(tensor: torch.Tensor) -> torch.Tensor | None:
            if self.plan.perturbs:
                tensor = self._perturbed(tensor)
            self._observe("gradient", watched.name, watched.stage, tensor, self._gradient_scale)
            return tensor if self.plan.perturbs else None

        def before(module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
            for name, tensor in zip(watched.inputs, inputs, strict=False):
                if isinstance(tensor, torch.Tensor):
                    self._observe("output", f"{watched.name}.{name}", watched.stage, tensor, 1.0)

        self._hooks.append(watched.module.register_forward_hook(after, prepend=True))
        if watched.inputs:
            self._hooks.append(watched.module.register_forward_pre_hook(before))

    def _perturbed(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor with every value moved by up to one unit in its last place."""
        if self._noise is None:
            self._noise = torch.Generator(tensor.device)
            self._noise.manual_seed(self.plan.perturbs)
        share = torch.empty(tensor.shape, dtype=torch.float32, device=tensor.device)
        share.uniform_(-1.0, 1.0, generator=self._noise)
        factor = 1.0 + share.double() * torch.finfo(tensor.dtype).eps
        return tensor + (tensor.detach().double() * factor).to(tensor.dtype) - tensor.detach()

    def _observe(
        self,
        kind: str,
        name: str,
        stage: int,
        tensor: torch.Tensor,
        scale: float,
        *,
        keep: bool = True,
    ) -> None:
        if not tensor.is_floating_point() or tensor.numel() == 0:
            return
        with contextlib.nullcontext() if self.tape is None else self.tape.paused():
            self._pend(kind, name, stage, tensor, scale, keep)

    def _pend(
        self, kind: str, name: str, stage: int, tensor: torch.Tensor, scale: float, keep: bool
    ) -> None:
        first = (kind, name) not in self._seen
        order = self._seen.setdefault((kind, name), len(self._seen))
        kept = first and keep and self.plan.keeps_samples(self._step)
        self._pending.append(
            _Pending(
                kind,
                name,
                stage,
                order,
                tensor.numel(),
                tuple(tensor.shape),
                measure(tensor),
                sample(tensor, self.plan.values) if kept else None,
                scale,
            )
        )

    def _collect(self) -> None:
        """Bring the numbers of this step to the host, in one transfer, and merge repeated calls."""
        if not self._pending:
            return
        flat = [number for item in self._pending for number in item.numbers]
        numbers = torch.stack(flat).view(-1, 3).cpu().tolist()
        kept = [item.sample for item in self._pending if item.sample is not None]
        values = torch.cat(kept).cpu().tolist() if kept else []
        parts: dict[tuple[str, str], list[Moments]] = {}
        firsts: dict[tuple[str, str], tuple[_Pending, array[float] | None]] = {}
        for item, (total, norm, largest) in zip(self._pending, numbers, strict=True):
            own = None
            if item.sample is not None:
                size = item.sample.numel()
                own = array("f", [value * item.scale for value in values[:size]])
                values = values[size:]
            key = (item.kind, item.name)
            moments = Moments(item.count, total, norm * norm, largest).scaled(item.scale)
            parts.setdefault(key, []).append(moments)
            held = firsts.setdefault(key, (item, own))
            if held[0].shape != item.shape:  # of an expert: its rows follow from all before them
                firsts[key] = (held[0], None)
        for key, (item, own) in firsts.items():
            self.record.observations.append(
                Observation(
                    self._step,
                    item.kind,
                    item.name,
                    item.stage,
                    item.order,
                    Moments.merged(parts[key]),
                    item.shape,
                    own,
                    parts[key][0] if self.plan.keeps_samples(self._step) else None,
                )
            )
        self._pending.clear()


def merge(records: Sequence[RankRecord]) -> tuple[tuple[Step, ...], tuple[Observation, ...]]:
    """Steps and observations of the whole run from those of its ranks, lowest rank first."""
    steps = []
    for same in zip(*(record.steps for record in records), strict=True):
        losses = [step.loss for step in same if step.loss == step.loss]
        steps.append(
            Step(
                same[0].number,
                losses[0] if losses else float("nan"),
                same[0].gradient_norm,
                max(step.seconds for step in same),
                sum(step.data for step in same) % _WORD,
            )
        )
    groups: dict[tuple[int, str, str], list[Observation]] = {}
    for record in records:
        for item in record.observations:
            groups.setdefault((item.step, item.kind, item.name), []).append(item)
    observations = [
        Observation(
            first.step,
            first.kind,
            first.name,
            first.stage,
            first.order,
            Moments.merged(item.moments for item in group),
            first.shape,
            first.sample,
            None if first.first is None else _merged_first(group),
        )
        for group in groups.values()
        for first in group[:1]
    ]
    return tuple(steps), tuple(observations)


def _merged_first(group: Iterable[Observation]) -> Moments:
    """Moments of the first call, over all ranks that have the tensor."""
    return Moments.merged(item.first for item in group if item.first is not None)


def gather(record: T) -> list[T]:
    """What all ranks hold, by rank; every rank calls it."""
    if not torch.distributed.is_initialized():
        return [record]
    records: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(records, record)
    return records


def capsule_of(
    tapes: Sequence[RankTape],
) -> tuple[tuple[Value, ...], tuple[tuple[Operator, ...], ...]]:
    """(values, operators of each rank): what several ranks hold is there once."""
    values: dict[str, Value] = {}
    for tape in tapes:
        for value in tape.values:
            if value.data is not None or value.digest not in values:
                values[value.digest] = value
    place = {digest: number for number, digest in enumerate(values)}
    return tuple(values.values()), tuple(
        tuple(
            _renumbered(one, [place[value.digest] for value in tape.values])
            for one in tape.operators
        )
        for tape in tapes
    )


def _renumbered(one: Operator, places: Sequence[int]) -> Operator:
    def now(old: Sequence[int]) -> tuple[int, ...]:
        return tuple(places[place] if place >= 0 else -1 for place in old)

    return replace(
        one,
        inputs=now(one.inputs),
        outputs=now(one.outputs),
        part_inputs=now(one.part_inputs),
        part_outputs=now(one.part_outputs),
    )


def _first_tensor(output: Any) -> torch.Tensor | None:
    """The output itself, or the first of a tuple: modules return (output, bias)."""
    if isinstance(output, tuple | list) and output:
        output = output[0]
    return output if isinstance(output, torch.Tensor) else None
