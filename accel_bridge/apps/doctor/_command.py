"""A training's command line taken apart: variables, launcher, script, the framework's arguments."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

from accel_bridge.errors import BridgeError
from accel_bridge.plugins.checks import Run
from accel_bridge.process import launch
from accel_bridge.process.parser import CommandLineError, Parser

_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=")
_PYTHON: Final = re.compile(r"python(\d(\.\d+)?)?")
_SHELLS: Final = frozenset({"bash", "sh", "zsh", "dash", "source", "."})
_LAUNCHER_MODULES: Final = frozenset({"torch.distributed.run", "torch.distributed.launch"})
#: torchrun's flags without a value that stand before the script.
_TORCHRUN_FLAGS: Final = ("-m", "--module", "--no-python", "--no_python", "--run-path", "--use-env")
#: Options of Python that take a value.
_PYTHON_VALUES: Final = frozenset({"-W", "-X"})

#: Set by launchers: how many ranks there are, on this machine and in all.
_LOCAL: Final = "LOCAL_WORLD_SIZE"
_WORLD: Final = "WORLD_SIZE"


@dataclass(slots=True)
class Training:
    """What a command line says.

    :param argv: the framework's arguments; None where no training was named.
    :param environ: variables that stand before the program.
    :param script: the program that would get them.
    :param nproc: ranks on this machine, as given to torchrun; None if not given.
    """

    argv: list[str] | None = None
    environ: dict[str, str] = field(default_factory=dict)
    nproc: str | None = None
    nnodes: str | None = None
    host: str | None = None
    port: str | None = None
    script: str | None = None

    def take(self, options: argparse.Namespace) -> None:
        """Keep what torchrun's options say; later ones win."""
        launch.check_options(options)
        self.nproc = launch.given(options, "--nproc-per-node") or self.nproc
        self.nnodes = launch.given(options, "--nnodes") or self.nnodes
        endpoint = launch.given(options, "--rdzv-endpoint") or ""
        host, _, port = str(endpoint).partition(":")
        self.host = launch.given(options, "--master-addr") or host or self.host
        self.port = launch.given(options, "--master-port") or port or self.port

    def run(self, environ: Mapping[str, str], devices: int | None) -> Run:
        """How many ranks would start.

        :param devices: that a process may use here; None where that has no meaning.
        """
        machines = int((self.nnodes or "1").split(":")[-1])
        processes = self._processes(environ, devices)
        if self.nproc is None and self.nnodes is None and environ.get(_WORLD, "").isdigit():
            machines = max(1, int(environ[_WORLD]) // processes)
        port = self.port or environ.get("MASTER_PORT", "")
        return Run(
            processes,
            machines,
            self.host or environ.get("MASTER_ADDR"),
            int(port) if port.isdigit() else None,
            self.script,
        )

    def _processes(self, environ: Mapping[str, str], devices: int | None) -> int:
        if self.nproc is None:
            local = environ.get(_LOCAL, "")
            return max(1, int(local)) if local.isdigit() else 1
        if self.nproc.isdigit():
            return int(self.nproc)
        if self.nproc == "cpu" or devices is None:
            return os.cpu_count() or 1
        return max(1, devices)


class _Torchrun(Parser):
    """torchrun's command line up to the script."""

    def __init__(self) -> None:
        super().__init__(prog="torchrun", add_help=False, allow_abbrev=False)
        launch.add_options(self)
        for flag in _TORCHRUN_FLAGS:
            self.add_argument(flag, action="store_true", dest=flag)
        self.add_argument("script", nargs=argparse.REMAINDER)

    def error(self, message: str) -> NoReturn:
        raise CommandLineError(
            "torchrun's options cannot be read.",
            evidence=message,
            next="give doctor the number of ranks and the framework's arguments themselves: "
            "accel-bridge doctor --nproc-per-node N -- MEGATRON ARGUMENTS",
        )


def take_apart(argv: Sequence[str], training: Training) -> None:
    """Fill ``training`` with what the words after ``--`` say.

    :raises CommandLineError: a shell script, which must not be run to be read; or nothing.
    """
    argv = list(argv)
    pretrain = False
    while argv and not argv[0].startswith("-"):
        word = argv.pop(0)
        name = Path(word).name
        pretrain |= name == "pretrain"
        if _ASSIGNMENT.match(word):
            variable, _, value = word.partition("=")
            training.environ[variable] = value
        elif name in ("env", "exec", "nohup", "time", "pretrain", "run", "accel-bridge"):
            argv = argv[1:] if argv[:1] == ["--"] else argv
        elif name == "torchrun":
            argv = _after_torchrun(argv, training)
        elif _PYTHON.fullmatch(name):
            argv = _after_python(argv, training)
        elif name in _SHELLS or name.endswith(".sh"):
            raise _shell_script([word, *argv])
        elif name.endswith(".py"):
            training.script = word
            break
        else:
            argv = _after_unknown(word, argv)
    options, rest = _own_options(pretrain).parse_known_args(argv)
    training.take(options)
    if "--" in rest:  # accel-bridge pretrain TORCHRUN OPTIONS -- MEGATRON ARGUMENTS
        rest.remove("--")
    training.argv = rest
    if not rest:
        raise CommandLineError(
            "There are no arguments of a training after --.",
            evidence="accel-bridge doctor --",
            next="leave the -- out to look at the machine alone, or give what the script would get",
        )


def _own_options(pretrain: bool) -> argparse.ArgumentParser:
    """``accel-bridge pretrain`` takes torchrun's options, and its own, among Megatron's."""
    parser = Parser(prog="accel-bridge doctor", add_help=False, allow_abbrev=False)
    if pretrain:
        parser.add_argument("--model")
    launch.add_options(parser)
    return parser


def _after_torchrun(argv: list[str], training: Training) -> list[str]:
    """The words after the script, which its options name."""
    options = _Torchrun().parse_args(argv)
    training.take(options)
    script: list[str] = options.script
    training.script = script[0] if script else None
    return script[1:]


def _after_python(argv: list[str], training: Training) -> list[str]:
    """The words after the script or module."""
    while argv:
        word = argv.pop(0)
        if word == "-m" and argv:
            module = argv.pop(0)
            if module in _LAUNCHER_MODULES:
                return _after_torchrun(argv, training)
            training.script = module
            return argv
        if word in _PYTHON_VALUES and argv:
            argv.pop(0)
        elif not word.startswith("-"):
            training.script = word
            return argv
    return argv


def _after_unknown(word: str, argv: list[str]) -> list[str]:
    """After another launcher (``srun``, ``numactl``): from the program that it starts."""
    for place, one in enumerate(argv):
        name = Path(one).name
        if name == "torchrun" or name.endswith((".py", ".sh")) or _PYTHON.fullmatch(name):
            return argv[place:]
    raise CommandLineError(
        f"{word!r} is no argument of a training, and no program that is known here.",
        evidence=shlex.join([word, *argv])[:200],
        next="accel-bridge doctor --nproc-per-node N -- MEGATRON ARGUMENTS",
    )


def _shell_script(argv: Sequence[str]) -> BridgeError:
    return CommandLineError(
        "A shell script is not run by doctor: what it does cannot be undone.",
        evidence=shlex.join(argv),
        next="give the words that the script gives to torchrun or python, e.g. put "
        "`accel-bridge doctor --` in front of torchrun in a copy of the script",
    )
