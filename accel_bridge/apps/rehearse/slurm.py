"""Slurm in a rehearsal: no job is asked for; what ``sbatch`` and ``srun`` start starts here."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Final, NoReturn

from accel_bridge.apps.rehearse.attach import Launcher
from accel_bridge.apps.rehearse.devices import PER_NODE
from accel_bridge.apps.rehearse.plan import Plan

#: Option of ``srun`` and ``sbatch`` -> the variable that holds it in a job.
_NUMBERS: Final = {
    r"-N|--nodes": "SLURM_NNODES",
    r"-n|--ntasks": "SLURM_NTASKS",
    r"--ntasks-per-node": "SLURM_NTASKS_PER_NODE",
    r"--gpus-per-node|--gres": "SLURM_GPUS_ON_NODE",
    r"-c|--cpus-per-task": "SLURM_CPUS_PER_TASK",
}
#: Of the first node's first task; ... and what names the nodes.
_FIRST: Final = ("SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_JOB_ID", "SLURM_JOBID")
_NODES: Final = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
#: What follows an option and yet is no value of it.
_STARTS: Final = re.compile(r"(.*/)?(bash|sh|env|numactl|torchrun|python[\d.]*)|.*\.sh")


def _numbers(options: str) -> dict[str, str]:
    found = {}
    for option, variable in _NUMBERS.items():
        if number := re.search(rf"(?:^|\s)(?:{option})[=\s]*(?:[a-z]\w*:)*(\d+)", options):
            found[variable] = number[1]
    return found


def _script(path: str) -> str:
    """A script's text; nothing of other files, which may be large."""
    with open(path, "rb") as file:
        return file.read().decode(errors="replace") if file.read(2) == b"#!" else ""


def environment(command: Sequence[str], options: str = "") -> dict[str, str]:
    """What the script of a job finds on its first node.

    :param options: of ``sbatch``, which come before those of the script.
    """
    scripts = "\n".join(_script(one) for one in command if os.path.isfile(one))
    found = _numbers(" ".join(re.findall(r"^#SBATCH\s+(.*)", scripts, re.MULTILINE)))
    found |= _numbers(options)
    if found:
        nodes = found.setdefault("SLURM_NNODES", "1")
        tasks = int(nodes) * int(found.get("SLURM_NTASKS_PER_NODE", "1"))
        found.setdefault("SLURM_NTASKS", str(tasks))
        found |= dict.fromkeys(_FIRST, "0")
        found |= dict.fromkeys(_NODES, "localhost") | {"SLURM_JOB_NUM_NODES": nodes}
    return found


def stand_in(directory: Path, title: str) -> None:
    """Commands of Slurm's, and what counts a machine's devices, for the front of ``PATH``."""
    directory.mkdir()
    ours = f'exec "{sys.executable}" -m {__name__} $(basename "$0") "$@"'
    commands = {"srun": ours, "sbatch": ours, "scontrol": "echo localhost"}
    commands["nvidia-smi"] = f"yes '{title}' | head -n {PER_NODE}"
    for name, line in commands.items():
        (directory / name).write_text(f"#!/bin/sh\n{line}\n")
        (directory / name).chmod(0o755)


def _submit(plan: Plan, argv: Sequence[str]) -> NoReturn:
    """``sbatch``: the job is here, and now."""
    start = next((place for place, one in enumerate(argv) if os.path.isfile(one)), len(argv))
    script = list(argv[start:])
    if not script:
        line = re.search(r"--wrap[= ](.*)", " ".join(argv))
        text = f"#!/bin/sh\n{line[1]}" if line else "" if sys.stdin.isatty() else sys.stdin.read()
        if not text:
            sys.exit(f"sbatch {' '.join(argv)}: which of it is the script?")
        script = [os.path.join(plan.directory, "bin", "job")]
        Path(script[0]).write_text(text)
    os.environ |= environment(script[:1], " ".join(argv[:start]))
    os.execvp("bash", ["bash", *script])


def main(argv: Sequence[str]) -> int:
    """``sbatch``, or ``srun``: one process of each rehearsed rank, or one that starts them."""
    plan, (name, *argv) = Plan.read(), argv
    if plan is not None and name == "sbatch":
        _submit(plan, argv)
    start = next((place for place in range(len(argv)) if _is_command(argv, place)), None)
    if plan is None or start is None:
        print(f"srun {' '.join(argv)}: which of it is the command?", file=sys.stderr)
        return 1
    options = _numbers(" ".join(argv[:start]))
    given = {**os.environ, **options}
    nodes = int(given.get("SLURM_NNODES", "1"))
    per_node = int(given.get("SLURM_NTASKS_PER_NODE", "0"))
    if not per_node or ("SLURM_NTASKS" in options and "SLURM_NTASKS_PER_NODE" not in options):
        per_node = int(given.get("SLURM_NTASKS", nodes)) // nodes
    os.environ |= {"SLURM_NNODES": str(nodes), "SLURM_NTASKS": str(nodes * per_node)}
    if per_node <= 1:
        os.execvp(argv[start], list(argv[start:]))
    config = SimpleNamespace(nproc_per_node=per_node, max_nodes=nodes, tasks=True)
    Launcher(plan, config, argv[start])(*argv[start + 1 :])
    return 0


def _is_command(argv: Sequence[str], place: int) -> bool:
    before = argv[place - 1] if place else ""
    if argv[place].startswith("-"):
        return False
    value = before.startswith("-") and "=" not in before
    return not value or _STARTS.fullmatch(argv[place]) is not None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
