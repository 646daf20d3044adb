"""docs/libraries.md: what stand-ins serve of what others ask for, and the gates of their versions.

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
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from packaging.version import Version

FOLDER: Final = Path(__file__).resolve().parent / "libraries"

_INTRODUCTION: Final = """\
# The library stand-ins

Megatron and the frameworks above it import compiled libraries. Where one is not installed, or
cannot work on the selected device, accel_bridge puts a stand-in under its name, which computes with
the backend's kernels. `accel-bridge libraries` shows which is real, which is a stand-in and why;
`ACCEL_BRIDGE_LIBRARIES` chooses. This page is made by `make docs`: it lists each name that Megatron
0.12 to main and four clients ask for (*asked by*), and whether an import of it really works. What
is absent raises an ImportError, as a library without it would; what is refused says so when it is
used.
"""
_GATES: Final = """
## Gates

Megatron asks a library for its version and then takes for granted what that version brought. A
stand-in claims the newest version whose gates it can honour. Each row is one such place; those
above the claimed version stay closed.

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
        pattern = ".*".join(re.escape(part) for part in self.names.split("*"))
        return re.fullmatch(pattern, name) is not None


def absences() -> list[Absence]:
    """The reviewed reasons."""
    import tomllib

    text = (FOLDER / "absent.toml").read_text(encoding="utf-8")
    return [Absence(**entry) for entry in tomllib.loads(text)["absent"]]


def asked() -> dict[str, list[str]]:
    """Name -> who asks for it, of the libraries that have a stand-in."""
    from accel_bridge.libraries import LIBRARIES

    roots = {root for library in LIBRARIES.values() for root in library.roots}
    names: dict[str, list[str]] = json.loads((FOLDER / "names.json").read_text(encoding="utf-8"))
    return {name: who for name, who in names.items() if name.partition(".")[0] in roots}


def gates() -> list[dict[str, Any]]:
    """Every gate of a library that has a stand-in."""
    from accel_bridge.libraries import LIBRARIES

    rows: list[dict[str, Any]] = json.loads((FOLDER / "gates.json").read_text("utf-8"))["gates"]
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
        raise RuntimeError(f"the stand-ins could not be looked at: {done.stderr[-3000:]}")
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


def page() -> str:
    """The whole page."""
    from accel_bridge.libraries import LIBRARIES

    names, lacking, reasons = asked(), missing(), absences()
    parts = [_INTRODUCTION]
    for library in LIBRARIES.values():
        mine = [name for name in names if name.partition(".")[0] in library.roots]
        parts.append(f"\n## {library.name} {library.version}\n\n")
        served = sum(name not in lacking for name in mine)
        parts.append(f"`{library.distribution}`; {served} of {len(mine)} names are served.\n\n")
        rows = []
        for name in mine:
            reason = next((one for one in reasons if one.covers(name)), None)
            state = "absent" if name in lacking else "refused" if reason else "served"
            why = "" if state == "served" else reason.why if reason else "**not reviewed**"
            rows.append((f"`{name}`", who_asks(names[name]), state, why))
        parts.append(_table(("name", "asked by", "state", "why"), rows))
    parts.append(_GATES)
    gate_rows = []
    for row in gates():
        claimed = Version(LIBRARIES[row["library"]].version)
        state = "open" if Version(row["version"]) <= claimed else "closed"
        place = row["where"].removeprefix("megatron/")
        gate_rows.append((row["library"], row["version"], state, f"`{place}`", who_asks(row["in"])))
    parts.append(_table(("library", "version", "here", "place", "in"), gate_rows))
    return "".join(parts)


def who_asks(who: Sequence[str]) -> str:
    """Versions of Megatron as a range, then the clients."""
    every = [one for one in _megatrons() if one in who]
    others = [one for one in who if one not in every]
    span = [f"{every[0]} to {every[-1]}" if len(every) > 1 else every[0]] if every else []
    return ", ".join([*span, *others])


@cache
def _megatrons() -> tuple[str, ...]:
    names = json.loads((FOLDER / "names.json").read_text(encoding="utf-8"))
    found = {who for askers in names.values() for who in askers}
    numbered = sorted((one for one in found if one[:1].isdigit()), key=Version)
    return (*numbered, "main")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |\n" for cells in (head, *rows)]
    return lines[0] + "|---" * len(head) + "|\n" + "".join(lines[1:])


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
