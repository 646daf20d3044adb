"""docs/libraries.md: what shims serve of what others ask for.

A name counts as served when it could really be imported, on the CPU, in a process of its own. Why
one is not is in tools/libraries/absent.toml:

    [[absent]]
    names = "transformer_engine.pytorch.ep.*"   # * stands for anything
    why = "it needs NVSHMEM"
    imports = true      # only where the name exists and its use is refused
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Final

DIRECTORY: Final = Path(__file__).resolve().parent / "libraries"

_INTRODUCTION: Final = """\
# Library shims

Compiled libraries that have a shim, and what the shim does not serve of the names that Megatron
0.12 to main and the frameworks above it ask for. Every other one can be imported. *absent* raises
an `ImportError`, as a library without the name would; *refused* exists, and its use is an error in
three parts. `accel-bridge libraries` shows what is real, shimmed or absent on your machine, and
`ACCEL_BRIDGE_LIBRARIES` chooses.
[How to add one](extend-library.md).

Transformer Engine has no shim: NVIDIA's own Python, which accel_bridge's installation brings
without its compiled part, runs unmodified on accel_bridge's extension
([what it serves](#transformer-engines-extension)). A compiled Transformer Engine that works is used
as it is; where there is none at all, Megatron's local spec is chosen.

On CUDA, mamba_ssm without its compiled part is used as it is: Mamba-2's kernels are in Triton, and
shims serve what they need below them. Without a compiler it is installed by:

<!-- not run: for CUDA -->
```bash
MAMBA_FORCE_BUILD=TRUE MAMBA_SKIP_CUDA_BUILD=TRUE \\
    pip install --no-deps --no-build-isolation mamba-ssm && pip install einops transformers
```

"""


@dataclass(frozen=True, slots=True)
class Absence:
    """Why names are not served.

    :param imports: they exist, and say what is wrong when they are used.
    """

    names: str
    why: str
    imports: bool = False

    def covers(self, name: str) -> bool:
        """Whether it speaks of ``name``."""
        return fnmatchcase(name, self.names)


def absences() -> list[Absence]:
    """The reviewed reasons."""
    import tomllib

    text = (DIRECTORY / "absent.toml").read_text(encoding="utf-8")
    return [Absence(**entry) for entry in tomllib.loads(text)["absent"]]


def asked() -> dict[str, list[str]]:
    """Name -> who asks for it, of the libraries that have a shim."""
    from accel_bridge.libraries import LIBRARIES

    roots = {root for library in LIBRARIES.values() for root in library.roots}
    names: dict[str, list[str]] = json.loads((DIRECTORY / "names.json").read_text(encoding="utf-8"))
    return {name: who for name, who in names.items() if name.partition(".")[0] in roots}


def gates() -> list[dict[str, Any]]:
    """Every gate of a library that has a shim."""
    from accel_bridge.libraries import LIBRARIES

    rows: list[dict[str, Any]] = json.loads((DIRECTORY / "gates.json").read_text("utf-8"))["gates"]
    return [row for row in rows if row["library"] in LIBRARIES]


@cache
def missing() -> Mapping[str, str]:
    """Of all names and arguments that are asked for, those that are not there -> the error.

    An argument is written ``class(argument)``.
    """
    environ = {
        **os.environ,
        "ACCEL_BRIDGE_BACKEND": "cpu",
        "ACCEL_BRIDGE_LIBRARIES": "all",
        "ACCEL_BRIDGE_LOG": "quiet",
    }
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps([*asked(), *arguments(gates())]),
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the shims could not be looked at: {done.stderr[-3000:]}")
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def arguments(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """``class(argument)`` for each that a gate adds."""
    return [
        f"{cls}({keyword})"
        for row in rows
        for cls in row.get("classes", ())
        for keyword in row.get("keywords", ())
    ]


def state_of(name: str, lacking: Mapping[str, str], reasons: Sequence[Absence]) -> tuple[str, str]:
    """``served``, ``absent`` or ``refused``, and why.

    A reason speaks of names that cannot be imported, unless it says ``imports``: a wildcard that
    happens to cover a name that is there says nothing about it.
    """
    is_absent = name in lacking
    reason = next((one for one in reasons if one.covers(name) and one.imports != is_absent), None)
    if is_absent:
        return "absent", reason.why if reason else "**not reviewed**"
    return ("refused", reason.why) if reason else ("served", "")


def page() -> str:
    """The whole page."""
    from charts import table

    from accel_bridge.libraries import LIBRARIES
    from accel_bridge.libraries.transformer_engine_torch import releases

    names, lacking, reasons = asked(), missing(), absences()
    summary: list[tuple[str, ...]] = []
    rows: dict[tuple[str, str, str], list[str]] = {}
    for library in LIBRARIES.values():
        mine = [name for name in names if name.partition(".")[0] in library.roots]
        states = {name: state_of(name, lacking, reasons) for name in mine}
        served = sum(state != "absent" for state, _ in states.values())
        counted = f"{served} of {len(mine)}" if mine else "none asked for"
        version = library.version or f"its own Python, {releases.SERVED}"
        summary.append((f"`{library.name}`", version, f"`{library.distribution}`", counted))
        for name, (state, why) in states.items():
            if state != "served":
                rows.setdefault((library.name, state, why), []).append(name)
    parts = [_INTRODUCTION]
    parts.append(table(("library", "version claimed", "package", "names served"), summary))
    parts.append("\n## Absent and refused\n\n")
    lines = [(", ".join(f"`{n}`" for n in _short(found)), *key[1:]) for key, found in rows.items()]
    parts.append(table(("name", "state", "why"), lines))
    return "".join(parts)


def _short(names: Sequence[str]) -> list[str]:
    """Names that share a parent and a reason, as the parent and a count where they are many."""
    if len(names) <= 3:
        return list(names)
    parent = os.path.commonpath([name.replace(".", "/") for name in names]).replace("/", ".")
    return [f"{parent}.* ({len(names)} names)"]


def look(name: str) -> str:
    """Why a name, or a ``class(argument)``, is not there; empty when it is."""
    path, _, argument = name.rstrip(")").partition("(")
    words = path.split(".")
    found: Any = None
    for at, word in enumerate(words, 1):
        # As `from a.b import c`: a module before an attribute of the same name.
        try:
            found = importlib.import_module(".".join(words[:at]))
        except ImportError as error:
            inside = _look_inside(found, words[at - 1 :], argument)
            return str(error).splitlines()[0] if inside == word else inside
    return ""


def _look_inside(found: Any, words: Sequence[str], argument: str) -> str:
    """The first attribute that is not there, or that it does not take an argument."""
    for word in words:
        try:
            found = getattr(found, word)
        except AttributeError:
            return word
        except ModuleNotFoundError as error:
            # What is there and needs a package that is not installed here is served.
            return "" if error.name else word
    if argument and argument not in inspect.signature(found).parameters:
        return f"{words[-1]} has no argument {argument}"
    return ""


def main() -> int:
    """Of the names on stdin (JSON), those that are not there -> why, on stdout."""
    import accel_bridge.auto  # noqa: F401

    found = {name: look(name) for name in json.load(sys.stdin)}
    print(json.dumps({name: why for name, why in found.items() if why}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
