"""Bad variables and streams."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final

from conformance.hostile.case import Case, Stream
from conformance.hostile.commands import GOOD, Good

#: Variable -> values that mean nothing. Other text that may stand there is added to each.
_WRONG: Final = {
    "ACCEL_BRIDGE_BACKEND": ("cdua", "gpu", "npu,cpu", "0", "cpu cpu", "\x1b[31m", "x" * 5000),
    "ACCEL_BRIDGE_PLUGINS": ("no_such", "-", "a,-a", "json", "..", "a b", "sys.exit", "\x1b[2J"),
    "ACCEL_BRIDGE_PATCHES": ("-", "none,x", "all,none", "x,-x"),
    "ACCEL_BRIDGE_LIBRARIES": ("-", "none,apex", "apex,-apex", "all,apex"),
    "ACCEL_BRIDGE_STRICT": ("2", "maybe", "-1", "\x1b[31m", "truetrue"),
    "ACCEL_BRIDGE_LOG": ("loud", "0", "info,debug", "\udcff", "INFO!"),
    "ACCEL_BRIDGE_CHECKSUMS": ("maybe", "1", "offf"),
    "ACCEL_BRIDGE_MINDSPEED": ("perhaps", "2"),
}
#: Which commands read what the plugins' own variables say.
_READERS: Final = ("backends", "libraries", "run script.py")
#: Variables that other programs read; no command may fail in another way than in three parts.
_OTHERS: Final = {
    "COLUMNS": ("0", "-5", "x", "1", "9" * 30),
    "LINES": ("x",),
    "TERM": ("", "dumb", "no-such-terminal"),
    "LANG": ("C", "xx_YY.no-such", ""),
    "LC_ALL": ("C", "POSIX", "xx"),
    "PYTHONIOENCODING": ("ascii", "latin-1"),
    "HOME": (None, "", "/no/such", "notes.txt"),
    "TMPDIR": ("/no/such", "notes.txt", ""),
    "PATH": (None, "", "/no/such"),
    "PYTHONPATH": ("notes.txt", "/no/such", ":::"),
    "OMP_NUM_THREADS": ("0", "-1", "x", "9" * 30),
    "CUDA_VISIBLE_DEVICES": ("x", "-1", "99", ","),
    "ASCEND_RT_VISIBLE_DEVICES": ("x", "99"),
    "XDG_CACHE_HOME": ("notes.txt", "/proc"),
    "NO_COLOR": ("",),
    "TORCH_DEVICE_BACKEND_AUTOLOAD": ("x",),
}
#: What a launcher sets; a script that is started must not go on with these.
_LAUNCHERS: Final = {
    "RANK": ("x", "-1", "1.5", "9" * 30, "\u0663"),
    "WORLD_SIZE": ("0", "x", "-2", "9" * 30),
    "LOCAL_RANK": ("x", "-1"),
    "LOCAL_WORLD_SIZE": ("0", "two", "", "1e3"),
    "MASTER_PORT": ("http", "70000", "-1", "80 80"),
}
_QUICK: Final = (
    *("env --no-imports", "backends", "plugins", "libraries", "inspect data_text_document"),
    *("parity compare a.rec b.rec", "--help"),
)


def variables(_: random.Random) -> Iterator[Case]:
    """A value that means nothing in a variable, and a command that reads it."""
    for name, values in _WRONG.items():
        for value in values:
            for line in _READERS:
                known = name.removeprefix("ACCEL_BRIDGE_")
                # One that belongs to Megatron's patches is read when these are.
                late = known in ("CHECKSUMS", "MINDSPEED")
                refused = None if late or known in ("PATCHES", "LIBRARIES") else True
                yield _with(line, {name: value}, refused, memory=None)
    for name, others in _OTHERS.items():
        for text in others:
            for line in _QUICK:
                yield _with(line, {name: text}, None)
    for name, values in _LAUNCHERS.items():
        for value in values:
            yield _with("run script.py", {name: value}, True, memory=None)
            yield _with("pretrain --lr 1", {name: value}, True)


def _with(line: str, environ: dict[str, str | None], refused: bool | None, **more: Any) -> Case:
    name = f"{line}: {' '.join(f'{n}={v!a:.40}' for n, v in environ.items())}"
    words = ["accel_bridge", *line.split()]
    return Case("variables", name, words, refused, environ=environ, **more)


def streams(_: random.Random) -> Iterator[Case]:
    """Standard streams that are closed, full, or read by nobody, in every command that works."""
    states: tuple[Stream, ...] = ("closed", "full", "gone")
    for good in GOOD:
        if good.slow or good.line.startswith("emulate"):
            continue
        says = not good.line.startswith(("run -- ", "run --record"))
        for state in states:
            yield _stream(good, f"stdout {state}", says or state == "closed", stdout=state)
            # What goes to standard error is a note: the work is done.
            yield _stream(good, f"stderr {state}", None, stderr=state)
            yield _stream(good, f"both {state}", None, stdout=state, stderr=state)
        refused = True if "--input -" in good.line else None
        yield _stream(good, "stdin closed", refused, stdin="closed")
        yield _stream(good, "all closed", None, stdin="closed", stdout="closed", stderr="closed")


def _stream(good: Good, name: str, refused: bool | None, **streams: Any) -> Case:
    # Whatever ends without a word on standard output may end with status 0.
    if "stdout" in streams and good.line.startswith(("preprocess", "parity kernels")):
        refused = None
    if streams.get("stdout") == "gone":
        # As `| head` does it, which says nothing.
        refused, streams["stderr"] = None if refused else refused, "gone"
    return good.case("streams", f"{good.line[:50]}: {name}", refused, **streams)
