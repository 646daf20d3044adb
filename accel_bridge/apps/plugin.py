"""The plugin of the applications' commands. Loading it imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from accel_bridge.plugin import Command, hookimpl

if TYPE_CHECKING:
    from accel_bridge.plugin import Check


#: Group -> command -> what it does.
_COMMANDS: Final = {
    "Start here": {
        "demo": "the whole way on this machine: text, training, loss curve, resume",
        "env": "versions and devices, to paste into an issue",
        "doctor": "what would stop a training here, and the command that fixes it",
        "completion": "what makes bash, zsh or fish complete accel-bridge's commands and options",
    },
    "Look": {
        "backends": "what hardware was looked for, what was found, what is chosen, why",
        "plugins": "where backends, patches and commands come from, and which plugins failed",
        "patches": "every patch against the installed Megatron, and why it exists",
        "libraries": "which compiled libraries are real, have a shim or are absent here, and why",
    },
    "Train": {"run": "any command, unedited, with the bridge active in each Python"},
    "Check": {
        "rehearse": "the command on fake tensors, as any rank: does it start, fit, match, and how "
        "fast",
        "plot": "loss and throughput of one or several runs: table, picture, page",
        "first-run": "for a machine that nobody has tried: check, train, measure; one file to send "
        "back",
        "parity": "prove that kernels and machines agree, with measured ratios",
    },
}
#: Modules that are not called as their commands.
_MODULES: Final = {
    "completion": "cli._completion",
    "first-run": "cli.first_run",
    "rehearse": "rehearse.command",
}


@hookimpl
def accel_bridge_commands() -> list[Command]:
    """See the whole way, look at what is here, run a script, prove that it agrees."""
    return [
        Command(name, summary, f"accel_bridge.apps.{_MODULES.get(name, f'cli.{name}')}:main", group)
        for group, commands in _COMMANDS.items()
        for name, summary in commands.items()
    ]


@hookimpl
def accel_bridge_checks() -> list[Check]:
    """What does not depend on one kind of hardware, nor on Megatron."""
    from accel_bridge.apps.doctor import CHECKS

    return list(CHECKS)
