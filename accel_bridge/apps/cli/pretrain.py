"""``accel-bridge pretrain``: the GPT entry point, by torchrun, with Megatron's own arguments."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence

from accel_bridge._environment import Settings
from accel_bridge._errors import BridgeError
from accel_bridge._plugins import load_plugins
from accel_bridge._selection import check_processes, select
from accel_bridge.run import is_launched

#: What is started on every rank.
ENTRY_POINT = ("-m", "accel_bridge.run", "-m", "accel_bridge.pretrain.pretrain_gpt")

#: torchrun's own options that may stand before Megatron's arguments.
TORCHRUN_OPTIONS = (
    "--nproc-per-node",
    "--nnodes",
    "--node-rank",
    "--master-addr",
    "--master-port",
    "--rdzv-backend",
    "--rdzv-endpoint",
    "--rdzv-id",
    "--rdzv-conf",
    "--max-restarts",
    "--local-addr",
    "--log-dir",
    "--redirects",
    "--tee",
)


class MissingFramework(BridgeError):
    """Megatron is not installed."""


def parser() -> argparse.ArgumentParser:
    """The options that are torchrun's; everything else is Megatron's."""
    result = argparse.ArgumentParser(
        prog="accel-bridge pretrain",
        usage="accel-bridge pretrain [TORCHRUN OPTIONS] [--] MEGATRON ARGUMENTS",
        description="Trains a GPT with megatron.training on the hardware that is here. Options "
        "below go to torchrun; all others, and all after --, are Megatron's own (their help: "
        "accel-bridge pretrain -- --help).",
        allow_abbrev=False,
    )
    add_torchrun_options(result)
    result.epilog = "torchrun options: " + " ".join((*TORCHRUN_OPTIONS, "--standalone"))
    return result


def add_torchrun_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that go to torchrun as they are."""
    for option in TORCHRUN_OPTIONS:
        spellings = sorted({option, "--" + option[2:].replace("-", "_")})
        parser.add_argument(*spellings, metavar="X", dest=option, help=argparse.SUPPRESS)
    parser.add_argument(
        "--standalone", action="store_true", dest="--standalone", help=argparse.SUPPRESS
    )


def torchrun_words(options: argparse.Namespace) -> list[str]:
    """The options of torchrun that were given, as words of its command line."""
    words = []
    for name in TORCHRUN_OPTIONS:
        if vars(options)[name] is not None:
            words += [name, vars(options)[name]]
    return [*words, "--standalone"] if vars(options)["--standalone"] else words


def main(words: Sequence[str]) -> int:
    """Check what can be checked, then become torchrun, or the one process."""
    command = training_command(words)
    check_framework()
    sys.stdout.flush()
    os.execv(command[0], command)


def training_command(words: Sequence[str], entry_point: Sequence[str] = ENTRY_POINT) -> list[str]:
    """The command line of torchrun for ``words``; one process needs none, and starts sooner.

    :param entry_point: what is started on every rank.
    :raises SelectionError: more processes on this machine than devices.
    """
    before, after = list(words), []
    if "--" in before:
        place = before.index("--")
        before, after = before[:place], before[place + 1 :]
    options, megatron = parser().parse_known_args(before)
    chosen = vars(options)
    _check_devices(chosen["--nproc-per-node"])
    alone = torchrun_words(options) in ([], ["--nproc-per-node", "1"])
    if alone and not is_launched(os.environ):
        return [sys.executable, *entry_point, *megatron, *after]
    torchrun = [sys.executable, "-m", "torch.distributed.run", *torchrun_words(options)]
    if chosen["--nnodes"] is None and chosen["--master-port"] is None:
        # A free port, so that two runs on one machine do not meet.
        torchrun += [] if chosen["--standalone"] else ["--standalone"]
    return [*torchrun, *entry_point, *megatron, *after]


def check_framework() -> None:
    """Torch and Megatron must be importable.

    :raises MissingFramework: one is not.
    """
    for module, package in (("torch", "torch"), ("megatron", "megatron-core[training]")):
        if importlib.util.find_spec(module) is None:
            raise MissingFramework(
                f"{package} is not installed.",
                evidence=f"no module {module} for {sys.executable}",
                next=f'pip install "{package}", or pip install "accel-bridge[megatron]"',
            )


def _check_devices(processes: str | None) -> None:
    """More processes than devices would hang in the first collective."""
    if processes is None or not processes.isdigit():
        return  # torchrun understands 'gpu', 'cpu' and 'auto' by itself
    settings = Settings.from_environ()
    selection = select(load_plugins(settings.plugins), settings)
    evidence = f"--nproc-per-node {processes}"
    check_processes(selection, int(processes), "asked for", evidence)
