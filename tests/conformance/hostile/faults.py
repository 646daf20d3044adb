"""Faults of the machine around a command: limits, full or read-only file systems, signals, time."""

from __future__ import annotations

import os
import random
import resource
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM
from typing import Final

from conformance.hostile.case import Case, Prepare, nothing
from conformance.hostile.commands import GOOD, Good
from conformance.hostile.fixtures import TRAINED


@dataclass(frozen=True)
class Fault:
    """Something that is wrong around a command, whatever the command.

    :param bars: whether it keeps a command that writes from its work; such a one must be refused.
    """

    name: str
    environ: Mapping[str, str | None] = field(default_factory=dict)
    prepare: Prepare = nothing
    limits: Mapping[int, int] = field(default_factory=dict)
    mounts: str = ""
    bars: bool = False


def _tmpfs(place: str, size: str = "4k") -> str:
    """A file system that is full, for this command alone."""
    fill = f"head -c 1M /dev/zero > {place}/full 2>/dev/null || true"
    return f"mount -t tmpfs -o size={size} tmpfs {place}; {fill}"


def _module(text: str) -> Prepare:
    """A module that every Python of the command runs when it starts."""

    def prepare(directory: Path) -> None:
        (directory / "site").mkdir(exist_ok=True)
        (directory / "site" / "sitecustomize.py").write_text(text)

    return prepare


#: Time that goes back by up to an hour at every look.
_BACK: Final = """\
import itertools, time
_real, _count = time.time, itertools.count()
time.time = lambda: _real() - 37 * (next(_count) % 100)
"""
#: One that is far away from everything.
_FAR: Final = "import time\n_real = time.time\ntime.time = lambda: _real() - 1.7e9\n"


def _loop(directory: Path) -> None:
    """Directories that lead to themselves and to one another."""
    (directory / "photos" / "again").symlink_to("../photos")
    (directory / "again").symlink_to(".")


def _odd_names(directory: Path) -> None:
    for name in (b"\xff\xfe.jsonl", "\u202egnp.\n".encode(), b"-rf", b"x" * 255):
        (directory / os.fsdecode(name)).write_bytes(b'{"text": "1"}\n')


_USUAL: Final = ("HOME", "PATH", "USER", "LANG", "LC_ALL", "TERM", "SHELL", "TMPDIR", "LOGNAME")

FAULTS: Final = (
    Fault("16 open files", limits={resource.RLIMIT_NOFILE: 16}),
    Fault("64 open files", limits={resource.RLIMIT_NOFILE: 64}),
    Fault("300 MB of addresses", limits={resource.RLIMIT_AS: 300 << 20}),
    Fault("1 GB of addresses", limits={resource.RLIMIT_AS: 1 << 30}),
    Fault("files of 0 bytes", limits={resource.RLIMIT_FSIZE: 0}, bars=True),
    Fault("files of 10 bytes", limits={resource.RLIMIT_FSIZE: 10}, bars=True),
    Fault("a stack of 256 kB", limits={resource.RLIMIT_STACK: 256 << 10}),
    Fault("2 s of processor", limits={resource.RLIMIT_CPU: 2}),
    Fault("/dev/shm full", mounts=_tmpfs("/dev/shm")),
    Fault("no /dev/shm", mounts="mount -t tmpfs -o ro tmpfs /dev/shm"),
    Fault("/tmp full", mounts="mkdir -p t; mount --bind . t; " + _tmpfs("/var/tmp"),
          environ={"TMPDIR": "/var/tmp"}),
    Fault(
        "a read-only directory", mounts="mount --bind . .; mount -o remount,ro,bind .", bars=True
    ),
    Fault("no /proc", mounts="mount -t tmpfs -o ro tmpfs /proc"),
    Fault("no /sys", mounts="mount -t tmpfs -o ro tmpfs /sys"),
    Fault("an empty environment", environ=dict.fromkeys(_USUAL)),
    Fault("no PATH and no home", environ={"PATH": "", "HOME": None}),
    Fault("a home that is a file", environ={"HOME": "notes.txt", "XDG_STATE_HOME": "notes.txt",
          "XDG_CACHE_HOME": "notes.txt", "XDG_CONFIG_HOME": "notes.txt"}),
    Fault("no place for temporary files", environ={"TMPDIR": "/no/such"}),
    Fault("locale C", environ={"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0",
          "PYTHONCOERCECLOCALE": "0"}, prepare=_odd_names),
    Fault("a locale that is none", environ={"LC_ALL": "tlh_QO.UTF-9"}),
    Fault("strict ASCII", environ={"PYTHONIOENCODING": "ascii:strict", "PYTHONUTF8": "0",
          "LC_ALL": "POSIX"}, prepare=_odd_names),
    Fault("a clock that goes back", environ={"PYTHONPATH": "site"}, prepare=_module(_BACK)),
    Fault("a clock of 1973", environ={"PYTHONPATH": "site"}, prepare=_module(_FAR)),
    Fault("directories that lead to themselves", prepare=_loop),
    Fault("names that are no text", prepare=_odd_names),
    Fault("optimised Python", environ={"PYTHONOPTIMIZE": "2"}),
    Fault("warnings are errors", environ={"PYTHONWARNINGS": "error"}),
    Fault("Python's development mode", environ={"PYTHONDEVMODE": "1"}),
    Fault("a hash seed and no bytecode", environ={"PYTHONHASHSEED": "0",
          "PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1"}),
    Fault("unbuffered", environ={"PYTHONUNBUFFERED": "1"}),
)  # fmt: skip

#: What torch is imported for takes minutes of waiting in a sample.
_HEAVY: Final = (
    *("parity kernels", "parity record", "demo", "pretrain", "emulate", "run -m", "run {"),
    "accel_bridge.run",
)
_QUICK: Final = tuple(good for good in GOOD if not good.slow and not good.line.startswith(_HEAVY))


def faults(_: random.Random) -> Iterator[Case]:
    """Every quick command under every fault."""
    return (_under(good, fault) for good in _QUICK for fault in FAULTS)


def _under(good: Good, fault: Fault) -> Case:
    directory = fault.bars and fault.mounts and good.outputs
    return Case(
        "faults",
        f"{good.line[:40]}: {fault.name}",
        good.words(),
        True if directory else None,
        fault.prepare,
        fault.environ,
        outputs=good.outputs,
        seconds=good.seconds,
        memory=good.memory,
        limits=fault.limits,
        mounts=fault.mounts,
    )


#: What takes long enough to be ended by a signal, and what it may leave.
_LONG: Final = (
    ("env --wait 60", ()),
    ("backends --kernels", ()),
    ("doctor", ()),
    ("patches", ()),
    ("demo --out made --iterations 500", ("made",)),
    ("parity kernels --backend cpu --html x.html", ("x.html",)),
    ("preprocess --input big.jsonl --output-prefix out --tokenizer-type NullTokenizer "
     "--vocab-size 255 --workers 2", ("out_text_document.bin", "out_text_document.idx",
                                      "out.preprocess")),
    ("tokenizer train --input big.jsonl --output made --vocab-size 400", ("made",)),
    ("run --record run.rec -- sleep 30", ("run.rec",)),
    ("run -- sleep 30", ()),
    (f"pretrain -- {' '.join(TRAINED)} --train-iters 500", ()),
    (f"pretrain --nproc-per-node 2 -- {' '.join(TRAINED)} --train-iters 500 --save made "
     "--save-interval 3", ("made",)),
    (f"parity record --out run.rec -- {' '.join(TRAINED)} --train-iters 500", ("run.rec",)),
)  # fmt: skip


def _big(directory: Path) -> None:
    text = (directory / "text.jsonl").read_bytes()
    (directory / "big.jsonl").write_bytes(text * 4000)


def signals(source: random.Random) -> Iterator[Case]:
    """SIGTERM, SIGHUP and Ctrl-C at a random moment of every command."""
    lines = [(good.words(), good.outputs, nothing) for good in _QUICK]
    long = [(["accel_bridge", *line.split()], outputs, _big) for line, outputs in _LONG]
    for _ in range(6):
        for words, outputs, prepare in (*lines, *long * 4):
            number = source.choice((SIGTERM, SIGHUP, SIGINT))
            moment = round(source.uniform(0.05, 10 if prepare is _big else 1.2), 2)
            yield Case(
                "signals",
                f"{' '.join(words[1:4])[:40]}: {number.name} after {moment} s",
                words,
                None,
                prepare,
                outputs=(*outputs, "out.preprocess.lock"),
                interrupt=moment,
                signal=number,
                memory=None,
            )


def _append(name: str, data: bytes) -> Callable[[Path], None]:
    def act(directory: Path) -> None:
        with (directory / name).open("ab") as file:
            file.write(data)

    return act


def _rewrite(name: str) -> Callable[[Path], None]:
    """A file that is there, cut, and there again."""

    def act(directory: Path) -> None:
        path = directory / name
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
        path.write_bytes(data)

    return act


def _blink(name: str) -> Callable[[Path], None]:
    """A file that goes and comes."""

    def act(directory: Path) -> None:
        path = directory / name
        path.rename(path.with_name("away"))
        path.with_name("away").rename(path)

    return act


_TEXT: Final = b'{"text": "7 8 9"}\n{"te'
_READ: Final = {
    "text.jsonl": "preprocess --input text.jsonl --output-prefix out --tokenizer-type "
    "NullTokenizer --vocab-size 255",
    "table.csv": "preprocess --input table.csv --input-format csv --output-prefix out "
    "--tokenizer-type NullTokenizer --vocab-size 255 --on-error skip",
    "data_text_document.idx": "inspect data_text_document",
    "data_text_document.bin": "inspect data_text_document --samples 3",
    "a.rec": "parity compare a.rec b.rec --html x.html",
    "run.log": "plot run.log --html x.html",
    "script.py": "run script.py",
    "vocab.json": "preprocess --input text.jsonl --output-prefix out --tokenizer-type "
    "GPT2BPETokenizer --vocab-file vocab.json --merge-file merges.txt",
}
_MADE: Final = ("out_text_document.bin", "out_text_document.idx", "x.html", "out.preprocess.lock")


def together(_: random.Random) -> Iterator[Case]:
    """Two commands with one output at once, and inputs that change while they are read."""
    for good in (good for good in GOOD if good.outputs and not good.slow):
        for number in range(2):
            name = f"{good.line[:40]}: twice at once, {number}"
            outputs = (*good.outputs, "out.preprocess.lock")
            case = Case("together", name, good.words(), None, outputs=outputs, twice=True,
                        memory=None, seconds=120)  # fmt: skip
            yield case
            if good.line.startswith("preprocess --input {text}"):
                yield replace(case, name=f"{name}, resumed", words=[*case.words, "--resume"])
    for name, line in _READ.items():
        acts = {
            "grows": _append(name, b"# more\n" if name == "script.py" else _TEXT),
            "is written anew": _rewrite(name),
            "comes and goes": _blink(name),
        }
        for how, act in acts.items():
            for number in range(2):
                yield Case(
                    "together",
                    f"{name} {how} while {line[:20]} reads it, {number}",
                    ["accel_bridge", *line.split()],
                    None,
                    outputs=(*_MADE, name, "away"),
                    meanwhile=act,
                    verdict=r"NOT SOUND|FAIL: ",
                    memory=None,
                )
