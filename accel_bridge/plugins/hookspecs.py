"""The hooks: everything a plugin can add to accel_bridge.

A plugin is a module (or object) named by an entry point of the group ``accel_bridge``. It marks
the hooks it implements with :data:`accel_bridge.plugin.hookimpl`; it may leave out any of them.
The tutorial is docs/extend-backend.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pluggy

if TYPE_CHECKING:
    from accel_bridge.device.backend import Backend
    from accel_bridge.patching import Patch
    from accel_bridge.patching.host import ArgumentRule, RefusedArgument
    from accel_bridge.plugins.adaptors import Adaptor, Delegation
    from accel_bridge.plugins.checks import Check, ParsedArguments, Run
    from accel_bridge.plugins.commands import Command
    from accel_bridge.process.environment import Variable

#: Name of the pluggy project and of the entry point group.
PROJECT: Final = "accel_bridge"

hookspec: Final = pluggy.HookspecMarker(PROJECT)
#: Marks a plugin's implementation of a hook.
hookimpl: Final = pluggy.HookimplMarker(PROJECT)


@hookspec
def accel_bridge_backends() -> list[Backend]:  # type: ignore[empty-body]
    """Backends that the plugin provides.

    Called once per process on every machine, with or without the hardware. Neither this hook nor a
    backend's constructor may import torch; ``Backend.probe`` reports later whether the hardware is
    present.
    """


@hookspec
def accel_bridge_variables() -> list[Variable[Any]]:  # type: ignore[empty-body]
    """Environment variables that the plugin reads.

    Called once per process. `accel-bridge env` prints them with the built-in ones. A misspelt name
    gets a suggestion, and an invalid value stops the program when the bridge is activated. The
    plugin reads the value with `Variable.read`. If a name is already taken, its first owner keeps
    it, and the conflict is reported.
    """


@hookspec
def accel_bridge_commands() -> list[Command]:  # type: ignore[empty-body]
    """Commands of `accel-bridge` that the plugin provides.

    Called once per process that runs `accel-bridge`, even for `--help`, so it must be quick: a
    command names its function, which is imported when the command is used. If a name is already
    taken, its first owner keeps it, and the conflict is reported.
    """


@hookspec
def accel_bridge_patches(backend: Backend) -> list[Patch]:  # type: ignore[empty-body]
    """Patches for Megatron, given the selected backend.

    Called once per process, before Megatron is imported; it must not import Megatron itself.
    Decide by ``backend.kernels()`` and ``backend.features``, never by ``backend.name``.

    :param backend: the backend that was selected.
    """


@hookspec
def accel_bridge_versions() -> list[tuple[str, str | None]]:  # type: ignore[empty-body]
    """Versions of distributions as an import would find them, without importing them.

    Only for a distribution that a checkout on ``sys.path`` may shadow; the versions of others are
    read from their metadata. The ``requires`` of each patch is compared with these versions.

    :returns: pairs of distribution name and version; the version is None if it is not installed.
    """


@hookspec
def accel_bridge_argument_rules(  # type: ignore[empty-body]
    backend: Backend,
) -> list[ArgumentRule | RefusedArgument]:
    """Rules that adapt Megatron's parsed arguments to the selected backend.

    Called once per process, after Megatron has parsed its command line and before it validates
    it. Every change a rule makes is reported.

    :param backend: the backend that was selected.
    """


@hookspec
def accel_bridge_delegations(backend: Backend) -> list[Delegation]:  # type: ignore[empty-body]
    """Other projects' adaptors that can take over the selected backend's device.

    Called once per process, before Megatron is imported. Decide by `backend.adaptors`, and return
    nothing if the user has turned the adaptor off. Import nothing before a delegation starts. A
    delegation that is `required` but not `taken` stops the program. Otherwise the first one that is
    `taken` starts, `torch.cuda` is left to it, and the patches that it covers are skipped.

    :param backend: the backend that was selected.
    """


@hookspec
def accel_bridge_adaptors(backend: Backend) -> list[Adaptor]:  # type: ignore[empty-body]
    """Packages that scripts import for an effect which they cannot have here.

    Called once per process, when the selected backend is known. An import of one that cannot do
    without it finds an empty module, and one line says so; `find_spec` and guarded imports are
    answered as before. Leave out a package that does its work here.

    :param backend: the backend that was selected.
    """


@hookspec
def accel_bridge_checks() -> list[Check]:  # type: ignore[empty-body]
    """Checks of `accel-bridge doctor`.

    Called once per run of it, on every machine, with whatever is broken there: it must import
    neither torch nor what it checks. Each check then runs in a process of its own, with a time
    limit. If a name is already taken, its first owner keeps it, and the conflict is reported.
    """


@hookspec
def accel_bridge_parsed_arguments(  # type: ignore[empty-body]
    argv: list[str], run: Run, seconds: float
) -> list[ParsedArguments]:
    """What a training's arguments mean to the plugin's framework, for `accel-bridge doctor`.

    Called in a process of its own, with a time limit. The parser that knows most arguments is
    used, and the findings of all are shown. Return nothing where the words are not the
    framework's.

    :param argv: the arguments as given, without the launcher's.
    :param run: how many ranks would start; its `parsed` is None.
    :param seconds: that it may take.
    """
