"""Which Megatron an import would find, without importing it: installed, checked out, editable."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Final

from packaging.version import InvalidVersion, Version

from accel_bridge.patches._factory import DISTRIBUTION, REFERENCE
from accel_bridge.process import log

#: Where Megatron spells its version, and how; forks keep one of them.
_PLACES: Final = ("core/package_info.py", "core/__init__.py", "core/version.py")


@dataclass(frozen=True, slots=True)
class Megatron:
    """A directory ``megatron`` with a ``core``.

    :param version: None where it says none that could be compared with others.
    """

    directory: Path
    version: str | None


#: Where a top-level module would come from.
Find = Callable[[str], ModuleSpec | None]


def megatrons(find: Find = importlib.util.find_spec) -> list[Megatron]:
    """All that are on ``sys.path``, the one that an import takes first."""
    directories = dict.fromkeys(portions(find))
    return [
        Megatron(directory, version_in(directory))
        for directory in directories
        if (directory / "core").is_dir() and any((directory / "core").glob("*.py"))
    ]


def megatron_version() -> str | None:
    """Version of the ``megatron.core`` that an import would find; None when there is none.

    A checkout on ``sys.path`` shadows the installed distribution, so the version is read from
    the sources that will be imported, not from distribution metadata. A fork that says none is
    taken for the version that the patches were written for: each patch is verified anyway.
    """
    found = megatrons()
    if not found:
        return None
    if found[0].version is None:
        log.warn_once(
            f"the Megatron at {found[0].directory} says no version: it is taken for {REFERENCE}, "
            "and each patch is verified when it is applied (`accel-bridge patches`)"
        )
        return REFERENCE
    return found[0].version


def tell_of_several() -> None:
    """Say which of several Megatrons is used, and warn when parts of two would be mixed."""
    found = megatrons()
    if not found:
        return
    used, *others = found
    training = next((one for one in portions() if (one / "training").is_dir()), used.directory)
    # What brings megatron.training alone has a version that nobody can compare.
    owner = next((one for one in others if one.directory == training), None)
    if owner is not None and owner.version != used.version:
        log.warn_once(
            f"two Megatrons are mixed: megatron.core {used.version} from {used.directory}, "
            f"megatron.training of {owner.version} from {owner.directory}; put the directory that "
            "holds the Megatron you want first in PYTHONPATH, or uninstall the other "
            f"(pip uninstall {DISTRIBUTION})"
        )
    others = [one for one in others if one.version != used.version and one is not owner]
    if others:
        rest = ", ".join(f"{one.version} at {one.directory}" for one in others)
        log.say(f"megatron {used.version} at {used.directory} is used, and not {rest}")


def portions(find: Find = importlib.util.find_spec) -> list[Path]:
    """The directories of the namespace package ``megatron``, in the order of imports."""
    spec = find("megatron")
    if spec is None or spec.submodule_search_locations is None:
        return []
    directories = [Path(location) for location in spec.submodule_search_locations]
    if not any((directory / "core").is_dir() for directory in directories):
        # An editable installation has a finder of its own and no directory here.
        core = _editable("megatron.core")
        directories += [core.parent] if core is not None else []
    return directories


def _editable(name: str) -> Path | None:
    """Directory of a package that only a finder knows; its parent is imported, it is not."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def version_in(directory: Path) -> str | None:
    """The version that a directory ``megatron`` spells, in a form that can be compared."""
    for place in _PLACES:
        file = directory / place
        if file.is_file():
            spelled = _spelled(file.read_text(encoding="utf-8", errors="replace"))
            if spelled is not None:
                return spelled
    return None


def _spelled(source: str) -> str | None:
    """From the constants MAJOR, MINOR, PATCH and PRE_RELEASE, or from ``__version__``.

    Source: megatron/core/package_info.py, where ``__version__`` is built from them.
    """
    constants: dict[str, object] = {}
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return None
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                constants[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue  # a computed constant such as __version__ itself
    try:
        numbers = ".".join(str(constants[key]) for key in ("MAJOR", "MINOR", "PATCH"))
        return _comparable(numbers + str(constants.get("PRE_RELEASE", "")))
    except KeyError:
        return _comparable(str(constants.get("__version__", "")))


def _comparable(text: str) -> str | None:
    """The text if it is a version, else the number that it begins with (``0.12.1-ours``)."""
    try:
        return text if Version(text) else None
    except InvalidVersion:
        number = re.match(r"v?(\d+\.\d+(?:\.\d+)?)", text)
        return number[1] if number else None
