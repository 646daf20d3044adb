"""Compiles the substitute CANN libraries, once for each torch, torch_npu and source text."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from accel_bridge.backends._torch_build import installed_torch
from accel_bridge.backends.ascend.emulator._torch_npu import TorchNpu, cache_directory, locked
from accel_bridge.errors import BridgeError

SOURCES: Final = Path(__file__).parent / "sources"
_COMPILER: Final = "g++"
#: torch's headers need C++20; optimisation beyond -O1 is not worth its compile time here.
_FLAGS: Final = ("-std=c++20", "-O1", "-fPIC", "-fvisibility=hidden")
#: Libraries that torch_npu opens by name, and the library with their functions, which they need.
_ALIASES: Final = {
    "libacl_op_compiler.so": "ascendcl",
    "libge_runner.so": "ascendcl",
    "libgraph.so": "ascendcl",
    "libacl_tdt_channel.so": "ascendcl",
    "libascend_protobuf.so": "ascendcl",
    "libhcomm.so": "hccl",
}


class BuildError(BridgeError):
    """The libraries could not be compiled."""


@dataclass(frozen=True, slots=True)
class Library:
    """One library.

    :param name: file name, as CANN calls it.
    :param directory: its sources.
    :param header: a header to precompile, because it includes all of ATen.
    :param links: the libraries of torch's and ours that it needs.
    """

    name: str
    directory: str
    header: str | None = None
    links: tuple[str, ...] = ()


LIBRARIES: Final = (
    Library("libascendcl.so", "runtime", links=("-lc10",)),
    Library("libhccl.so", "collectives", links=("-ltorch_cpu", "-lc10", "-lascendcl")),
    Library(
        "libopapi.so", "operators", "operator.h", ("-ltorch_cpu", "-lc10", "-lascendcl", "-lhccl")
    ),
)
#: What torchair's libraries want besides the functions of :data:`LIBRARIES`: names of CANN's graph
#: engine, mangled, of its channels, and of its C library.
_ABSENT: Final = re.compile(r"_ZNK?2ge\w+|acl\w+|\w+_s")


def build(torch_npu: TorchNpu) -> Path:
    """The directory of the libraries; compiles them if that has not been done before.

    :raises BuildError: there is no compiler, or it failed.
    """
    target = cache_directory() / f"emulator-{_key(torch_npu)}"
    with locked():
        if not target.is_dir():
            _build(torch_npu, target)
    return target


def _build(torch_npu: TorchNpu, target: Path) -> None:
    """Compile into ``target``, which appears only when complete."""
    compiler = shutil.which(_COMPILER)
    if compiler is None:
        raise BuildError(
            "the emulated CANN libraries must be compiled, but g++ is missing",
            evidence=f"{_COMPILER} is not on PATH",
            next="apt-get install g++ (or your system's package)",
        )
    print(
        "emulate-ascend: compiling the emulated CANN libraries (about a minute, once)",
        file=sys.stderr,
    )
    torch = _torch_directory()
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        draft = Path(work) / "libraries"
        draft.mkdir()
        includes = _includes(torch, torch_npu)
        for library in LIBRARIES:
            (Path(work) / library.directory).mkdir()
        plain = [library for library in LIBRARIES if not library.header]
        # Each header takes as long as many sources: those that need none fill the other cores.
        first = _headers(compiler, includes, Path(work))
        second: list[list[str]] = []
        for library in LIBRARIES:
            commands = _objects(compiler, library, includes, Path(work))
            (first if library in plain else second).extend(commands)
        with ThreadPoolExecutor(_cores()) as pool:
            list(pool.map(_run, first))
            list(pool.map(_run, second))
        for library in LIBRARIES:
            _run(_link(compiler, library, torch, Path(work), draft))
        _run(_absent(compiler, torch_npu, Path(work), draft))
        for name, linked in _ALIASES.items():
            _run([compiler, *_alias(name, f"-l{linked}", draft)])
        draft.rename(target)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _torch_directory() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _key(torch_npu: TorchNpu) -> str:
    """Changes with everything that the libraries depend on."""
    # The directory too: the libraries find torch's by it, and another environment's may be gone.
    facts = (installed_torch(), _torch_directory(), torch_npu.version, _FLAGS)
    digest = hashlib.sha256(repr(facts).encode())
    for path in sorted(SOURCES.rglob("*.[ch]*")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _includes(torch: Path, torch_npu: TorchNpu) -> list[str]:
    directories = [
        torch_npu.include,
        torch_npu.include / "third_party" / "hccl" / "inc",
        torch / "include",
        torch / "include" / "torch" / "csrc" / "api" / "include",
    ]
    # As system headers: their warnings are not ours.
    return [word for directory in directories for word in ("-isystem", str(directory))]


def _headers(compiler: str, includes: Sequence[str], work: Path) -> list[list[str]]:
    """The commands that precompile headers; the compiler uses X.h.gch instead of X.h if it can."""
    return [
        [
            *[compiler, *_FLAGS, "-Wall", *includes, "-x", "c++-header"],
            *[str(SOURCES / library.directory / library.header)],
            *["-o", str(work / library.directory / f"{library.header}.gch")],
        ]
        for library in LIBRARIES
        if library.header
    ]


def _objects(
    compiler: str, library: Library, includes: Sequence[str], work: Path
) -> list[list[str]]:
    """The commands that compile a library's sources."""
    directory = work / library.directory
    ahead = ["-include", str(directory / library.header)] if library.header else []
    words = [compiler, *_FLAGS, "-Wall", *ahead, *includes, "-c"]
    return [
        [*words, str(source), "-o", str(directory / f"{source.stem}.o")]
        for source in sorted((SOURCES / library.directory).glob("*.cpp"))
    ]


def _link(compiler: str, library: Library, torch: Path, work: Path, target: Path) -> list[str]:
    """The command that makes a library of its objects."""
    lib = torch / "lib"
    return [
        *[compiler, "-shared", "-o", str(target / library.name)],
        *[str(path) for path in sorted((work / library.directory).glob("*.o"))],
        *[f"-Wl,-soname,{library.name}", f"-Wl,-rpath,{lib}", "-Wl,-rpath,$ORIGIN"],
        *[f"-L{lib}", f"-L{target}", *library.links],
    ]


def _absent(compiler: str, torch_npu: TorchNpu, work: Path, target: Path) -> list[str]:
    """The command that makes the library of names behind which nothing is emulated."""
    asking = sorted((torch_npu.site / "torch_npu/dynamo/torchair/core").glob("*.so"))
    served = _symbols("--defined-only", *asking, target / "libascendcl.so")
    names = filter(_ABSENT.fullmatch, sorted(_symbols("--undefined-only", *asking) - served))
    lines = "".join(f"ABSENT({name})\n" for name in names)
    (work / "absent.inc").write_text(lines, encoding="utf-8")
    return [
        *[compiler, "-shared", *_FLAGS, f"-I{work}", str(SOURCES / "graph/absent.cpp")],
        *["-o", str(target / "libfmk_parser.so"), "-Wl,-soname,libfmk_parser.so"],
    ]


def _symbols(kind: str, *libraries: Path) -> set[str]:
    """The names that libraries define, or want of others."""
    if not libraries:
        return set()
    command = ["nm", "-D", kind, *map(str, libraries)]  # beside every g++, as its linker is
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].partition("@")[0] for line in listed.splitlines() if " " in line}


def _alias(name: str, link: str, directory: Path) -> list[str]:
    """The command that links an empty library which makes the loader search another one too."""
    return [
        *["-shared", "-x", "c++", os.devnull, "-o", str(directory / name)],
        *[f"-Wl,-soname,{name}", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed"],
        *[f"-L{directory}", link],
    ]


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        raise BuildError(
            "the emulated CANN libraries do not compile",
            evidence=[" ".join(command[-3:]), *(errors or done.stderr.splitlines())[:5]],
            next="compare the versions of torch and torch_npu with constraints.txt, and report it",
        )
