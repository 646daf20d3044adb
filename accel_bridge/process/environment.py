"""Environment variables: what one is, and the typed table of those that the layer itself reads.

Plugins declare theirs with the hook ``accel_bridge_variables``.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, Literal, TypeVar

from accel_bridge.errors import EnvironmentVariableError
from accel_bridge.process.log import LOG_VARIABLE

PREFIX: Final = "ACCEL_BRIDGE_"

LogLevel = Literal["quiet", "info", "debug"]

Value_co = TypeVar("Value_co", covariant=True)
Word = TypeVar("Word", bound=str)

_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class PluginChoice:
    """Value of ``ACCEL_BRIDGE_PLUGINS``.

    :param extra: plugin names or module paths that must be loaded.
    :param excluded: plugin names, module paths or distributions that must not be loaded.
    """

    extra: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Choice:
    """Names out of those that there are.

    :param only: the names to use; None means all of them.
    :param without: names to leave out.
    """

    #: Of the variable that holds it, behind the prefix; what a name is; and that there is none.
    VARIABLE: ClassVar[str]
    KIND: ClassVar[str]
    NONE: ClassVar[str]

    only: frozenset[str] | None = None
    without: frozenset[str] = frozenset()

    def excluded(self, name: str) -> str | None:
        """Why the user's choice leaves it out; None when it does not."""
        if name in self.without:
            return f"excluded by {PREFIX}{self.VARIABLE}=-{name}"
        if self.only is None or name in self.only:
            return None
        if not self.only:
            return f"excluded by {PREFIX}{self.VARIABLE}=none"
        return f"not among the {self.KIND} of {PREFIX}{self.VARIABLE}"

    def names(self, name: str) -> bool:
        """Whether the user asked for this very one, not for all."""
        return self.only is not None and name in self.only

    def unknown(self, known: Collection[str]) -> tuple[str, ...]:
        """One line for each name in the choice that there is not."""
        chosen = (self.only or frozenset()) | self.without
        return tuple(
            f"{PREFIX}{self.VARIABLE}: {self.NONE} {name!r}{did_you_mean(name, known)}"
            for name in sorted(chosen.difference(known))
        )


class PatchChoice(_Choice):
    """Value of ``ACCEL_BRIDGE_PATCHES``: ids of patches."""

    VARIABLE = "PATCHES"
    KIND = "ids"
    NONE = "no patch has the id"


class LibraryChoice(_Choice):
    """Value of ``ACCEL_BRIDGE_LIBRARIES``: of the libraries that may have a shim.

    One that the user names gets it even where the real library is.
    """

    VARIABLE = "LIBRARIES"
    KIND = "names"
    NONE = "there is no shim for"


@dataclass(frozen=True, slots=True)
class Variable(Generic[Value_co]):
    """One environment variable.

    :param name: its whole name; a plugin's should begin with ``ACCEL_BRIDGE_``, so that a
        misspelt one is noticed.
    :param default: the value that stands for "not set"; parsed like any other.
    :param values: what it may hold, for people.
    :param help: one sentence: what it does.
    :param parse: from text to value; raises ValueError with a sentence when it means nothing.
    """

    name: str
    default: str
    values: str
    help: str
    parse: Callable[[str], Value_co]

    def read(self, environ: Mapping[str, str] = os.environ) -> Value_co:
        """The parsed value; an empty variable counts as not set.

        :raises EnvironmentVariableError: the value means nothing.
        """
        text = environ.get(self.name, "").strip() or self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise EnvironmentVariableError(
                f"{self.name}={text!r} is not understood: {error}",
                evidence=f"{self.name} takes {self.values}; it {self.help}",
                next=f"unset {self.name}, or set it to one of its values "
                "(`accel-bridge env` prints the table)",
            ) from None


def _flag(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError(f"it takes {', '.join(_TRUE)} or {', '.join(_FALSE)}")


def one_of(*values: Word) -> Callable[[str], Word]:
    """The ``parse`` of a variable that holds one of ``values``, in capitals or not."""

    def parse(text: str) -> Word:
        for value in values:
            if value == text.lower():
                return value
        raise ValueError(f"it takes {', '.join(values)}{did_you_mean(text, values)}")

    return parse


def _split(text: str) -> tuple[list[str], list[str]]:
    """Comma list to (names, names that had a leading minus)."""
    argv = [word.strip() for word in text.split(",") if word.strip()]
    wanted = [word for word in argv if not word.startswith("-")]
    unwanted = [word[1:].strip() for word in argv if word.startswith("-")]
    if not all(unwanted):
        raise ValueError("a '-' stands alone; it must be followed by a name")
    if both := sorted(set(wanted) & set(unwanted)):
        raise ValueError(f"{both[0]!r} is both asked for and excluded")
    return wanted, unwanted


def _plugin_choice(text: str) -> PluginChoice:
    wanted, unwanted = _split(text)
    return PluginChoice(tuple(wanted), tuple(unwanted))


def _some(text: str) -> tuple[frozenset[str] | None, frozenset[str]]:
    """(the names that are wanted, None for all; the names that are not)."""
    wanted, unwanted = _split(text)
    argv = {"all", "none"} & set(wanted)
    if argv and len(wanted) > 1:
        raise ValueError(f"{argv.pop()!r} cannot stand beside other names; only '-NAME' may follow")
    if wanted == ["none"]:
        return frozenset(), frozenset()
    only = None if not wanted or wanted == ["all"] else frozenset(wanted)
    return only, frozenset(unwanted)


BACKEND: Final = Variable(
    f"{PREFIX}BACKEND",
    "",
    "the name of a backend (`accel-bridge backends` lists them)",
    "forces that backend: it is used, or the program stops; unset, the devices found decide",
    lambda text: text.lower() or None,
)
PLUGINS: Final = Variable(
    f"{PREFIX}PLUGINS",
    "",
    "a comma list of plugin names or module paths; '-NAME' excludes",
    "loads plugins beyond the installed ones, or leaves some out",
    _plugin_choice,
)
PATCHES: Final = Variable(
    f"{PREFIX}PATCHES",
    "all",
    "all, none, or a comma list of patch ids; '-ID' excludes",
    "chooses the patches (`accel-bridge patches` lists them)",
    lambda text: PatchChoice(*_some(text)),
)
LIBRARIES: Final = Variable(
    f"{PREFIX}LIBRARIES",
    "all",
    "all, none, or a comma list of libraries; '-NAME' excludes",
    "chooses which missing libraries get a shim (`accel-bridge libraries` lists them); a "
    "library named here gets one even where the real one is installed",
    lambda text: LibraryChoice(*_some(text)),
)
STRICT: Final = Variable(
    f"{PREFIX}STRICT",
    "0",
    "1 or 0",
    "stops at a patch that cannot be applied, where the default warns and goes on",
    _flag,
)
LOG: Final[Variable[LogLevel]] = Variable(
    LOG_VARIABLE,
    "info",
    "quiet, info or debug",
    "sets how much is said on stderr; debug adds tracebacks",
    one_of("quiet", "info", "debug"),
)
AUTO: Final = Variable(
    f"{PREFIX}AUTO",
    "0",
    "1 or 0",
    "activates the bridge in every Python of this environment that imports PyTorch or Megatron, "
    "as `accel-bridge run` does for one command",
    _flag,
)
PROGRESS: Final = Variable(
    f"{PREFIX}PROGRESS",
    "auto",
    "auto, 1 or 0",
    "shows a training run on a terminal as one line that moves, with all that is said in a log "
    "file; auto does so in `demo` and `pretrain`, 1 in `run` too",
    lambda text: None if text.lower() == "auto" else _flag(text),
)

#: The layer's own; `accel-bridge env` prints these and the plugins'.
VARIABLES: Final[tuple[Variable[Any], ...]] = (
    BACKEND,
    PLUGINS,
    PATCHES,
    LIBRARIES,
    STRICT,
    LOG,
    AUTO,
    PROGRESS,
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of the layer's own variables."""

    backend: str | None = None
    plugins: PluginChoice = PluginChoice()
    patches: PatchChoice = field(default_factory=PatchChoice)
    libraries: LibraryChoice = field(default_factory=lambda: LIBRARIES.read({}))
    strict: bool = False
    log: LogLevel = "info"

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Read the table.

        :raises EnvironmentVariableError: a value means nothing.
        """
        return cls(
            backend=BACKEND.read(environ),
            plugins=PLUGINS.read(environ),
            patches=PATCHES.read(environ),
            libraries=LIBRARIES.read(environ),
            strict=STRICT.read(environ),
            log=LOG.read(environ),
        )


def unknown_variables(
    declared: Iterable[Variable[Any]], environ: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """One warning line for each ``ACCEL_BRIDGE_*`` variable that means nothing.

    :param declared: the plugins' variables, known beside the layer's own.
    """
    known = [variable.name for variable in (*VARIABLES, *declared)]
    return tuple(
        f"{name} is set but means nothing to accel_bridge{did_you_mean(name, known)}"
        for name in sorted(environ)
        if name.startswith(PREFIX) and name not in known
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` for the nearest known name, or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
