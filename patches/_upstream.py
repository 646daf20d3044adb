"""Which Megatron is installed, found without importing it."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

#: Distribution name that ``requires`` of the patches refers to.
DISTRIBUTION = "megatron-core"

#: Megatron versions that an installation can take from the package index.
TESTED = ">=0.19,<0.20"

#: What a patch requires unless it says more: the oldest version that was looked at.
REQUIRES = f"{DISTRIBUTION}>=0.12"

#: Where upstream references point: the tag that the patches were written against.
SOURCE = "https://github.com/NVIDIA/Megatron-LM/blob/core_v0.19.0"

#: The version in the table of targets that upstream references are taken from.
REFERENCE = "0.19.2"


def megatron_version() -> str | None:
    """Version of the ``megatron.core`` that an import would find, or None.

    A checkout on ``sys.path`` shadows the installed distribution, so the version is read from
    the ``package_info.py`` that will be imported, not from distribution metadata.
    """
    for root in _package_roots():
        info = root / "core" / "package_info.py"
        if info.is_file():
            return _version_in(info)
    return None


def _package_roots() -> list[Path]:
    spec = importlib.util.find_spec("megatron")
    if spec is None or spec.submodule_search_locations is None:
        return []
    return [Path(location) for location in spec.submodule_search_locations]


def _version_in(package_info: Path) -> str:
    """Compose ``__version__`` from the MAJOR, MINOR, PATCH and PRE_RELEASE constants.

    Source: megatron/core/package_info.py, where ``__version__`` is built from them.
    """
    constants: dict[str, object] = {}
    for node in ast.parse(package_info.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                constants[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue  # a computed constant such as __version__ itself
    numbers = ".".join(str(constants[key]) for key in ("MAJOR", "MINOR", "PATCH"))
    return numbers + str(constants.get("PRE_RELEASE", ""))
