"""Reads a dump of msprobe (the package mindstudio-probe): one rank and one step.

A folder ``stepN/rankM`` holds dump.json (statistics of every operator's and module's tensors, in
the order in which they ran), construct.json (in which module each ran) and stack.json (from which
lines). Source: mindstudio-probe 26.2, task "statistics", levels L0, L1 and mix.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from accel_bridge.errors import BridgeError

_NAME: Final = "dump.json"
#: A dump is at most this large.
_LARGEST: Final = 2 << 30
#: Lines of a stack that say nothing about the model.
_INSIDE: Final = re.compile(r"site-packages/torch/|/msprobe/")
_STEP: Final = re.compile(r"step(\d+)$")


class DumpError(BridgeError):
    """Something is not a dump of msprobe that can be compared."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """A tensor in a dump.

    :param dtype: as torch spells it, without ``torch.``.
    :param norm: its L2 norm.
    """

    dtype: str
    shape: tuple[int, ...]
    largest: float
    smallest: float
    mean: float
    norm: float

    @property
    def rms(self) -> float:
        """Root mean square."""
        return self.norm / math.sqrt(max(math.prod(self.shape), 1))

    @property
    def magnitude(self) -> float:
        """Largest absolute value; NaN where one of the ends is."""
        ends = (abs(self.largest), abs(self.smallest))
        return math.nan if any(map(math.isnan, ends)) else max(ends)


def is_module(name: str) -> bool:
    """Whether a call's name is that of a module's."""
    return name.startswith(("Module.", "Cell."))


def is_forward(name: str) -> bool:
    """Whether a call's name is one of the forward pass."""
    return ".forward" in name


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operator or a module.

    :param name: msprobe's: ``Functional.linear.3.forward``, ``Module.x.Linear.forward.0``.
    """

    name: str
    inputs: tuple[Statistics | None, ...]
    outputs: tuple[Statistics | None, ...]

    @property
    def is_module(self) -> bool:
        """Whether it is a module's call."""
        return is_module(self.name)

    @property
    def is_forward(self) -> bool:
        """Whether it is of the forward pass."""
        return is_forward(self.name)


@dataclass(frozen=True, slots=True)
class Dump:
    """What one rank did in one step, in order.

    :param step: as msprobe counts, from 0; None when the folder does not say.
    :param parents: name -> name of the module's call within which it ran.
    :param stacks: name -> the lines that called it.
    """

    path: Path
    step: int | None
    calls: tuple[Call, ...]
    parents: Mapping[str, str | None] = field(default_factory=dict)
    stacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def is_dump(path: Path) -> bool:
    """Whether ``path`` is meant as a dump: a folder, or a JSON file."""
    return path.is_dir() or path.suffix == ".json"


def read(path: Path) -> Dump:
    """The dump in a folder: ``stepN/rankM``, or one above it when there is only one.

    :raises DumpError: there is none, several, or it has no statistics.
    """
    file = path if path.suffix == ".json" else _only_dump(path)
    document = _load(file)
    data = document.get("data")
    if not isinstance(data, dict):
        raise DumpError(
            f"{file} is not a dump of msprobe",
            evidence='it has no object "data"',
            next="give the folder stepN/rankM that PrecisionDebugger wrote (dump_path)",
        )
    calls = tuple(
        Call(
            str(name),
            _tensors(entry, "input_args", "input", "input_kwargs"),
            _tensors(entry, "output"),
        )
        for name, entry in data.items()
        if isinstance(entry, dict) and "parameters_grad" not in name
    )
    if not any(one for call in calls for one in (*call.inputs, *call.outputs)):
        raise DumpError(
            f"{file} holds no statistics",
            evidence=f"task {document.get('task')!r}, {len(calls)} calls",
            next='dump with "task": "statistics" and "summary_mode": "statistics"',
        )
    steps = [found for part in file.parts if (found := _STEP.search(part))]
    parents = _beside(file, "construct.json")
    return Dump(
        file.parent,
        int(steps[-1][1]) if steps else None,
        calls,
        {name: one if isinstance(one, str) else None for name, one in parents.items()},
        _stacks(_beside(file, "stack.json")),
    )


def _only_dump(folder: Path) -> Path:
    found = sorted(folder.rglob(_NAME)) if folder.is_dir() else []
    if len(found) == 1:
        return found[0]
    if not found:
        raise DumpError(
            f"{folder} holds no dump of msprobe",
            evidence=f"no {_NAME} below it" if folder.is_dir() else "it is not there",
            next="give the folder stepN/rankM that PrecisionDebugger wrote (dump_path)",
        )
    raise DumpError(
        f"{folder} holds {len(found)} dumps, and one is compared at a time",
        evidence=[str(path.parent.relative_to(folder)) for path in found[:8]],
        next=f"accel-bridge parity dumps {found[0].parent} ...",
    )


def _load(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > _LARGEST:
            raise DumpError(
                f"{file} is too large to be read",
                evidence=f"{file.stat().st_size >> 20} MB; {_LARGEST >> 20} MB is the most",
                next='dump fewer steps, or name operators in "list"',
            )
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DumpError(
            f"{file} cannot be read",
            evidence=f"{type(error).__name__}: {error}",
            next="dump it again; a run that was killed leaves half a file",
        ) from error
    if not isinstance(document, dict):
        raise DumpError(
            f"{file} is not a dump of msprobe",
            evidence=f"its JSON is a {type(document).__name__}",
            next="give the folder stepN/rankM that PrecisionDebugger wrote (dump_path)",
        )
    return document


def _beside(file: Path, name: str) -> dict[str, Any]:
    """A file beside the dump, which some levels do not write."""
    path = file.with_name(name)
    return _load(path) if path.is_file() else {}


def _stacks(document: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """stack.json numbers the stacks and lists the calls of each: {"0": [[names], [lines]]}."""
    found: dict[str, tuple[str, ...]] = {}
    for entry in document.values():
        if isinstance(entry, list) and len(entry) == 2 and all(isinstance(e, list) for e in entry):
            lines = tuple(
                str(line).replace("\n", "").strip()
                for line in entry[1]
                if not _INSIDE.search(str(line))
            )
            found |= {str(name): lines for name in entry[0]}
    return found


def _tensors(entry: Mapping[str, Any], *keys: str) -> tuple[Statistics | None, ...]:
    return tuple(one for key in keys for one in _walk(entry.get(key)))


def _walk(value: Any) -> Iterator[Statistics | None]:
    """The tensors in what a call took or gave; None for any other argument."""
    if isinstance(value, list):
        for one in value:
            yield from _walk(one)
    elif isinstance(value, dict):
        if "type" not in value:
            for one in value.values():
                yield from _walk(one)
        elif value.get("shape") is not None and "Norm" in value:
            yield _statistics(value)
        else:
            yield None


def _statistics(value: Mapping[str, Any]) -> Statistics | None:
    numbers = [value.get(name) for name in ("Max", "Min", "Mean", "Norm")]
    if any(number is None for number in numbers):
        return None  # an empty tensor, or one of booleans
    try:
        largest, smallest, mean, norm = (float(number) for number in numbers)  # type: ignore[arg-type]
        shape = tuple(int(size) for size in value["shape"])
    except (TypeError, ValueError):
        return None
    return Statistics(
        str(value.get("dtype", "")).removeprefix("torch."), shape, largest, smallest, mean, norm
    )
