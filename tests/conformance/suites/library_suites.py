"""Where the tests of each library with a shim are, and what they need: ``[suite]`` of its list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import tomllib
from suite_outcomes import matches

#: A file for each library.
LISTS: Final = Path(__file__).with_name("reasons")


@dataclass(frozen=True, slots=True)
class Suite:
    """Where a library's tests are.

    :param directory: of the tests, in the source tree.
    :param shims: value of ``ACCEL_BRIDGE_LIBRARIES``: the libraries that must be shims.
    :param source: where the tree comes from.
    :param environ: further variables for the tests; ``{scratch}`` is a directory of the file's run.
    :param pattern: of the names of test files.
    :param files: patterns of those that are run when none are named.
    :param inside: the tests stand in the library's package, which they must not import: a copy of
        the file is run.
    :param bridge: whether the bridge is active; without it, what the machine has is tested.
    :param together: that many files in one process, where starting one takes long.
    :param imports: directories of the tree that the tests import from.
    :param options: further ones of pytest.
    :param preload: modules that processes of the tests find imported (library_tests_processes.py).
    :param of: pattern of files -> what they need beside:
        ``environ``, variables, as the library's own runner sets them;
        ``before``, the arguments with which it is run as a script before its tests;
        ``absent``, module -> names that its shim refuses: so that the file's other tests run, each
        stands for a function that raises;
        ``borrowed``, module -> names that the tests take from the real library, of the tree's file
        of that module, or of ``package/file``: references that a shim does not have;
        ``given``, module -> name -> value that the tests ask for; ``@torch.cuda`` is that module.
    """

    directory: str
    shims: str
    source: str
    environ: Mapping[str, str] = field(default_factory=dict)
    pattern: str = "test_*.py"
    files: tuple[str, ...] = ("*",)
    inside: bool = False
    bridge: bool = True
    together: int = 1
    imports: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    of: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def needs(self, file: str, kind: str) -> dict[str, Any]:
        """What a file needs of one kind, but ``before``, of all patterns that name it."""
        tables = (table.get(kind, {}) for name, table in self.of.items() if matches(name, file))
        return {name: value for table in tables for name, value in table.items()}

    def before(self, file: str) -> list[str]:
        """The arguments of a script; empty where the file is none."""
        return list(self.of.get(file, {}).get("before", ()))


SUITES: Final = {
    path.stem: Suite(**tomllib.loads(path.read_text(encoding="utf-8"))["suite"])
    for path in sorted(LISTS.glob("*.toml"))
}
