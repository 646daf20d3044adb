"""Training runs: read from files and directories, as a table, a PNG and one HTML page.

They are logs, recordings and TensorBoard's events. A picture has losses above and throughput below.
"""

from __future__ import annotations

import io
import logging
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from accel_bridge import recording
from accel_bridge.apps._html import image, page, paragraphs, table
from accel_bridge.errors import BridgeError, printable
from accel_bridge.process.extras import require
from accel_bridge.process.progress.lines import LOSSES, Iteration, LogReader

#: Smoothing averages over so large a part of the longest run, and at most so many points.
_PART, _MOST = 40, 100
#: Numbers beyond this are no losses any more: an axis that reaches them shows nothing else.
CEILING = 1e30


@dataclass(frozen=True, slots=True)
class Point:
    """One logged iteration.

    :param loss: NaN where the log has none.
    :param seconds: time of the iteration; None if it is not known.
    :param tokens: tokens a second, of all devices together.
    :param tflops: floating-point operations a second and device (10**12).
    """

    iteration: int
    loss: float
    seconds: float | None = None
    tokens: float | None = None
    tflops: float | None = None


@dataclass(frozen=True)
class Run:
    """A run: its name, its points by iteration, and what a reader should know about them."""

    name: str
    points: tuple[Point, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def last(self) -> int:
        return self.points[-1].iteration

    @property
    def seconds(self) -> float | None:
        """Median time of an iteration; the first one of several, which warms up, is left out."""
        return self.median("seconds")

    def median(self, name: str) -> float | None:
        """The same of an attribute of its points."""
        values = [getattr(point, name) for point in self.points[1:] or self.points]
        known = [value for value in values if value is not None]
        return statistics.median(known) if known else None

    def loss(self, over: int, at: int | None = None) -> float:
        """Where the curve, averaged over ``over`` points, ends at the iteration ``at``, or at last.

        NaN where there is no finite loss.
        """
        values = [point.loss for point in self.points if at is None or point.iteration <= at]
        return smoothed(values, over)[-1] if values else math.nan


def by_iteration(name: str, points: Sequence[Point]) -> Run:
    """A run from points in the order in which they were logged.

    Of an iteration that was trained again, after a resume, the later point counts.
    """
    found: dict[int, Point] = {}
    again = 0
    for point in points:
        again += point.iteration in found
        found[point.iteration] = point
    said = []
    if again:
        said.append(f"{again} iterations were trained again after a resume: the later ones count")
    ordered = tuple(sorted(found.values(), key=lambda point: point.iteration))
    broken = [point.iteration for point in ordered if not is_drawable(point.loss)]
    if broken:
        said.append(f"{len(broken)} iterations have no finite loss; the first is {broken[0]}")
    return Run(name, ordered, tuple(said))


def window(runs: Sequence[Run]) -> int:
    """Over how many points is averaged if nobody says it: the same for all runs."""
    return min(_MOST, max(1, max(len(run.points) for run in runs) // _PART))


def smoothed(values: Sequence[float], over: int) -> list[float]:
    """Mean of each value and its neighbours on both sides, ``over`` together.

    What is not finite is left out. At the ends there are fewer neighbours; the last mean is that of
    :func:`tail` values.
    """
    sums, counts = [0.0], [0]
    for value in values:
        good = is_drawable(value)
        sums.append(sums[-1] + (value if good else 0.0))
        counts.append(counts[-1] + good)
    result = []
    for place in range(len(values)):
        low, high = max(0, place - over // 2), min(len(values), place + tail(over))
        count = counts[high] - counts[low]
        result.append((sums[high] - sums[low]) / count if count else math.nan)
    return result


def tail(over: int) -> int:
    """How many values the last mean of a curve is of."""
    return over // 2 + 1


def is_drawable(value: float) -> bool:
    """Whether a value is a number that an axis can reach."""
    return abs(value) < CEILING


#: Part of the name of every event file.
EVENTS: Final = "tfevents"
#: Scalars that Megatron writes beside the losses: seconds, and operations a second and device.
_SECONDS: Final = "iteration-time"
_TFLOPS: Final = "throughput"


def read_events(path: Path, name: str) -> Run:
    """The run in an event file, or in a directory with event files somewhere below it.

    :raises MissingPackage: TensorBoard is not installed.
    :raises BridgeError: they hold no loss, or those of several runs.
    """
    require("tensorboard")
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    directories = [path]
    if path.is_dir():
        directories = sorted({event.parent for event in path.rglob(f"*{EVENTS}*")})
    scalars = [found for found in map(_scalars, directories) if found]
    with_loss = [found for found in scalars if _loss_tag(list(found))]
    if len(with_loss) > 1:
        raise BridgeError(
            f"{path} holds several runs.",
            evidence=[str(directory) for directory in directories[:5]],
            next=f"accel-bridge plot {' '.join(str(directory) for directory in directories[:5])}",
        )
    if not with_loss:
        tags = sorted({tag for found in scalars for tag in found})
        raise BridgeError(
            f"{path} holds no training loss.",
            evidence=f"scalars in its event files: {', '.join(tags[:8]) or 'none'}",
            next="train with --tensorboard-dir (and --tensorboard-log-interval 1), or name the log",
        )
    return by_iteration(name, _event_points(with_loss[0]))


def _scalars(path: Path) -> dict[str, list[Any]]:
    """Name -> events with step, value and wall_time."""
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

    reader = EventAccumulator(str(path), size_guidance={SCALARS: 0})
    try:
        reader.Reload()
        return {tag: list(reader.Scalars(tag)) for tag in reader.Tags()[SCALARS]}
    except Exception as error:  # whatever TensorBoard makes of files that are damaged
        raise BridgeError(
            f"TensorBoard cannot read {path}.",
            evidence=f"{type(error).__name__}: {error}",
            next="name another directory, or the log of the same run",
        ) from error


def _loss_tag(tags: Sequence[str]) -> str | None:
    """Which scalar is the training loss."""
    others = [
        tag
        for tag in tags
        if tag.endswith("loss")
        and not any(word in tag for word in ("valid", "test", "eval", "balancing", "z_loss"))
    ]
    return next((tag for tag in (*LOSSES, *others) if tag in tags), None)


def _event_points(scalars: dict[str, list[Any]]) -> list[Point]:
    losses = scalars[_loss_tag(list(scalars)) or ""]
    seconds = {event.step: event.value for event in scalars.get(_SECONDS, ())}
    tflops = {event.step: event.value for event in scalars.get(_TFLOPS, ())}
    if not seconds:  # not logged: what lies between two events
        for one, two in pairwise(losses):
            if two.step > one.step and two.wall_time > one.wall_time:
                seconds[two.step] = (two.wall_time - one.wall_time) / (two.step - one.step)
    return [
        Point(event.step, event.value, seconds.get(event.step), None, tflops.get(event.step))
        for event in losses
    ]


#: What a directory's logs are called.
_LOGS: Final = ("*.log", "*.txt", "*.jsonl", "*.out")
#: A line is read up to here: nothing that is looked for is longer.
_LINE: Final = 1 << 20


def read_run(path: Path, name: str = "") -> Run:
    """The run in a log, a recording, an event file, or a directory with logs or event files.

    The logs of a directory are one run: what was stopped and resumed.

    :param name: of the run; by default its path.
    :raises BridgeError: there is no training in it.
    :raises BridgeError: a recording cannot be read, or TensorBoard's reader is not installed.
    """
    name = name or str(path)
    try:
        if path.is_dir():
            run = _read_directory(path, name)
        elif not path.is_file():
            raise BridgeError(
                f"There is no {path}." if not path.exists() else f"{path} is no file.",
                evidence=f"looked in {Path.cwd()}",
                next="name a training log, a recording, or a directory with logs or event files",
            )
        else:
            run = _read_file(path, name)
    except OSError as error:
        raise BridgeError(
            f"{path} cannot be read.",
            evidence=str(error),
            next="name a file that you may read",
        ) from error
    if not run.points:
        raise _nothing(path)
    return run


def _read_directory(directory: Path, name: str) -> Run:
    logs = sorted(path for kind in _LOGS for path in directory.glob(kind) if path.is_file())
    points = [point for path in logs for point in _points(path)]
    if points:
        return by_iteration(name, points)
    if next(directory.rglob(f"*{EVENTS}*"), None) is not None:
        return read_events(directory, name)
    raise BridgeError(
        f"{directory} holds no training run.",
        evidence=f"{len(logs)} files {', '.join(_LOGS)} in it without an iteration, and no "
        f"{EVENTS} in it or below",
        next="name the directory that --tensorboard-dir named, or a log",
    )


def _read_file(path: Path, name: str) -> Run:
    with path.open("rb") as file:
        head = file.read(len(recording.MAGIC))
    if head == recording.MAGIC:
        return _from_recording(recording.read(path), name)
    if EVENTS in path.name:
        return read_events(path, name)
    return by_iteration(name, list(_points(path)))


def _points(path: Path) -> Iterator[Point]:
    """The iterations of a log; a second line about one adds to the first."""
    reader, last = LogReader(), None
    with path.open(encoding="utf-8", errors="replace") as file:
        while line := file.readline(_LINE):
            found = reader.read(line)
            if found is not None:
                if last is not None and last.number != found.number:
                    yield _point(last, reader)
                last = found
    if last is not None:
        yield _point(last, reader)


def _point(found: Iteration, reader: LogReader) -> Point:
    tokens = reader.tokens_per_second(found)
    return Point(found.number, found.loss, found.seconds, tokens, found.tflops)


def _from_recording(found: recording.Recording, name: str) -> Run:
    sizes = [found.arguments.get(key) for key in ("global_batch_size", "seq_length")]
    tokens = 1.0
    for size in sizes:
        tokens *= size if isinstance(size, int) and size > 0 else 0
    return by_iteration(
        name,
        [
            Point(
                step.number,
                step.loss,
                step.seconds or None,
                tokens / step.seconds if tokens and step.seconds else None,
            )
            for step in found.steps
        ],
    )


def _nothing(path: Path) -> BridgeError:
    with path.open(encoding="utf-8", errors="replace") as file:
        head = file.read(300).strip()
    first = head.splitlines()[0][:80] if head else ""
    return BridgeError(
        f"{path} holds no training run.",
        evidence=f"it begins with {first!r}" if head else "the file is empty",
        next="name what `accel-bridge pretrain` or your script printed (lines with `iteration N/ M "
        "| ... lm loss`), a recording, or a TensorBoard directory",
    )


#: Raised when a field of the JSON document changes its meaning.
FORMAT: Final = 1
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NONE: Final = "-"


def letter(place: int) -> str:
    """How a run is called in short: A, B, ..., Z, A2."""
    return _LETTERS[place % 26] + ("" if place < 26 else str(place // 26 + 1))


def columns(runs: Sequence[Run]) -> list[str]:
    """Headings of :func:`rows`; differences only where there is something to compare."""
    found = ["", "name", "iterations", "loss", *_measured(runs)]
    if len(runs) > 1:
        found += [f"loss - A at {common(runs)}" if common(runs) else "loss - A", "s/step : A"]
    return found


#: Heading -> of what it is the median, and how it is written.
_MEDIANS: Final = {
    "s/step": ("seconds", ".4g"),
    "tokens/s": ("tokens", ",.0f"),
    "TFLOP/s": ("tflops", ".3g"),
}


def _measured(runs: Sequence[Run]) -> list[str]:
    """Which medians any run knows; Megatron logs 0 TFLOP/s where it knows none."""
    return [name for name, (of, _) in _MEDIANS.items() if any(run.median(of) for run in runs)]


def rows(runs: Sequence[Run], over: int) -> list[list[str]]:
    """One row for each run; losses are averaged over ``over`` points."""
    return [[letter(place), *_cells(run, runs, over)] for place, run in enumerate(runs)]


def pair_columns(sides: Sequence[str]) -> list[str]:
    """Headings of :func:`pair_rows`; ``sides`` names the two machines."""
    left, right = sides
    return [
        "name",
        *(f"loss {side}" for side in sides),
        *(f"s/step {side}" for side in sides),
        f"loss {right} - {left}",
    ]


def pair_rows(runs: Sequence[Run], names: Sequence[str], over: int) -> list[list[str]]:
    """A row for each two runs: one training on two machines, compared where both have been."""
    found = []
    for name, left, right in zip(names, runs[::2], runs[1::2], strict=True):
        at = common((left, right))
        losses = [run.loss(over, at) if at else math.nan for run in (left, right)]
        found.append(
            [
                name,
                *(_number(loss, ".4f") for loss in losses),
                *(_number(run.seconds, ".4g") for run in (left, right)),
                _number(losses[1] - losses[0], "+.4f"),
            ]
        )
    return found


def notes(runs: Sequence[Run], over: int) -> list[str]:
    """What the numbers are, and what each run's reader should know."""
    last = tail(over)
    mean = f"the mean of the last {last} logged iterations" if last > 1 else "the last one logged"
    measured = ", ".join(_measured(runs)).replace("TFLOP/s", "TFLOP/s (a device)")
    lines = [f"loss: {mean}" + (f"; {measured}: medians" if measured else "")]
    if len({run.last for run in runs}) > 1:
        at = common(runs)
        lines.append(
            f"the runs end at different iterations; losses are compared at {at}, the last that "
            "all of them reached"
            if at
            else "the runs have no iteration in common; their losses are not compared"
        )
    lines += [f"{letter(place)}: {note}" for place, run in enumerate(runs) for note in run.notes]
    return lines


def common(runs: Sequence[Run]) -> int | None:
    """The iteration where losses are compared: the last that every run has reached."""
    last = min(run.last for run in runs)
    return last if all(run.points[0].iteration <= last for run in runs) else None


def as_json(runs: Sequence[Run], over: int) -> dict[str, object]:
    """The runs as a JSON document; numbers that are not finite are null."""
    at = common(runs)
    return {
        "format": FORMAT,
        "smoothed_over": over,
        "compared_at": at,
        "runs": [
            {
                "name": run.name,
                "iterations": run.last,
                "loss": _finite(run.loss(over)),
                "loss_where_compared": _finite(run.loss(over, at)) if at else None,
                "seconds_per_step": run.seconds,
                "tokens_per_second": run.median("tokens"),
                "tflops": run.median("tflops"),
                "notes": list(run.notes),
                "points": [
                    [one.iteration, _finite(one.loss), one.seconds, one.tokens, one.tflops]
                    for one in run.points
                ],
            }
            for run in runs
        ],
    }


def _cells(run: Run, runs: Sequence[Run], over: int) -> list[str]:
    first, measured = runs[0], [_MEDIANS[name] for name in _measured(runs)]
    found = [
        run.name,
        f"{run.last}",
        _number(run.loss(over), ".4f"),
        *(_number(run.median(of) or None, form) for of, form in measured),
    ]
    if len(runs) > 1:
        if run is first:
            return [*found, _NONE, _NONE]
        at = common(runs)
        found.append(_number(run.loss(over, at) - first.loss(over, at), "+.4f") if at else _NONE)
        times = (run.seconds, first.seconds)
        found.append(_number(times[0] / times[1], ".3f") if times[0] and times[1] else _NONE)
    return found


def _number(value: float | None, form: str) -> str:
    return _NONE if value is None or not math.isfinite(value) else format(value, form)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


#: Stands in every picture and page, so that a later one may take its place.
MADE_BY: Final = "accel-bridge plot"
#: Characters of a run's name in the legend.
_NAME: Final = 60
#: Few points are marked: a line of one or two of them cannot be seen.
_MARKED: Final = 30
#: Share of the points that the axis of times shows: the first iterations take many times as long.
_SHOWN: Final = 0.98
_STYLES: Final = ("-", "--", "-.", ":")


def draw(
    runs: Sequence[Run], over: int, *, title: str = "", marks: Sequence[tuple[int, str]] = ()
) -> bytes:
    """Losses above, throughput below: bytes of a PNG.

    The values as they were logged are drawn thin and pale, their means over ``over`` points bold.

    :param marks: (iteration, what happened there).
    :raises MissingPackage: matplotlib is not installed.
    """
    require("matplotlib")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    lower = _throughput(runs)
    figure, axes = pyplot.subplots(
        2 if lower else 1,
        1,
        figsize=(8, 6 if lower else 4.5),
        sharex=True,
        squeeze=False,
        layout="constrained",
        gridspec_kw={"height_ratios": (3, 2)} if lower else None,
    )
    panels = [panel[0] for panel in axes]
    _curves(panels[0], runs, over, lambda point: point.loss, labels=True)
    panels[0].set(ylabel="loss (nats per token)", title=_label(title, 90))
    if lower:
        name, value = lower
        _curves(panels[1], runs, over, value, warm_up=True)
        _limit(panels[1], [value(point) for run in runs for point in run.points])
        panels[1].set(ylabel=name)
    for iteration, text in marks:
        for number, panel in enumerate(panels):
            label = text if number == 0 else None
            panel.axvline(iteration, color="grey", linestyle=":", label=label)
    for panel in panels:
        panel.grid(alpha=0.3)
    panels[-1].set(xlabel="iteration")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    first = min(run.points[0].iteration for run in runs)
    last = max(run.last for run in runs)
    margin = max(0.5, (last - first) / 40)
    panels[-1].set_xlim(first - margin, last + margin)
    panels[0].legend(fontsize="small", loc="best")
    output = io.BytesIO()
    figure.savefig(output, format="png", dpi=110, metadata={"Software": MADE_BY})
    pyplot.close(figure)
    return output.getvalue()


def _throughput(runs: Sequence[Run]) -> tuple[str, Callable[[Point], float]] | None:
    """(what the lower panel shows, its value): tokens a second where every run knows them."""
    if all(run.median("tokens") for run in runs):
        return "tokens/s", lambda point: math.nan if point.tokens is None else point.tokens
    if any(run.seconds for run in runs):
        return "s/step", lambda point: math.nan if point.seconds is None else point.seconds
    return None


def _curves(
    axes: Any,
    runs: Sequence[Run],
    over: int,
    value: Callable[[Point], float],
    *,
    labels: bool = False,
    warm_up: bool = False,
) -> None:
    for place, run in enumerate(runs):
        color = f"C{place % 10}"
        style = _STYLES[place % len(_STYLES)]
        numbers = [point.iteration for point in run.points]
        raw = [value(point) for point in run.points]
        raw = [one if is_drawable(one) else math.nan for one in raw]
        marker = "." if len(numbers) <= _MARKED else None
        name = f"{letter(place)}: " if len(runs) > 1 else ""
        name += _label(run.name, _NAME)
        if over > 1:
            axes.plot(numbers, raw, color=color, alpha=0.3, lw=0.8)
            name += f" (mean of {over})"
        if warm_up and len(raw) > 1:
            raw[0] = math.nan  # it takes many times as long, and would spoil the means after it
        means = smoothed(raw, over)
        label = name if labels else None
        axes.plot(numbers, means, color=color, ls=style, lw=1.8, marker=marker, label=label)
    if not any(is_drawable(value(point)) for run in runs for point in run.points):
        axes.text(0.5, 0.5, "no finite number", ha="center", transform=axes.transAxes)
        axes.set_yticks([])


def _limit(axes: Any, values: Sequence[float]) -> None:
    """From zero to what nearly all points reach: a warm-up must not flatten the rest."""
    known = sorted(value for value in values if is_drawable(value))
    if known:
        top = known[min(len(known) - 1, int(_SHOWN * len(known)))]
        axes.set_ylim(0, (top or 1.0) * 1.15)


def _label(name: str, length: int) -> str:
    """A name whose end counts, as a path's does; matplotlib reads dollars as formulas."""
    short = name if len(name) <= length else f"...{name[3 - length :]}"
    return printable(short).replace("$", r"\$")


def as_html(runs: Sequence[Run], over: int, picture: bytes) -> str:
    """The picture (a PNG), the table and its notes."""
    parts = [
        image("loss and throughput", picture),
        table(columns(runs), rows(runs, over)),
        paragraphs(notes(runs, over)),
    ]
    return page(MADE_BY, " and ".join(run.name for run in runs), parts)
