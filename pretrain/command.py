"""``accel-bridge pretrain``: a model's entry point, by torchrun, with Megatron's own arguments."""

from __future__ import annotations

import argparse
import importlib.util
import os
import runpy
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from packaging.version import Version

from accel_bridge.bridge.selection import Selection, check_processes, select
from accel_bridge.errors import BridgeError
from accel_bridge.plugins.manager import load_plugins
from accel_bridge.process import endings, launch, log, progress
from accel_bridge.process.endings import held
from accel_bridge.process.environment import Settings
from accel_bridge.process.extras import require
from accel_bridge.process.parser import Parser, parted
from accel_bridge.process.ranks import check_variables

# Which script ``accel-bridge pretrain`` runs: its own, or an older Megatron's.

#: Model -> the scripts of a checkout that train it, the newest name first.
MODELS: Final = {
    "gpt": ("pretrain_gpt.py",),
    "hybrid": ("pretrain_hybrid.py", "pretrain_mamba.py"),
}
#: The oldest Megatron that it is written for.
OLDEST: Final = Version("0.19")
_DISTRIBUTION: Final = "megatron-core"


def entry_point(model: str) -> tuple[str, ...]:
    """The entry point of this package, as words for ``accel_bridge.run``."""
    return ("-m", f"accel_bridge.pretrain.pretrain_{model}")


def script(model: str = "gpt") -> tuple[str, ...]:
    """Words for ``accel_bridge.run``: the entry point, or the script of an older checkout.

    :param model: one of :data:`MODELS`.

    :raises BridgeError: the Megatron is older than the entry point, and has no script.
    """
    versions = dict(found.item for found in load_plugins().versions().items)
    version = versions.get(_DISTRIBUTION)
    if version is None or Version(version) >= OLDEST:
        return entry_point(model)
    directory = _directory()
    scripts = [] if directory is None else [directory / name for name in MODELS[model]]
    for found in scripts:
        if found.is_file():
            log.say(f"{_DISTRIBUTION} {version} trains with its own {found}")
            return (str(found),)
    lacks = " or ".join(MODELS[model]) if scripts else "megatron.training"
    raise BridgeError(
        f"{_DISTRIBUTION} {version} has no script to train with.",
        evidence=[
            f"no {lacks} beside the megatron that would be imported",
            f"accel_bridge's own needs {_DISTRIBUTION}>={OLDEST}",
        ],
        next=f"put a checkout of Megatron-LM (git checkout core_v{version}) first in PYTHONPATH, "
        f'or pip install "{_DISTRIBUTION}[training]>={OLDEST}"',
    )


def run_older(model: str) -> bool:
    """Run the script of an older checkout in place of the entry point; False if it needs none."""
    found = script(model)
    if found == entry_point(model):
        return False
    runpy.run_path(found[0], run_name="__main__")
    return True


def _directory() -> Path | None:
    """Where ``megatron.training`` is: the directory of the checkout, or site-packages."""
    try:
        spec = importlib.util.find_spec("megatron.training")
    except ImportError:
        return None
    return Path(spec.origin).parents[2] if spec is not None and spec.origin else None


#: What runs the script on every rank.
RUNNER: Final = "accel_bridge.run"
#: Words that ask Megatron for its help.
HELP: Final = frozenset({"--help", "-h"})
#: What is shown to those who give no arguments.
FIRST_MODEL: Final = (
    "--mock-data --tokenizer-type NullTokenizer --vocab-size 255 --num-layers 2 --hidden-size 64 "
    "--num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --micro-batch-size 2 "
    "--train-iters 10 --lr 1e-3 --log-interval 1 --eval-iters 0"
)


def parser() -> argparse.ArgumentParser:
    """The options that are torchrun's; everything else is Megatron's."""
    result = Parser(
        prog="accel-bridge pretrain",
        usage="accel-bridge pretrain [TORCHRUN OPTIONS] [--] MEGATRON ARGUMENTS",
        description="Trains a model with megatron.training on the hardware that is here. Options "
        "below go to torchrun; all others, and all after --, are Megatron's own (their help: "
        "accel-bridge pretrain -- --help).",
        epilog=launch.EPILOG,
        allow_abbrev=False,
    )
    result.add_argument(
        "--model",
        choices=MODELS,
        default="gpt",
        help="gpt (the default), or hybrid: layers by Megatron's --hybrid-layer-pattern",
    )
    launch.add_options(result)
    # For commands that train and do something besides: a module in place of accel_bridge.run,
    # with its own arguments, that runs the script.
    result.add_argument("--runner", default=RUNNER, help=argparse.SUPPRESS)
    return result


def main(argv: Sequence[str]) -> int:
    """Check what can be checked, then become torchrun, or run the one process; or watch them."""
    own, _ = parted(argv)
    if not HELP.intersection(own):  # our own help needs neither
        require("torch", "megatron")
    command = training_command(argv)
    sys.stdout.flush()
    if progress.is_wanted(default=True) and not HELP.intersection(argv):
        return progress.run(command)
    if launch.MODULE in command:  # it says itself how a rank ended
        with held():
            return os.execv(command[0], command)
    return endings.run(command)


def training_command(argv: Sequence[str]) -> list[str]:
    """The command line that trains with ``argv``.

    :raises BridgeError: an option, a variable or nothing at all where a number or flags must be.
    :raises SelectionError: more processes on this machine than devices.
    """
    before, after = parted(argv)
    options, megatron = parser().parse_known_args(before)
    megatron += after
    launch.check_options(options)
    check_variables(os.environ)
    if not megatron:
        raise BridgeError(
            "There are no arguments for Megatron: nothing says what to train.",
            # Another command's runner is no word of the user's.
            evidence=f"accel-bridge pretrain {shlex.join(argv)}".rstrip()
            if options.runner == RUNNER
            else "nothing follows --",
            next="`accel-bridge demo` trains without any; a first model: accel-bridge pretrain -- "
            f"{FIRST_MODEL}",
        )
    if HELP.intersection(megatron):  # one process says it all
        return [sys.executable, "-m", RUNNER, *script(options.model), "--help"]
    _check_devices(options)
    runner = ("-m", *shlex.split(options.runner))
    return launch.start_command(options, [*runner, *script(options.model), *megatron])


def _check_devices(options: argparse.Namespace) -> None:
    """As many processes as devices for ``auto``; more would hang in the first collective.

    torchrun's own ``auto`` counts what ``torch.cuda`` shows without the bridge, else the cores.
    """
    processes = launch.given(options, "--nproc-per-node")
    if processes in (None, "gpu", "cpu", "xpu"):
        return  # torchrun understands them by itself
    settings = Settings.from_environ()
    plugins = load_plugins(settings.plugins)
    plugins.check_variables()
    selection = select(plugins, settings)
    if processes == "auto":
        processes = str(_devices(selection))
        vars(options)["--nproc-per-node"] = processes
    evidence = f"--nproc-per-node {processes}"
    check_processes(selection, int(processes), "asked for", evidence)


def _devices(selection: Selection) -> int:
    """The chosen backend's devices; 1 for one that has none of its own. Says which."""
    found = next(one for one in selection.probes if one.backend is selection.chosen)
    if found.probe.devices is None:
        log.say(
            f"--nproc-per-node auto: 1 process, as the {selection.chosen.name} backend has no "
            "devices to count (a number starts more)"
        )
        return 1
    counted = "; ".join(found.probe.evidence) or found.probe.reason
    log.say(f"--nproc-per-node auto: {found.probe.devices} ({counted})")
    return found.probe.devices
