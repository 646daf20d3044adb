"""The plugin of the applications' commands. Loading it imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel_bridge.plugin import Command, hookimpl

if TYPE_CHECKING:
    from accel_bridge.plugin import Check


def _command(group: str, name: str, summary: str) -> Command:
    """A command that has a module of its own in :mod:`accel_bridge.apps.cli`."""
    return Command(name, summary, f"accel_bridge.apps.cli.{name}:main", group)


@hookimpl
def accel_bridge_commands() -> list[Command]:
    """See the whole way, look at what is here, run a script, prove that it agrees."""
    return [
        _command(
            "Start here",
            "demo",
            "the whole way on this machine: text, training, loss curve, resume",
        ),
        _command("Start here", "env", "versions and devices, to paste into an issue"),
        _command(
            "Start here",
            "doctor",
            "what would stop a training here, and the command that fixes it",
        ),
        _command(
            "Look",
            "backends",
            "what hardware was looked for, what was found, what is chosen, why",
        ),
        _command(
            "Look",
            "plugins",
            "where backends, patches and commands come from, and which plugins failed",
        ),
        _command(
            "Look", "patches", "every patch against the installed Megatron, and why it exists"
        ),
        _command(
            "Look",
            "libraries",
            "which compiled libraries are real, have a shim or are absent here, and why",
        ),
        Command(
            "completion",
            "what makes bash, zsh or fish complete accel-bridge's commands and options",
            "accel_bridge.apps.cli._completion:main",
            "Start here",
        ),
        _command(
            "Train",
            "run",
            "any command, unedited, with the bridge active in each Python",
        ),
        Command(
            "rehearse",
            "the command on fake tensors, as any rank: does it start, fit, match, and how fast",
            "accel_bridge.apps.rehearse.command:main",
            "Check",
        ),
        _command(
            "Check",
            "plot",
            "loss and throughput of one or several runs: table, picture, page",
        ),
        Command(
            "first-run",
            "for a machine that nobody has tried: check, train, measure; one file to send back",
            "accel_bridge.apps.cli.first_run:main",
            "Check",
        ),
        _command("Check", "parity", "prove that kernels and machines agree, with measured ratios"),
    ]


@hookimpl
def accel_bridge_checks() -> list[Check]:
    """What does not depend on one kind of hardware, nor on Megatron."""
    from accel_bridge.apps.doctor import CHECKS

    return list(CHECKS)
