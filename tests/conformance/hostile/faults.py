"""Faults of the machine around a command: limits, full or read-only file systems, signals, time."""

from __future__ import annotations

import os
import random
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM
from typing import Any, Final

from conformance.hostile.case import Case, Prepare, nothing
from conformance.hostile.commands import GOOD
from conformance.hostile.fixtures import TRAINED
from conformance.hostile.values import full


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


#: It keeps a command that writes from its work.
_READ_ONLY: Final = "a read-only directory"
_HOMES: Final = ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
_USUAL: Final = ("HOME", "PATH", "USER", "LANG", "LC_ALL", "TERM", "SHELL", "TMPDIR", "LOGNAME")

#: What is wrong around a command, whatever the command -> fields of its case.
FAULTS: Final[dict[str, dict[str, Any]]] = {
    "16 open files": {"limits": {resource.RLIMIT_NOFILE: 16}},
    "64 open files": {"limits": {resource.RLIMIT_NOFILE: 64}},
    "300 MB of addresses": {"limits": {resource.RLIMIT_AS: 300 << 20}},
    "1 GB of addresses": {"limits": {resource.RLIMIT_AS: 1 << 30}},
    "files of 0 bytes": {"limits": {resource.RLIMIT_FSIZE: 0}},
    "files of 10 bytes": {"limits": {resource.RLIMIT_FSIZE: 10}},
    "a stack of 256 kB": {"limits": {resource.RLIMIT_STACK: 256 << 10}},
    "2 s of processor": {"limits": {resource.RLIMIT_CPU: 2}},
    "/dev/shm full": {"mounts": full("/dev/shm")},
    "no /dev/shm": {"mounts": "mount -t tmpfs -o ro tmpfs /dev/shm"},
    "/tmp full": {
        "mounts": f"mkdir -p t; mount --bind . t; {full('/var/tmp')}",
        "environ": {"TMPDIR": "/var/tmp"},
    },
    _READ_ONLY: {"mounts": "mount --bind . .; mount -o remount,ro,bind ."},
    "no /proc": {"mounts": "mount -t tmpfs -o ro tmpfs /proc"},
    "no /sys": {"mounts": "mount -t tmpfs -o ro tmpfs /sys"},
    "an empty environment": {"environ": dict.fromkeys(_USUAL)},
    "no PATH and no home": {"environ": {"PATH": "", "HOME": None}},
    "a home that is a file": {"environ": dict.fromkeys(_HOMES, "notes.txt")},
    "no place for temporary files": {"environ": {"TMPDIR": "/no/such"}},
    "locale C": {
        "environ": {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        "prepare": _odd_names,
    },
    "a locale that is none": {"environ": {"LC_ALL": "tlh_QO.UTF-9"}},
    "strict ASCII": {
        "environ": {"PYTHONIOENCODING": "ascii:strict", "PYTHONUTF8": "0", "LC_ALL": "POSIX"},
        "prepare": _odd_names,
    },
    "a clock that goes back": {"environ": {"PYTHONPATH": "site"}, "prepare": _module(_BACK)},
    "a clock of 1973": {"environ": {"PYTHONPATH": "site"}, "prepare": _module(_FAR)},
    "directories that lead to themselves": {"prepare": _loop},
    "names that are no text": {"prepare": _odd_names},
    "optimised Python": {"environ": {"PYTHONOPTIMIZE": "2"}},
    "warnings are errors": {"environ": {"PYTHONWARNINGS": "error"}},
    "Python's development mode": {"environ": {"PYTHONDEVMODE": "1"}},
    "a hash seed and no bytecode": {
        "environ": dict.fromkeys(("PYTHONDONTWRITEBYTECODE", "PYTHONSAFEPATH"), "1")
        | {"PYTHONHASHSEED": "0"}
    },
    "unbuffered": {"environ": {"PYTHONUNBUFFERED": "1"}},
}

#: What torch is imported for takes minutes of waiting in a sample.
_HEAVY: Final = (
    *("parity kernels", "parity record", "demo", "pretrain", "emulate", "run -m", "run {"),
    "accel_bridge.run",
)
_QUICK: Final = tuple(good for good in GOOD if not good.slow and not good.line.startswith(_HEAVY))


def faults(_: random.Random) -> Iterator[Case]:
    """Every quick command under every fault."""
    for good in _QUICK:
        for name, fault in FAULTS.items():
            refused = True if name == _READ_ONLY and good.outputs else None
            yield good.case("faults", f"{good.line[:40]}: {name}", refused, **fault)


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


def _changing(name: str, how: str) -> Prepare:
    """What happens to a file while it is read."""

    def act(directory: Path) -> None:
        path = directory / name
        if how == "comes and goes":
            path.rename(path.with_name("away"))
            path.with_name("away").rename(path)
            return
        data = path.read_bytes()
        if how == "is written anew":
            path.write_bytes(data[: len(data) // 2])
            path.write_bytes(data)
            return
        with path.open("ab") as file:
            file.write(b"# more\n" if name == "script.py" else _TEXT)

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
            more = {"outputs": (*good.outputs, "out.preprocess.lock"), "seconds": 120}
            case = good.case("together", name, None, twice=True, memory=None, **more)
            yield case
            if good.line.startswith("preprocess --input {text}"):
                yield replace(case, name=f"{name}, resumed", words=[*case.words, "--resume"])
    for name, line in _READ.items():
        for how in ("grows", "is written anew", "comes and goes"):
            for number in range(2):
                yield Case(
                    "together",
                    f"{name} {how} while {line[:20]} reads it, {number}",
                    ["accel_bridge", *line.split()],
                    None,
                    outputs=(*_MADE, name, "away"),
                    meanwhile=_changing(name, how),
                    verdict=r"NOT SOUND|FAIL: ",
                    memory=None,
                )
