"""Runs a command into a log file and shows it on the terminal.

The file itself is the command's output: nothing waits for who watches, and nothing is lost when
the watching ends. This process follows the file, and ends as the command does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from accel_bridge.errors import ERROR_PREFIX
from accel_bridge.process import endings
from accel_bridge.process import log as bridge_log
from accel_bridge.process.environment import PROGRESS
from accel_bridge.process.outputs import OutputError
from accel_bridge.process.progress._logfile import log_folder, new_log
from accel_bridge.process.progress._screen import FACTS, Screen
from accel_bridge.process.progress._tail import LOOK, SETTLE, Lines


def is_wanted(default: bool) -> bool:
    """Whether a run is watched: on a terminal only, and as ``ACCEL_BRIDGE_PROGRESS`` says.

    :param default: what a command does where the variable says nothing.
    :raises EnvironmentVariableError: the variable means nothing.
    """
    choice = PROGRESS.read()
    wanted = default if choice is None else choice
    return wanted and all(stream.isatty() for stream in (sys.stdout, sys.stderr))


def run(command: Sequence[str], environ: Mapping[str, str] | None = None) -> int:
    """Run ``command`` to its end, its output in a new log; its exit status.

    The log is in the folder of ``--save`` among its words, else in the current one. Where neither
    takes a file, the command runs with the terminal as its output.
    """
    environ = dict(os.environ if environ is None else environ)
    try:
        path, log = new_log(log_folder(command))
    except OutputError as error:
        try:
            path, log = new_log(Path())
        except OutputError:
            bridge_log.warn(f"no progress line: {error.what} ({error.evidence[0]})")
            return subprocess.run(command, env=environ, check=False).returncode
        bridge_log.warn(f"{error.what} The log is in the current folder instead")
    screen = Screen(sys.stderr)
    screen.say(f"{bridge_log.PREFIX} log: {path}")
    with endings.signals_kept() as prepare:
        with log:
            child = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env={**environ, FACTS: "1"},
                preexec_fn=prepare,
            )
        with path.open("rb") as written:
            ended = _follow(child, Lines(written), screen)
    status = 128 - ended if ended < 0 else ended
    screen.close(status)
    if status != 0:
        screen.say(f"{bridge_log.PREFIX} everything that was said: {path}")
    killed = endings.of_ended("the command", ended, child.pid)
    if killed is not None:
        for line in f"{ERROR_PREFIX} {killed}".splitlines():
            screen.say(line)
    return status


def _follow(child: subprocess.Popen[bytes], lines: Lines, screen: Screen) -> int:
    """Show the log until the child ends; its status."""
    while (status := endings.wait(child, LOOK)) is None:
        for line in lines.new():
            screen.feed(line)
        screen.tick()
    time.sleep(SETTLE)
    for line in lines.new(last=True):
        screen.feed(line)
    return status
