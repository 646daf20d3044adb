"""``accel-bridge rehearse``: the command line."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from accel_bridge.apps.rehearse import devices, report, slurm
from accel_bridge.apps.rehearse.estimate import Network
from accel_bridge.apps.rehearse.matching import NUMBERS, choose
from accel_bridge.apps.rehearse.plan import ATTACH, Plan
from accel_bridge.bridge.activation import BEFORE
from accel_bridge.errors import ERROR_PREFIX, BridgeError
from accel_bridge.process.child import environment
from accel_bridge.process.outputs import check_output, write_output
from accel_bridge.process.parser import Parser, amount, parted, positive

_SCRIPTS: Final = (".py", ".pyc")


class RehearsalError(BridgeError):
    """The rehearsal found what would stop the training, or could not begin."""

    exit_code = 1


def _ranks(text: str) -> str:
    if not re.fullmatch(f"{NUMBERS}|all|all-kinds|", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no numbers with commas, all or all-kinds")
    return text


def _parser() -> Parser:
    parser = Parser(
        prog="accel-bridge rehearse",
        usage="accel-bridge rehearse [OPTIONS] -- COMMAND [ARGUMENTS ...]",
        description="Runs the training's own command on fake tensors, as any rank of any number: "
        "no GPU, nothing computed, no edit. Says whether it starts, whether it fits in the "
        "device's memory, whether the ranks' collectives match, and how long a step may take.",
    )
    parser.add_argument(
        "--device",
        metavar="NAME",
        default=devices.DEFAULT,
        help=f"{', '.join(devices.DEVICES)}, or gb:N (default: %(default)s)",
    )
    parser.add_argument(
        "--ranks",
        metavar="LIST",
        type=_ranks,
        default="",
        help="ranks to rehearse: 0,5,7, all, or all-kinds, one of each that differs "
        "(default: the first and the last pipeline stage)",
    )
    parser.add_argument("--steps", metavar="N", type=positive, default=2, help="default: 2")
    parser.add_argument(
        "--microbatches",
        choices=("few", "all"),
        default="few",
        help="of a step; few: the others are counted (default)",
    )
    parser.add_argument(
        "--jobs", metavar="N", type=positive, default=1, help="ranks at the same time (default: 1)"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write everything that was found")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page with the chart")
    parser.add_argument("--png", metavar="FILE", type=Path, help="draw memory over a step")
    parser.add_argument(
        "--advise", action="store_true", help="where it does not fit: rehearse the usual remedies"
    )
    for name, metavar, text in (
        ("link", "GB/S", "bandwidth between devices of a machine, in one direction"),
        ("network", "GB/S", "bandwidth of a device to other machines (default: 50)"),
        ("latency", "US", "microseconds that a collective waits (default: 20)"),
    ):
        parser.add_argument(f"--{name}", metavar=metavar, type=amount, help=text)
    parser.add_argument(
        "--keep", metavar="DIRECTORY", type=Path, help="leave there what each rank wrote and said"
    )
    parser.add_argument("argv", nargs="*", metavar="COMMAND", help="what starts the training")
    return parser


def main(argv: Sequence[str]) -> int:
    """Rehearse and report; 0 if everything starts, fits and matches, else 1."""
    own, command = parted(argv)
    parser = _parser()
    arguments = parser.parse_args(own)
    command = command or arguments.argv
    if not command:
        raise BridgeError(
            "accel-bridge rehearse needs the command that starts the training.",
            evidence=f"accel-bridge rehearse {' '.join(argv)}".rstrip(),
            next="accel-bridge rehearse -- torchrun --nproc-per-node 8 pretrain_gpt.py ...",
        )
    device = devices.find(arguments.device)
    for name in ("json", "html", "png"):
        path = getattr(arguments, name)
        if path is not None:
            check_output(path, option=f"--{name}")

    if arguments.keep is not None and arguments.keep.exists() and any(arguments.keep.iterdir()):
        raise BridgeError(
            "--keep names what is there already, and nothing is written over.",
            evidence=f"--keep {arguments.keep}",
            next="name a directory that is empty, or not there",
        )

    units = {"link": 1e9, "network": 1e9, "latency": 1e-6}
    given = {name: (getattr(arguments, name), unit) for name, unit in units.items()}
    network = Network(**{name: one * unit for name, (one, unit) in given.items() if one})

    def once(flags: Sequence[str] = ()) -> report.Outcome:
        return report.Outcome.of(rehearse(command, arguments, device.name, flags), device, network)

    outcome = once()
    advice: list[dict[str, Any]] = []
    if arguments.advise and not outcome.fits:

        def again(flags: Sequence[str]) -> dict[str, Any]:
            print(f"rehearsing with {' '.join(flags)}", file=sys.stderr, flush=True)
            return once(flags).verdict()

        advice = [{"what": "as it is", "flags": [], **outcome.verdict()}]
        advice += report.advise(outcome.ranks[0]["remedies"], again)
    report.show(outcome, advice)
    _write(arguments, outcome, advice)
    return 0 if outcome.fits and not outcome.problems else 1


def _write(arguments: Any, outcome: report.Outcome, advice: list[dict[str, Any]]) -> None:
    if arguments.json is not None:
        text = json.dumps(report.as_json(outcome, advice), indent=1)
        write_output(arguments.json, text.encode(), option="--json")
    if arguments.png is not None or arguments.html is not None:
        picture = report.draw(outcome)
        if arguments.png is not None:
            write_output(arguments.png, picture, option="--png")
        if arguments.html is not None:
            data = report.page(outcome, picture, advice)
            write_output(arguments.html, data, option="--html")


def rehearse(
    command: Sequence[str], arguments: Any, device: str, flags: Sequence[str] = ()
) -> dict[str, Any]:
    """Run the command with the rehearsal in every Python that it starts.

    :returns: ``ranks``: what each rank left; ``launch``: what the launcher said, or None.
    :raises RehearsalError: the program failed, or trained nothing.
    """
    directory = tempfile.mkdtemp(prefix="accel-bridge-rehearse-")
    asked = arguments.ranks, arguments.steps, arguments.jobs, tuple(flags), arguments.microbatches
    plan = Plan(directory, device, *asked)
    environ = {**environment(os.environ), **plan.environment(), BEFORE: ATTACH}
    environ.setdefault("ACCEL_BRIDGE_LOG", "quiet")
    argv = list(command)
    environ = {**slurm.environment(argv), **environ}
    slurm.stand_in(Path(directory, "bin"), devices.find(device).title)
    environ["PATH"] = f"{directory}/bin:{environ.get('PATH', '')}"
    if argv[0] == "-m" or argv[0].endswith(_SCRIPTS):
        argv = [sys.executable, *argv]
    try:
        # torchrun of an environment that is not entered
        beside = Path(sys.executable).parent / argv[0]
        if shutil.which(argv[0], path=environ["PATH"]) is None and beside.is_file():
            argv[0] = str(beside)
        if shutil.which(argv[0], path=environ["PATH"]) is None:
            raise RehearsalError(
                f"there is no command {argv[0]!r}.",
                evidence=f"looked in PATH={os.environ.get('PATH', '')}",
                next="accel-bridge rehearse -- bash train.sh   (or torchrun, or python)",
            )
        status = subprocess.run(argv, env=environ, check=False).returncode
        return _collect(plan, argv, status)
    finally:
        if arguments.keep is not None:
            kept = arguments.keep / "_".join(flags) if flags else arguments.keep
            shutil.copytree(directory, kept, dirs_exist_ok=True)
        shutil.rmtree(directory, ignore_errors=True)


def _said(tail: Sequence[str]) -> tuple[str, list[str], str]:
    """What a rank that failed said last, its evidence, and what to do.

    Its own three parts, where it ended with them.
    """
    lines = [re.sub(r"^\[rank\d+\]: ?", "", line) for line in tail if line.strip()]
    said, evidence = ".", lines[-4:]
    after = "fix what it says: the program would say the same on the cluster; "
    after += "ACCEL_BRIDGE_LOG=debug shows more"
    for line in lines:
        word, _, text = line.strip().partition(" ")
        if line.startswith(ERROR_PREFIX):
            said = ": " + re.sub(r"^rank \d+: ", "", line.removeprefix(ERROR_PREFIX).strip())
            evidence = []
        elif said != "." and word == "evidence:":
            evidence.append(text)
        elif said != "." and word == "next:":
            after = text.strip()
    if said == "." and lines and re.match(r"[\w.]+(Error|Exception): ", lines[-1]):
        evidence = [line.strip() for line in evidence[:-1] if line.strip(" ^~")]
        said = f": {lines[-1]}"
    return said, evidence, after


def _collect(plan: Plan, command: Sequence[str], status: int) -> dict[str, Any]:
    directory = Path(plan.directory)
    launch = plan.load("launch")
    if launch is not None:
        choose(plan.ranks, launch["world"], None)
    # Without what srun started on each task before the training.
    ended = {directory / path.name.replace("rank", "failed") for path in plan.results()}
    failed = sorted({*directory.glob("failed.*.json")} - ended)
    data: dict[str, Any] = {"rank": 0, "status": status}
    if failed:
        data = json.loads(failed[0].read_text())
    early = plan.load(f"assumed.{data['rank']}") or {"sites": [], "notes": [], "steps": 0}
    ranks = [json.loads(path.read_text()) for path in plan.results()]
    if early["steps"] and data["status"] == 0 and (failed or not ranks):
        raise RehearsalError(
            f"the training ends after {early['steps']} of {plan.steps} steps.",
            evidence=f"rank {data['rank']} ended with exit status 0",
            next=f"accel-bridge rehearse --steps {early['steps']} ...",
        )
    if failed:
        notes = list(early["notes"])
        if early["sites"]:
            sites = ", ".join(early["sites"])
            notes.append(f"values that nobody knows were read, and assumed, at {sites}")
        said, evidence, after = _said(data["tail"])
        raise RehearsalError(
            f"rank {data['rank']} does not get through {plan.steps} steps{said}",
            evidence=[*evidence, f"exit status {data['status']}", *notes],
            next=after,
        )
    if not ranks:
        raise RehearsalError(
            "the command trained nothing.",
            evidence=f"{' '.join(command)[:200]} ended with exit status {status}, and no Python "
            "below it reached a training step on a device",
            next="give the command that trains: accel-bridge rehearse -- torchrun ... "
            "pretrain_gpt.py ...; its own message, if any, is above",
        )
    ranks.sort(key=lambda one: one["rank"])
    return {"ranks": ranks, "launch": launch, "command": list(command)}
