"""Bad variables, streams and plugins."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from conformance.hostile.case import Case, Prepare, Stream
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
    quiet = good.line.startswith(("preprocess", "parity kernels"))
    if "stdout" in streams and streams["stdout"] == "gone" and refused:
        refused = None  # as `| head` does it
    return Case(
        "streams",
        f"{good.line[:50]}: {name}",
        good.words(),
        None if quiet and refused and "stdout" in streams else refused,
        # `| head` says nothing.
        outputs=good.outputs,
        memory=good.memory,
        seconds=good.seconds,
        **(streams | {"stderr": "gone"} if streams.get("stdout") == "gone" else streams),
    )


#: What a hook or a module of a plugin does instead of its work.
_BODIES: Final = {
    "a text": "return 'text'",
    "texts": "return ['a', 'b']",
    "nothing": "return None",
    "a number": "return 7",
    "numbers": "return [1, 2.5]",
    "a class": "return [dict]",
    "itself": "return [accel_bridge_commands]",
    "a dictionary": "return {'name': 'x'}",
    "a deep list": "return [[[[]]]]",
    "a raising generator": "return (1 / 0 for _ in range(2))",
    "an endless text": "return ['x' * 10**6]",
    "an error": "raise ValueError('from the plugin \\x1b[31m')",
    "an error of many lines": "raise RuntimeError('a\\n' * 500)",
    "an error without words": "raise KeyError",
    "an exit": "raise SystemExit(0)",
    "an interrupt": "raise SystemExit('text')",
    "an endless recursion": "return accel_bridge_commands()",
    "an assertion": "assert False",
    "an error that cannot be shown": "raise Unshowable()",
    "objects that cannot be shown": "return [Unshowable()]",
    "an import that fails": "import no_such_module_at_all",
    "a broken object": "return [Broken()]",
}
_HOOKS: Final = ("backends", "commands", "variables")
_HEAD: Final = """\
from accel_bridge.plugin import hookimpl
class Unshowable(Exception):
    def __repr__(self): raise ValueError("no repr")
    __str__ = __repr__
class Broken:
    def __getattr__(self, name): raise RuntimeError(name)
"""
_MODULES: Final = {
    "no Python": "this is no Python",
    "zeros": "\0\0",
    "another encoding": "# coding: no-such\n",
    "an exit": "raise SystemExit(0)",
    "an exit with words": "raise SystemExit('gone')",
    "an error": "1 / 0",
    "an endless recursion": "def f(): f()\nf()",
    "no hook": "x = 1",
    "a name of a hook that is none": "from accel_bridge.plugin import hookimpl\n@hookimpl\n"
    "def accel_bridge_backend(): return []",
    "a parameter that no hook has": "from accel_bridge.plugin import hookimpl\n@hookimpl\n"
    "def accel_bridge_patches(device): return []",
}
_METADATA: Final = {
    "no metadata": {},
    "metadata that are no text": {"METADATA": b"\xff\xfe\x00"},
    "an entry that leads nowhere": {"entry_points.txt": b"[accel_bridge]\nx = no.such:thing\n"},
    "entries that are cut": {"entry_points.txt": b"[accel_bridge\nx ="},
    "entries that are no text": {"entry_points.txt": b"\xff\xfe[accel_bridge]\n"},
    "a directory for entries": {"entry_points.txt": None},
    "an entry without a module": {"METADATA": b"Name: x\nVersion: 1\n",
                                  "entry_points.txt": b"[accel_bridge]\nx =\n"},
    "a version that is none": {"METADATA": b"Name: torch\nVersion: banana\n"},
    "no name": {"METADATA": b"Version: 1\n"},
}  # fmt: skip


def plugins(_: random.Random) -> Iterator[Case]:
    """Plugins that break, named by the user or installed."""
    for hook in _HOOKS:
        for name, body in _BODIES.items():
            text = f"{_HEAD}@hookimpl\ndef accel_bridge_{hook}():\n    {body}\n"
            text += "" if hook == "commands" else "accel_bridge_commands = print\n"
            for line in ("plugins", "backends", "run script.py"):
                # A list of nothing is a hook's right, and `plugins` shows failures as they are.
                right = name in ("nothing",) or (hook == "commands" and line != "plugins")
                right = right or "recursion" in name or "itself" in name
                yield _plugin(line, f"{hook} gives {name}", text, None if right else True)
    for name, text in _MODULES.items():
        for line in ("plugins", "backends", "run script.py"):
            yield _plugin(line, f"a module with {name}", text, None if name == "no hook" else True)
    for name, files in _METADATA.items():
        for line in ("plugins", "backends", "env --no-imports", "run script.py"):
            environ = {"PYTHONPATH": "site"}
            prepare = _installed(files)
            words = ["accel_bridge", *line.split()]
            yield Case("plugins", f"{line}: {name}", words, None, prepare, environ, memory=None)


def _plugin(line: str, name: str, text: str, refused: bool | None) -> Case:
    def prepare(directory: Path) -> None:
        (directory / "site").mkdir()
        (directory / "site" / "broken_plugin.py").write_bytes(text.encode())

    environ = {"PYTHONPATH": "site", "ACCEL_BRIDGE_PLUGINS": "broken_plugin"}
    words = ["accel_bridge", *line.split()]
    return Case("plugins", f"{line}: {name}", words, refused, prepare, environ, memory=None)


def _installed(files: dict[str, bytes | None]) -> Prepare:
    def prepare(directory: Path) -> None:
        made = directory / "site" / "broken-1.dist-info"
        made.mkdir(parents=True)
        for name, data in files.items():
            if data is None:
                (made / name).mkdir()
            else:
                (made / name).write_bytes(data)

    return prepare
