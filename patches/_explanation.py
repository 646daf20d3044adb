"""What an error of Megatron says about the arguments: read from its traceback."""

from __future__ import annotations

import ast
import linecache
import re
import shutil
import sys
import textwrap
import traceback
from typing import Any, Final, NamedTuple

from accel_bridge.errors import BridgeError
from accel_bridge.patching.host import flag_of, is_flag, is_given, written

SAVING: Final = "The checkpoint cannot be saved"
_LOADING: Final = "The checkpoint cannot be loaded"
#: Megatron's functions -> what fails when an error comes out of them; the innermost counts.
STAGES: Final = {
    "validate_args": "Megatron does not accept these arguments",
    "parse_args": "Megatron does not accept these arguments",
    "parse_and_validate_args": "Megatron does not accept these arguments",
    "core_transformer_config_from_args": "Megatron does not accept these arguments",
    "pretrain_cfg_container_from_args": "Megatron does not accept these arguments",
    "initialize_megatron": "Megatron could not be initialised",
    "build_tokenizer": "The tokenizer cannot be built",
    "load_args_from_checkpoint": _LOADING,
    "load_checkpoint": _LOADING,
    "check_checkpoint_args": "The checkpoint is of another model",
    "save_checkpoint": SAVING,
    "setup_model_and_optimizer": "The model cannot be built",
    "build_train_valid_test_data_iterators": "The data sets cannot be built",
    "train": "Training stopped",
    "evaluate": "The evaluation stopped",
}
_NEXT: Final = {
    _LOADING: "give --load a directory whose checkpoint is whole: an earlier "
    "iteration by --ckpt-step N, where there is one",
    SAVING: "fix what it says; the checkpoint before it is whole, and "
    "the same command goes on from there when it has --load",
    "The checkpoint is of another model": "give the arguments that the checkpoint was trained "
    "with, or --finetune to take only its weights",
}
#: Errors of loading a whole checkpoint -> what to do.
_LOADED: Final = (
    (
        re.compile("dp_reshardable|fully-parallel-save"),
        "its optimizer resumes in the layout that saved it; --no-load-optim takes the weights "
        "alone, and --dist-ckpt-optim-fully-reshardable saves one for every layout",
    ),
    (
        re.compile("Global shape mismatch|size mismatch for"),
        "give the model's arguments of the run that saved it",
    ),
    (
        re.compile(
            r"KeyError: ['\"](optimizer\b|distrib_optim_sharding_type)|flattened_range is not sup|"
            r"Could not find parameter group|Expected \d+ entries in state dict"
        ),
        "give the precision, expert parallel size and --use-distributed-optimizer of the run that "
        "saved it, or --no-load-optim to take its weights alone",
    ),
)
_DEBUG: Final = "ACCEL_BRIDGE_LOG=debug shows the traceback"

_MEGATRON: Final = "megatron"
#: Packages and files whose frames say nothing of who is to blame.
_LIBRARIES: Final = ("torch", "numpy", "accel_bridge")
_INSTALLED: Final = re.compile(r"/python3\.\d+/|^<")


class Place(NamedTuple):
    """One line of a traceback: file, line and the whole statement there."""

    file: str
    line: int
    statement: str

    def __str__(self) -> str:
        short = self.file[self.file.rfind(f"/{_MEGATRON}/") + 1 :]
        return f"{short}:{self.line}"


def _frames(error: BaseException) -> list[tuple[str, traceback.FrameSummary]]:
    """The top-level package and the line of each frame, outermost first.

    Frameworks above Megatron have directories of its name too, so paths do not tell.
    """
    walked = traceback.walk_tb(error.__traceback__)
    roots = [str(frame.f_globals.get("__name__")).partition(".")[0] for frame, _ in walked]
    lines = traceback.extract_tb(error.__traceback__)  # sys.tracebacklimit leaves inner ones out
    return list(zip(roots, lines, strict=False))


def is_megatrons(error: BaseException) -> bool:
    """Whether the error came out of Megatron's own code and not of the user's.

    Libraries that Megatron calls count as Megatron.
    """
    own = [
        root
        for root, line in _frames(error)
        if root == _MEGATRON or not (root in _LIBRARIES or _INSTALLED.search(line.filename))
    ]
    return own[-1:] == [_MEGATRON]


def of_error(error: BaseException, args: Any) -> BridgeError:
    """The three parts for an error of Megatron that no table knows."""
    stage = stage_of(error)
    place = innermost(error)
    message = message_of(error)
    named = arguments_in(message, args) | _reckoned_with(place.statement, args)
    flags = [_shortened(written(name, value)) for name, value in named.items()]
    condition = _condition(place.statement)
    step = _NEXT.get(stage) or _change(named) or "fix what it says"
    if stage == _LOADING:
        text = f"{type(error).__name__}: {message}"
        step = next((found for pattern, found in _LOADED if pattern.search(text)), step)
    missing = _missing(error, place.statement, args)
    if missing:
        flags, step = [f"{flag} was not given" for flag in missing], f"give {', '.join(missing)}"
    alone = [value for value in named.values() if value is None or isinstance(value, bool)]
    if condition and named and not len(alone) == len(named) == 1:  # giving it says all
        step += f" until {condition}"
    evidence = [f"{type(error).__name__} at {place}: {_shortened(place.statement)}"]
    if stage == _LOADING:
        flags.append(f"--load {getattr(args, 'load', None)}")
    if stage == SAVING:
        flags.append(f"--save {getattr(args, 'save', None)}{_room(getattr(args, 'save', None))}")
    return BridgeError(
        f"{stage}: {_shortened(message or condition or place.statement)}",
        evidence=[*evidence, " ".join(flags)] if flags else evidence,
        next=f"{step}; {_DEBUG}",
    )


def _reckoned_with(statement: str, args: Any) -> dict[str, Any]:
    """The arguments on which a statement depends.

    Only an ``assert`` depends on a switch that was not given: a call passes many on.
    """
    return {
        name: value
        for name, value in arguments_in(statement, args).items()
        if statement.startswith("assert") or not isinstance(value, bool) or is_given(name, value)
    }


def _missing(error: BaseException, statement: str, args: Any) -> list[str]:
    """The flags without a value with which a statement has reckoned."""
    if not isinstance(error, TypeError) or "NoneType" not in str(error):
        return []
    names = dict.fromkeys(re.findall(r"\bargs\.(\w+)", statement))
    return [flag_of(name) for name in names if getattr(args, name, 0) is None]


def _room(directory: Any) -> str:
    try:
        return f", where {shutil.disk_usage(str(directory)).free / 1e6:.1f} MB are free"
    except OSError:
        return ""


def message_of(error: BaseException) -> str:
    """What an error says, in one line; of one that quotes a traceback its last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if any(line.startswith("Traceback (most recent") for line in lines):
        return lines[-1]
    return " ".join(" ".join(lines).split())


def _condition(statement: str) -> str:
    """What an ``assert`` demands, without its message."""
    found = re.match(r"assert\s+(.+)", statement)
    if found is None:
        return ""
    try:
        test = ast.parse(found[0]).body[0].test  # type: ignore[attr-defined]
    except (SyntaxError, IndexError):
        return ""
    return ast.unparse(test).replace("args.", "")


def arguments_of(error: BaseException) -> Any:
    """Megatron's parsed arguments, from the functions that the error came through."""
    found = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for name in ("args", "parsed_args"):
            value = frame.f_locals.get(name)
            if hasattr(value, "micro_batch_size"):
                found = value
    return found


def of_silent_end(end: SystemExit, args: Any) -> BridgeError | None:
    """An exit with status 0 in the middle of loading is a failure; None for any other."""
    place = innermost(end)
    if end.code or not place.file.endswith("megatron/training/checkpointing.py"):
        return None
    directory = getattr(args, "load", None)
    return BridgeError(
        "The checkpoint cannot be loaded: Megatron stopped and reported success.",
        evidence=[f"--load {directory}", f"from {place}; its own message is above"],
        next=f"{_NEXT[_LOADING]}; {_DEBUG}",
    )


def stage_of(error: BaseException) -> str:
    """What could not be done, by the functions that the error came through."""
    names = [line.name for _, line in _frames(error)]
    return next((STAGES[name] for name in reversed(names) if name in STAGES), "Megatron stopped")


def _change(named: dict[str, Any]) -> str:
    """What to do with arguments: a switch is given or removed, an absent value given."""
    others = [
        flag_of(name)
        for name, value in named.items()
        if not (value is None or isinstance(value, bool))
    ]
    steps = [f"change {', '.join(others)}"] if others else []
    for name, value in named.items():
        if value is None:
            steps.append(f"give {flag_of(name)}")
        elif isinstance(value, bool):
            steps.append(f"{'remove' if is_given(name, value) else 'give'} {flag_of(name)}")
    return ", ".join(steps)


def arguments_in(text: str, args: Any) -> dict[str, Any]:
    """The arguments that a text names, with their values; at most six."""
    found = {}
    for word in re.findall(r"[A-Za-z][A-Za-z0-9_-]{2,}", text):
        name = word.replace("-", "_")
        own = "_" in name and not name.startswith(("_", "eval_")) and is_flag(name)
        if own and hasattr(args, name):
            found[name] = getattr(args, name)
    # Those of the command line first: the others are defaults, or follow from them.
    first = sorted(found, key=lambda name: flag_of(name) not in sys.argv)
    return {name: found[name] for name in first[:6]}


def innermost(error: BaseException) -> Place:
    """The last line of Megatron that the error came through."""
    frames = _frames(error)
    of_megatron = [line for root, line in frames if root == _MEGATRON]
    if not frames:
        return Place("?", 0, "")
    line = of_megatron[-1] if of_megatron else frames[-1][1]
    first = line.lineno or 0
    last = getattr(line, "end_lineno", None) or first
    lines = [linecache.getline(line.filename, number) for number in range(first, last + 1)]
    return Place(line.filename, first, " ".join(_head("".join(lines)).split()))


def _head(statement: str) -> str:
    """A statement without its block, which says nothing of an error of ``with`` itself."""
    try:
        block = getattr(ast.parse(textwrap.dedent(statement)).body[0], "body", None)
    except (SyntaxError, IndexError):
        return statement
    lines = statement.splitlines()[: block[0].lineno - 1] if block else [statement]
    return "\n".join(line for line in lines if not line.lstrip().startswith("#"))


def _shortened(text: str, most: int = 300) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
