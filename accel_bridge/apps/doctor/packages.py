"""Checks of installed packages: do they import, fit together, and stand there once."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution
from pathlib import Path
from typing import Final

from accel_bridge.apps._imports import AUTOLOAD, ImportResult, try_imports
from accel_bridge.device.backend import device_of, environment_of, features_of, kernels_of
from accel_bridge.errors import BridgeError
from accel_bridge.libraries import Origin, Resolution, decide
from accel_bridge.plugins.checks import Check, Finding, Machine, fails, of_error, ok, warning
from accel_bridge.plugins.manager import load_plugins
from accel_bridge.process import cache
from accel_bridge.process.environment import Settings
from accel_bridge.process.extras import hidden_by, hiding

_SUBJECT: Final = "Packages"
_TORCH: Final = "torch"

#: Seconds for all imports together.
_IMPORT_SECONDS: Final = 90.0
#: Seconds for torch alone, to learn where it stands.
_AGAIN: Final = 15.0

#: Errors of imports -> what they mean and what fixes them; {package} is the distribution.
_CAUSES: Final = (
    (
        r"undefined symbol",
        "it was compiled for another version of torch",
        "pip install --force-reinstall --no-deps --no-build-isolation --no-binary {package} "
        "{package}   (compiles it for this torch)",
    ),
    (
        r"libcuda\.so",
        "NVIDIA's driver library is not visible here",
        "start the container with its GPUs: docker run --gpus all ...",
    ),
    (
        r"lib(hccl|ascendcl|ascend_hal|acl_\w+|ge_runner|graph|atb)\.so",
        "CANN is not installed, or not on the loader's path",
        "source /usr/local/Ascend/ascend-toolkit/set_env.sh, or export " + AUTOLOAD + "=0",
    ),
    (
        r"Duplicated key",
        "torch is a CUDA build and torch_npu is installed beside it",
        "pip uninstall torch-npu, or install the CPU build of torch",
    ),
    (
        r"GLIBC(XX)?_|CXXABI_",
        "it was compiled for a newer system than this one",
        "unset LD_LIBRARY_PATH if it names an older libstdc++; otherwise install a wheel for this "
        "system, or use a newer container",
    ),
    (
        r"numpy\.(dtype size|core\.multiarray|ndarray size)|_ARRAY_API|compiled using NumPy 1",
        "it was compiled for another version of NumPy",
        "pip install --upgrade {package}, or pip install 'numpy<2'",
    ),
    (
        r"lib(cudnn|cublas|cudart|nccl|cusparse|nvrtc|cufft|nvshmem)\w*\.so",
        "a library of CUDA's is missing, or another one of its name is found first",
        "unset LD_LIBRARY_PATH, then pip install --force-reinstall {package}",
    ),
    (
        r"No module named '([\w.]+)'",
        "a package that it needs is missing",
        "pip install {missing}",
    ),
    (
        r"SyntaxError|IndentationError",
        "its files are damaged, or for another Python",
        "pip install --force-reinstall --no-deps {package}",
    ),
)


def explained(result: ImportResult, package: str) -> Finding:
    """A failed import, with what its error means."""
    if result.slow:
        return _slow(result)
    cause, fix = "", "pip install --force-reinstall --no-deps {package}"
    missing = ""
    if package == _TORCH and "undefined symbol" in result.detail:
        return fails(
            "`import torch` fails: a library of another version than it was built with is found "
            "first",
            result.detail,
            next="unset LD_LIBRARY_PATH LD_PRELOAD, then pip install --force-reinstall torch",
        )
    if (explained := cache.explain(OSError(result.detail))) is not None:
        return of_error(explained)
    for pattern, meaning, command in _CAUSES:
        if found := re.search(pattern, result.detail):
            cause, fix = f": {meaning}", command
            missing = found[1].partition(".")[0] if "named" in pattern else ""
            break
    return fails(
        f"`import {result.module}` fails{cause}",
        result.detail,
        next=fix.format(package=package, missing=missing),
    )


def _slow(result: ImportResult) -> Finding:
    """An import that did not end: it hangs, unless the machine has too much else to do."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    says = warning if load > cores else fails
    return says(
        f"`import {result.module}` hangs" if says is fails else f"`import {result.module}` is slow",
        result.detail,
        f"load of this machine: {load:.1f} on {cores} processors",
        next="look at where it stands: a network file system, a lock, a device that does not "
        "answer; `accel-bridge doctor --only imports --wait 600` waits longer",
    )


def resolutions(machine: Machine) -> list[Resolution]:
    """What imports of compiled libraries find, on the backend that a program would get."""
    backend = machine.backend
    try:
        settings = Settings.from_environ(machine.environ)
    except BridgeError:
        settings = Settings()
    hidden, title = (backend.hidden_modules, backend.title) if backend else ((), "this machine")
    return decide(settings.libraries, hidden, title, find=machine.spec)


def _script_directories(machine: Machine) -> list[Path]:
    """Where a script's imports look before they come to what is installed."""
    script = machine.run.script if machine.run is not None else None
    directories = [Path.cwd(), *([Path(script).parent] if script else [])]
    path = machine.environ.get("PYTHONPATH", "")
    return [*directories, *(Path(directory) for directory in path.split(os.pathsep) if directory)]


_FACTS: Final = """
import json, sys, warnings
warnings.simplefilter("ignore")
import torch
facts = {"version": torch.__version__, "distributed": torch.distributed.is_available()}
facts["gloo"] = facts["distributed"] and torch.distributed.is_gloo_available()
try:
    torch.zeros(1).numpy()
    facts["numpy"] = ""
except Exception as error:
    facts["numpy"] = f"{type(error).__name__}: {error}"
product = torch.ones(64, 64) @ torch.ones(64, 64)
facts["product"] = float(product.sum())
print(json.dumps(facts))
"""


def _torch(printed: str) -> Iterator[Finding]:
    """What torch says of itself, as :data:`_FACTS` prints it."""
    try:
        facts = json.loads(printed.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return
    if not facts["distributed"] or not facts["gloo"]:
        yield fails(
            "this build of torch has no torch.distributed with gloo, which Megatron always starts",
            f"torch {facts['version']}: distributed {facts['distributed']}, gloo {facts['gloo']}",
            next="pip install --force-reinstall torch   (Linux wheels have it)",
        )
    if facts["numpy"]:
        yield fails(
            "torch and numpy do not fit together, and every data set goes through both",
            f"torch.zeros(1).numpy(): {facts['numpy']}",
            next="pip install 'numpy<2' for a torch before 2.3, otherwise "
            "pip install --force-reinstall numpy",
        )


def _imports(machine: Machine) -> Iterator[Finding]:
    hides = sorted(hiding(_script_directories(machine)))
    for file in hides:
        name = hidden_by(file)
        yield fails(
            f"`import {name}` finds {file}, which is not the {name} that torch and Megatron want",
            "Python looks in the directory of the script, the current one and PYTHONPATH first",
            next=f"mv {file} {file.with_name(f'my_{file.name}')}",
        )
    if hides:
        return  # the imports would say what they make of it
    if machine.spec(_TORCH) is None:
        yield fails(
            "PyTorch is not installed",
            f"no module torch for {sys.executable}",
            next='pip install ".[megatron]"   (in your clone of accel_bridge)',
        )
        return
    seconds = machine.patience(_IMPORT_SECONDS)
    status, printed = machine.python("-c", _FACTS, seconds=seconds)
    if status != 0:
        # What came out is no explanation, and the import alone may work.
        [torch] = try_imports([_TORCH], min(seconds, _AGAIN), environ=machine.environ)
        if not torch.ok:
            # Whatever stands on torch would say the same once more.
            yield explained(torch, _TORCH)
            return
        if status is not None and status < 0:
            yield fails(
                f"PyTorch cannot multiply two matrices here: it is killed by signal {-status}",
                *(printed.strip().splitlines()[-2:] or ["it printed nothing"]),
                next="install a build of torch for this processor",
            )
    yield from _torch(printed)
    wanted = {"numpy": "numpy", "triton": "triton"}
    try:
        real = [one.library for one in resolutions(machine) if one.origin is Origin.REAL]
    except BridgeError as error:
        yield of_error(error)
        real = []
    wanted.update({library.name: library.distribution for library in real})
    modules = [name for name in wanted if machine.spec(name) is not None]
    for result in try_imports(modules, seconds, environ=machine.environ):
        yield (
            ok(f"`import {result.module}` works")
            if result.ok
            else explained(result, wanted[result.module])
        )


def _libraries(machine: Machine) -> Iterator[Finding]:
    for one in resolutions(machine):
        if one.warning is not None:
            yield warning(
                one.warning,
                one.why,
                next=f"pip install --force-reinstall --no-deps {one.library.distribution}",
            )
        elif one.origin is Origin.SHIM:
            yield ok(f"{one.library.name}: the bridge's shim is used, {one.why}")
    for name, version, distribution in machine.distributions():
        # On the package index "apex" is a toolkit for Pyramid, which many install by mistake.
        if name == "apex" and not _has(distribution, "apex/optimizers", "apex/normalization"):
            yield warning(
                "the installed apex is not NVIDIA's, but another project of that name",
                f"apex {version} has no apex/optimizers",
                next="pip uninstall apex   (the bridge has a shim; NVIDIA's is compiled from "
                "its repository)",
            )


def _has(distribution: Distribution, *parts: str) -> bool:
    files = [str(file) for file in distribution.files or ()]
    return not files or any(file.startswith(parts) for file in files)


def _plugins(machine: Machine) -> Iterator[Finding]:
    for failed in load_plugins().failed:
        yield warning(
            str(failed),
            next="`accel-bridge plugins`; ACCEL_BRIDGE_PLUGINS=-NAME leaves one out",
        )


def _backend(machine: Machine) -> Iterator[Finding]:
    """What a program asks of the chosen backend, when it starts or calls a kernel first."""
    if machine.backend is None or machine.spec(_TORCH) is None:
        return
    for ask in (environment_of, features_of, device_of, kernels_of):
        try:
            ask(machine.backend)
        except BridgeError as error:
            yield of_error(error)
            return
    yield ok(f"the parts of the backend {machine.backend.name} load")


CHECKS: Final = (
    Check(
        "backend",
        _SUBJECT,
        "a device or kernels of the chosen backend that cannot be loaded",
        _backend,
        seconds=120,
    ),
    Check(
        "imports",
        _SUBJECT,
        "torch, numpy, triton and compiled libraries that are installed and cannot be imported, "
        "or hang; a torch without gloo, at odds with numpy, or for another processor",
        _imports,
        seconds=200,
    ),
    Check(
        "libraries",
        _SUBJECT,
        "compiled libraries without their compiled part, shims in use, an apex that is not "
        "NVIDIA's",
        _libraries,
    ),
    Check("plugins", _SUBJECT, "plugins of accel_bridge that failed", _plugins),
)
