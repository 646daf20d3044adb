"""Checks of the Megatron that an import would find."""

from __future__ import annotations

import importlib.machinery
import os
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from accel_bridge.patches._factory import DISTRIBUTION, TESTED
from accel_bridge.patches._installed import megatrons, portions
from accel_bridge.plugins.checks import Check, Finding, Machine, fails, of_error, ok, warning
from accel_bridge.process import cache

_SUBJECT: Final = "Megatron"
_OLDEST: Final = Version("0.12")
#: The newest minor version that was tried.
_NEWEST: Final = Version("0.21")
_INSTALL: Final = f'pip install "{DISTRIBUTION}[training]{TESTED}"'


def _megatron(machine: Machine) -> Iterator[Finding]:
    found = megatrons(machine.spec)
    if not found:
        yield fails(
            "Megatron is not installed",
            "no directory megatron/core in site-packages or PYTHONPATH",
            next=f"{_INSTALL}, or put a checkout of Megatron-LM in PYTHONPATH",
        )
        return
    used = found[0]
    version = Version(used.version) if used.version else None
    if version is not None and version < _OLDEST:
        yield fails(
            f"Megatron {version} is older than any that the bridge was made for",
            f"{used.directory}: {version}; the oldest is {_OLDEST}",
            next=_INSTALL,
        )
    elif version is not None and version >= _NEWEST:
        yield warning(
            f"Megatron {version} is newer than any that the bridge was tried with",
            f"{used.directory}: {version}",
            next=f"accel-bridge patches   (it verifies each), or {_INSTALL}",
        )
    training = any((directory / "training").is_dir() for directory in portions(machine.spec))
    if not training:
        says = warning if machine.run is None else fails
        if machine.run is not None or version is None:
            yield says(
                "this Megatron has no megatron.training, which its scripts import",
                f"{used.directory} holds megatron.core alone",
                next=f"{_INSTALL}, or put a checkout of Megatron-LM first in PYTHONPATH",
            )
        else:
            yield ok(f"megatron.core {version} alone is installed; scripts need megatron.training")


#: As a training imports it: with the bridge active.
_IMPORT: Final = "import accel_bridge; accel_bridge.activate(); import megatron.training"


def _imports(machine: Machine) -> Iterator[Finding]:
    """Its packages: the wheel does not bring all that ``megatron.training`` imports."""
    training = any((directory / "training").is_dir() for directory in portions(machine.spec))
    if not training or machine.spec("torch") is None or machine.backend is None:
        return
    quiet = replace(machine, environ={**machine.environ, "ACCEL_BRIDGE_LOG": "quiet"})
    status, printed = quiet.python("-c", _IMPORT, seconds=machine.patience(90))
    lines = printed.strip().splitlines() or ["no message"]
    if status == 0:
        yield ok("`import megatron.training` works")
    elif status is None and os.getloadavg()[0] > (os.cpu_count() or 1):
        yield ok("this machine is too busy to import megatron.training in time", lines[-1])
    elif status is None:
        yield warning(
            "`import megatron.training` takes long",
            lines[-1],
            next="`accel-bridge doctor --only megatron-import --wait 600` waits longer",
        )
    else:
        errors = [one for one in lines if re.match(r"[\w.]+Error: ", one)]
        yield from broken((errors or lines)[-1])


def broken(line: str) -> Iterator[Finding]:
    """What an error of ``import megatron.training`` means; nothing where Megatron is not to blame.

    The checks of imports and of the backend explain those.
    """
    if not line or "PyTorch is installed and cannot be imported" in line or "PluginError" in line:
        return
    if (explained := cache.explain(OSError(line))) is not None:
        yield of_error(explained)
        return
    module = re.search(r"No module named '(\w+)", line)
    package = _DISTRIBUTIONS.get(module[1], module[1]) if module else None
    yield fails(
        "`import megatron.training` fails"
        + (f": the package {package} is missing" if package else ""),
        line,
        next=f"pip install {package}"
        if package
        else f"see what the error names; pip install --force-reinstall --no-deps {DISTRIBUTION}",
    )


#: Module -> the distribution that brings it, where their names differ.
_DISTRIBUTIONS: Final = {
    "flask_restful": "flask-restful",
    "yaml": "pyyaml",
    "multistorageclient": "multi-storage-client",
    "nvidia_resiliency_ext": "nvidia-resiliency-ext",
}


def _several(machine: Machine) -> Iterator[Finding]:
    found = megatrons(machine.spec)
    if len(found) < 2:
        return
    used, *others = found
    training = next(
        (one for one in portions(machine.spec) if (one / "training").is_dir()), used.directory
    )
    evidence = [f"{one.version or 'no version'}: {one.directory}" for one in found]
    owner = next((one for one in others if one.directory == training), None)
    if owner is not None and owner.version != used.version:
        yield fails(
            f"two Megatrons are mixed: megatron.core {used.version} and megatron.training of "
            f"{owner.version}",
            *evidence,
            next=f"pip uninstall {DISTRIBUTION}, or put the directory of the one you want first in "
            "PYTHONPATH",
        )
    elif any(one.version != used.version for one in others):
        yield warning(
            f"several Megatrons are on the path: {used.version} is used",
            *evidence,
            next=f"pip uninstall {DISTRIBUTION}, or take the other out of PYTHONPATH",
        )


def _helpers(machine: Machine) -> Iterator[Finding]:
    """The compiled part of data sets: there for this Python, or can be compiled."""
    found = megatrons(machine.spec)
    if not found:
        return
    directory = found[0].directory / "core/datasets"
    there = sorted(path.name for path in directory.glob("helpers_cpp*.so"))
    if any(f"helpers_cpp{suffix}" in there for suffix in importlib.machinery.EXTENSION_SUFFIXES):
        return
    evidence = [f"{directory} has {', '.join(there) or 'no helpers_cpp'}"]
    if not (directory / "Makefile").is_file():
        yield fails(
            "Megatron's dataset helpers are not compiled for this Python, and its Makefile is not "
            "there",
            *evidence,
            next=f"pip install --force-reinstall --no-deps {DISTRIBUTION}   (its wheel holds them)",
        )
        return
    missing = [name for name in ("make", "g++") if machine.program(name) is None]
    if not machine.at(f"{sysconfig.get_path('include')}/Python.h").exists():
        missing.append("Python.h")
    torch = machine.directory("torch")
    if torch is None or not (torch / "include/pybind11").is_dir():
        missing.append("pybind11's headers")
    if missing:
        yield fails(
            "Megatron's dataset helpers must be compiled, and cannot be: "
            f"{', '.join(missing)} missing",
            *evidence,
            next="sudo apt-get install make g++ python3-dev   (pybind11 comes with torch)",
        )
    elif not machine.access(directory, os.W_OK):
        yield fails(
            "Megatron's dataset helpers must be compiled, and their directory cannot be written",
            *evidence,
            next=f"let somebody who may run: make -C {directory}",
        )
    else:
        yield ok("Megatron's dataset helpers are compiled when a training starts", *evidence)


def _extras(machine: Machine) -> Iterator[Finding]:
    """Libraries that are installed, against the versions that Megatron's metadata name."""
    requires: list[str] = []
    for name, _, distribution in machine.distributions():
        if name == DISTRIBUTION:
            requires = distribution.requires or []
            break
    installed = {name: version for name, version, _ in machine.distributions()}
    for text in requires:
        try:
            requirement = Requirement(text)
            if requirement.marker is None or "extra" not in str(requirement.marker):
                continue  # the check of requirements looks at these
            name = requirement.name.lower().replace("_", "-")
            found = Version(installed[name])
        except (InvalidRequirement, InvalidVersion, KeyError):
            continue
        if name in _LIBRARIES and not requirement.specifier.contains(found, prereleases=True):
            yield warning(
                f"{name} {found} is not what this Megatron was made for",
                f"{DISTRIBUTION} {installed[DISTRIBUTION]}: {text.partition(';')[0].strip()}",
                next=f'pip install "{name}{requirement.specifier}"   (or another Megatron)',
            )


#: Libraries of Megatron's extras that a training computes with; the others are tools.
_LIBRARIES: Final = frozenset(
    {
        *("transformer-engine", "flash-attn", "mamba-ssm", "causal-conv1d", "grouped-gemm"),
        *("nvidia-resiliency-ext", "flash-linear-attention", "tensorstore", "einops"),
    }
)


def _flash_attention(machine: Machine) -> Iterator[Finding]:
    """Transformer Engine names the versions of flash-attn that it takes, and passes over others."""
    directory, version = machine.directory("transformer_engine"), machine.version("flash-attn")
    if directory is None or version is None:
        return
    place = directory / "pytorch/attention/dot_product_attention/utils.py"
    try:
        text = place.read_text(encoding="utf-8", errors="replace")
        found = Version(version.partition("+")[0])
    except (OSError, InvalidVersion):
        return
    bounds = {
        bound: Version(number)
        for bound, number in re.findall(
            r"^    (version_required|max_version) = PkgVersion\(\"([\d.]+)\"\)", text, re.M
        )
    }
    low, high = bounds.get("version_required"), bounds.get("max_version")
    if (low and found < low) or (high and found > high):
        yield warning(
            f"Transformer Engine passes flash-attn {found} over",
            f"it takes {low} to {high}",
            next=f'pip install --no-build-isolation "flash-attn>={low},<={high}"',
        )


CHECKS: Final = (
    Check(
        "megatron",
        _SUBJECT,
        "no Megatron, one older than 0.12 or newer than was tried, or without megatron.training",
        _megatron,
    ),
    Check(
        "megatron-import",
        _SUBJECT,
        "packages missing that megatron.training imports, or another reason why it cannot be "
        "imported",
        _imports,
        seconds=120,
    ),
    Check(
        "megatrons",
        _SUBJECT,
        "two Megatrons on the path, or parts of two that would be mixed",
        _several,
    ),
    Check(
        "dataset-helpers",
        _SUBJECT,
        "dataset helpers that are not compiled for this Python, and cannot be",
        _helpers,
    ),
    Check(
        "megatron-libraries",
        _SUBJECT,
        "Transformer Engine, flash-attn, Mamba and others of versions that this Megatron was not "
        "made for",
        _extras,
    ),
    Check(
        "flash-attention",
        _SUBJECT,
        "a flash-attn that Transformer Engine passes over",
        _flash_attention,
    ),
)
