"""Checks of `accel-bridge doctor` for the libraries that NVIDIA GPUs are used through."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import re
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from accel_bridge.backends._torch_build import installed_torch, package_version
from accel_bridge.backends.cuda._smi import ask_smi
from accel_bridge.libraries import LIBRARIES, Origin, decide
from accel_bridge.plugins.checks import Check, Finding, Machine, fails, ok, warning
from accel_bridge.process.environment import LibraryChoice

# Which attention an installed Transformer Engine would really run, and why.
#
# Transformer Engine silently falls back from cuDNN's fused attention to an unfused one when a cuDNN
# sub-library cannot be loaded: 2.4 times the time and 5 times the memory (measured on an H200:
# 620 ms and 58 GB instead of 257 ms and 12 GB). This checks what decides that, without importing
# Transformer Engine and without a CUDA context.

#: Sub-libraries of cuDNN 9 that fused attention loads by name while it runs.
SUB_LIBRARIES: Final = (
    "libcudnn_graph.so.9",
    "libcudnn_ops.so.9",
    "libcudnn_heuristic.so.9",
    "libcudnn_engines_precompiled.so.9",
    "libcudnn_engines_runtime_compiled.so.9",
)
#: Transformer Engine's switches -> what a 0 turns off.
SWITCHES: Final = {"NVTE_FLASH_ATTN": "flash", "NVTE_FUSED_ATTN": "fused"}


@dataclass(frozen=True, slots=True)
class TeAttention:
    """Which attention Transformer Engine will use.

    :param backend: ``flash`` (the flash-attn package), ``fused`` (cuDNN), ``unfused``, or None
        without Transformer Engine.
    :param why: one sentence.
    :param evidence: what was looked at, one line each.
    :param remedy: the command or edit that enables fused attention; None if nothing is wrong.
    """

    backend: Literal["flash", "fused", "unfused"] | None
    why: str
    evidence: tuple[str, ...] = ()
    remedy: str | None = None


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _load(name: str) -> None:
    """:raises OSError: the loader cannot find the library, or one that it needs."""
    ctypes.CDLL(name)


@dataclass(frozen=True, slots=True)
class TeAttentionSearch:
    """The search, with everything it looks at as a parameter.

    :param installed: whether a module can be imported.
    :param version: version of an installed distribution.
    :param load: loads a shared library by name.
    :param library_directory: where pip puts cuDNN's libraries; None if unknown.
    """

    environ: Mapping[str, str]
    installed: Callable[[str], bool] = _installed
    version: Callable[[str], str | None] = package_version
    load: Callable[[str], None] = _load
    library_directory: Path | None = None

    def run(self, capability: tuple[int, int] | None = None) -> TeAttention:
        """What will run on a device of ``capability`` (None: not known)."""
        if not self.installed("transformer_engine"):
            return TeAttention(None, "Transformer Engine is not installed")
        evidence = [f"transformer_engine {self.version('transformer_engine') or '(no version)'}"]
        off = set()
        for switch, backend in SWITCHES.items():
            if (value := self.environ.get(switch)) is not None:
                evidence.append(f"{switch}={value}")
                if value == "0":
                    off.add(backend)
        failures = self._unloadable()
        evidence += failures
        fused = "fused" not in off and not failures
        if "flash" not in off and self.installed("flash_attn"):
            evidence.append(f"flash-attn {self.version('flash-attn') or '(no version)'}")
            # On Hopper and later cuDNN comes first where it supports the call.
            if not fused or (capability is not None and capability < (9, 0)):
                return TeAttention("flash", "the flash-attn package is installed", tuple(evidence))
        if fused:
            return TeAttention("fused", "cuDNN's sub-libraries can be loaded", tuple(evidence))
        if "fused" in off:
            return TeAttention(
                "unfused",
                "NVTE_FUSED_ATTN=0 turns cuDNN's attention off, and flash-attn cannot be used",
                tuple(evidence),
                "unset NVTE_FUSED_ATTN",
            )
        return TeAttention(
            "unfused",
            f"{len(failures)} of cuDNN's sub-libraries cannot be loaded by name, and Transformer "
            "Engine does not report it",
            tuple(evidence),
            self._remedy(),
        )

    def _unloadable(self) -> list[str]:
        """One line for each sub-library that the loader does not find by its name."""
        lines = []
        for name in SUB_LIBRARIES:
            try:
                self.load(name)
            except OSError as error:
                lines.append(f"{name}: {error}")
        return lines

    def _remedy(self) -> str:
        directory = self.library_directory or Path("SITE-PACKAGES/nvidia/cudnn/lib")
        names = " ".join(str(directory / name) for name in SUB_LIBRARIES)
        return (
            f"export LD_LIBRARY_PATH={directory}:$LD_LIBRARY_PATH (and, if that is not enough, "
            f'LD_PRELOAD="{names}"); --attention-backend fused then stops instead of falling back'
        )


_SUBJECT: Final = "NVIDIA libraries"
#: Libraries that a build of torch for one CUDA brings, and a build for another overwrites.
_SHARED: Final = ("nccl", "cudnn", "nvshmem", "cusparselt", "cufile")


#: Of these, the files that the loader finds by name.
_LOADED: Final = {"nccl": "libnccl.so.2", "cudnn": "libcudnn.so.9"}


def _selected(machine: Machine) -> bool:
    """Whether a training would run on NVIDIA GPUs."""
    return machine.backend is not None and machine.backend.name == "cuda"


def _libraries(machine: Machine) -> Iterator[Finding]:
    """NCCL, cuDNN and their likes: torch's own, unless something is found before them."""
    build = installed_torch(machine.spec)
    if build is None or build.cuda is None or not _selected(machine):
        return
    major = build.cuda.split(".")[0]
    installed = {name: version for name, version, _ in machine.distributions()}
    for name in _SHARED:
        versions = {one: installed.get(f"nvidia-{name}-cu{one}") for one in ("11", "12", "13")}
        there = {one: version for one, version in versions.items() if version}
        if len(there) > 1 and major in there:
            listed = ", ".join(f"nvidia-{name}-cu{one} {there[one]}" for one in there)
            yield warning(
                f"{name} is installed for several CUDAs, and they overwrite one another's files",
                listed,
                f"torch {build.version} wants nvidia-{name}-cu{major}",
                next="pip uninstall "
                + " ".join(f"nvidia-{name}-cu{one}" for one in there if one != major)
                + f"; pip install --force-reinstall --no-deps nvidia-{name}-cu{major}"
                f"=={there[major]}",
            )
    for directory in filter(None, machine.environ.get("LD_LIBRARY_PATH", "").split(":")):
        for name, file in _LOADED.items():
            own = installed.get(f"nvidia-{name}-cu{major}")  # a build without uses the system's
            found = own is not None and machine.at(f"{directory}/{file}").exists()
            if found and "-packages/nvidia" not in directory:
                yield warning(
                    f"{file} of LD_LIBRARY_PATH takes the place of the one that torch brings along",
                    f"{directory}/{file}; torch {build.version} brings nvidia-{name}-cu{major} "
                    f"{own}",
                    next=f"take {directory} out of LD_LIBRARY_PATH, unless it is meant",
                )
    toolkit = machine.environ.get("CUDA_HOME", "")
    version = machine.text(f"{toolkit}/version.json") if toolkit else ""
    if version:
        try:
            release = str(json.loads(version)["cuda"]["version"])
        except (ValueError, KeyError, TypeError):
            return
        if release.split(".")[0] != major:
            yield warning(
                f"CUDA_HOME holds CUDA {release}, and torch is built for {build.cuda}: extensions "
                "cannot be compiled ('The detected CUDA version mismatches')",
                f"CUDA_HOME={toolkit}",
                next=f"export CUDA_HOME=THE DIRECTORY OF CUDA {build.cuda}, or unset it",
            )


def _compiler(machine: Machine) -> Iterator[Finding]:
    """Triton compiles a small C program for each kernel that it starts."""
    if not _selected(machine) or machine.spec("triton") is None:
        return
    given = machine.environ.get("CC")
    names = [given] if given else ["cc", "gcc", "clang"]
    if not any(machine.program(name) for name in names):
        yield fails(
            "there is no C compiler, which Triton needs to start its kernels: 'Failed to find C "
            "compiler'",
            f"looked for {', '.join(names)}",
            next="sudo apt-get install gcc, or export CC=YOUR COMPILER",
        )
    directory = sysconfig.get_path("include")
    if not machine.at(f"{directory}/Python.h").exists():
        yield fails(
            "this Python's headers are missing, which Triton needs to start its kernels",
            f"no {directory}/Python.h",
            next="sudo apt-get install python3-dev   (of this Python's version)",
        )


_LOAD: Final = """
import ctypes, json, sys
problems = {}
for name in sys.argv[1:]:
    try:
        ctypes.CDLL(name)
    except OSError as error:
        problems[name] = str(error)
print(json.dumps(problems))
"""


def _fused_attention(machine: Machine) -> Iterator[Finding]:
    library = LIBRARIES["transformer_engine"]
    [te] = decide(LibraryChoice(), (), "", libraries=[library], find=machine.spec)
    if not _selected(machine) or te.origin is not Origin.REAL:
        return  # the bridge's kernels compute attention
    status, printed = machine.python("-c", _LOAD, *SUB_LIBRARIES, seconds=20)
    try:
        problems: dict[str, str] = json.loads(printed.strip().splitlines()[-1])
    except (ValueError, IndexError):
        problems = dict.fromkeys(SUB_LIBRARIES, f"loading it ended with status {status}")

    def load(name: str) -> None:
        if name in problems:
            raise OSError(problems[name])

    nvidia = machine.directory("nvidia")
    directory = nvidia / "cudnn/lib" if nvidia is not None else None
    gpus = ask_smi(machine).gpus
    found = TeAttentionSearch(
        machine.environ,
        installed=lambda name: machine.spec(name) is not None,
        version=machine.version,
        load=load,
        library_directory=directory if directory is not None and directory.is_dir() else None,
    ).run(gpus[0].capability if gpus else None)
    if found.backend == "unfused":
        yield warning(
            "Transformer Engine would compute attention unfused, without a word: about twice the "
            f"time and five times the memory; {found.why}",
            *found.evidence,
            next=found.remedy or "pip install nvidia-cudnn-cu12",
        )
    elif found.backend is not None:
        yield ok(f"Transformer Engine's attention is {found.backend}: {found.why}")


def _transformer_engine(machine: Machine) -> Iterator[Finding]:
    """Its three packages must be of one version; wheels name the torch and CUDA they are for."""
    build = installed_torch(machine.spec)
    installed = {name: version for name, version, _ in machine.distributions()}
    parts = {
        name: version.partition("+")[0]
        for name, version in installed.items()
        if re.fullmatch(r"transformer-engine(-torch|-cu\d+)?", name)
    }
    if len(set(parts.values())) > 1:
        version = installed.get("transformer-engine", max(parts.values()))
        yield fails(
            "Transformer Engine's packages are of several versions, and it refuses to be imported",
            ", ".join(f"{name} {version}" for name, version in sorted(parts.items())),
            next=f'pip install --force-reinstall --no-build-isolation "transformer-engine[pytorch]'
            f'=={version}"',
        )
    if build is None or build.cuda is None:
        return
    major = build.cuda.split(".")[0]
    cores = [name for name in parts if name.startswith("transformer-engine-cu")]
    if cores and f"transformer-engine-cu{major}" not in cores:
        yield warning(
            f"Transformer Engine is for another CUDA than torch: {', '.join(cores)}",
            f"torch {build.version} is built for CUDA {build.cuda}",
            next=f"pip uninstall {' '.join(cores)}; pip install --no-build-isolation "
            f'"transformer-engine[pytorch,core_cu{major}]"',
        )
    for name in ("flash-attn", "flash-attn-3", "mamba-ssm", "causal-conv1d", "grouped-gemm"):
        local = installed.get(name, "").partition("+")[2]
        made = re.search(r"torch(\d+\.\d+)", local)
        if made and not build.release.startswith(f"{made[1]}."):
            yield fails(
                f"{name} is compiled for torch {made[1]}, and torch {build.release} is installed: "
                "'undefined symbol'",
                f"{name} {installed[name]}; torch {build.version}",
                next=f"pip install --force-reinstall --no-deps --no-build-isolation {name}",
            )


CHECKS: Final = (
    Check(
        "cuda-libraries",
        _SUBJECT,
        "NCCL or cuDNN installed for two CUDAs, or taken from LD_LIBRARY_PATH; a CUDA_HOME of "
        "another CUDA",
        _libraries,
    ),
    Check(
        "cuda-compiler",
        _SUBJECT,
        "no C compiler or no Python headers, without which Triton starts no kernel",
        _compiler,
    ),
    Check(
        "fused-attention",
        _SUBJECT,
        "cuDNN sub-libraries or switches that make Transformer Engine compute attention unfused",
        _fused_attention,
        seconds=45,
    ),
    Check(
        "transformer-engine",
        _SUBJECT,
        "Transformer Engine's parts of several versions or another CUDA; flash-attn and others for "
        "another torch",
        _transformer_engine,
    ),
)
