"""In every Python below ``accel-bridge rehearse``: its launcher, or a rank of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from accel_bridge.apps.rehearse.matching import RankError, choose
from accel_bridge.apps.rehearse.plan import WAITED, Plan
from accel_bridge.process import log
from accel_bridge.process.import_hook import now_or_when_imported

if TYPE_CHECKING:
    from accel_bridge.bridge.selection import Selection
    from accel_bridge.plugins.manager import Plugins


_LAUNCHER = "torch.distributed.launcher.api"


def attach() -> Callable[[Plugins, Selection], Selection] | None:
    """Before the bridge's activation: what becomes of the selected backend."""
    plan = Plan.read()
    if plan is None:
        return None
    take_launcher(plan)
    return lambda plugins, selection: _rehearsed(plan, plugins, selection)


def take_launcher(plan: Plan) -> None:
    """Put our launcher in the place of torchrun's, now or when that is imported."""

    def executed(name: str, module: ModuleType) -> None:
        module.elastic_launch = lambda config, entrypoint: Launcher(plan, config, entrypoint)  # type: ignore[attr-defined]

    now_or_when_imported([_LAUNCHER], executed).install()


def _rehearsed(plan: Plan, plugins: Plugins, selection: Selection) -> Selection:
    from accel_bridge.apps.rehearse.backend import RehearsedBackend
    from accel_bridge.apps.rehearse.session import Session

    if plan.load("launch") is None:  # no launcher of ranks stands above this process
        sys.argv += plan.flags
    session = Session(plan)
    backends = {found.item.name: found.item for found in plugins.backends()}
    backend = RehearsedBackend(
        backends[session.device.kernels],
        backends["cpu"],
        session.device,
        session,
        backends["ascend"] if session.device.limits else None,
    )
    why = f"rehearsed: fake tensors of {session.device.title}; nothing is computed"
    return replace(selection, chosen=backend, why=why)


#: Of a rank's own output, what is kept for the report of its failure.
_TAIL = 40


class Launcher:
    """Called as torchrun calls ``elastic_launch(config, entrypoint)(*arguments)``."""

    def __init__(self, plan: Plan, config: Any, entrypoint: Any) -> None:
        self.plan, self.entrypoint = plan, entrypoint
        self.per_node = int(config.nproc_per_node)
        #: Slurm starts the ranks itself.
        self.tasks = getattr(config, "tasks", False)
        self.world = int(config.max_nodes) * self.per_node

    def __call__(self, *arguments: str) -> dict[int, Any]:
        command = [str(self.entrypoint), *arguments, *self.plan.flags]
        if (earlier := self.plan.load("launch")) and any(self.plan.results()):
            self.plan.write("launch", {**earlier, "more": earlier.get("more", 0) + 1})
            return {}
        self.plan.write("launch", {"per_node": self.per_node, "world": self.world})
        try:
            first = choose(self.plan.ranks, self.world, None)
        except RankError:
            sys.exit(2)  # the command finds the same, and says it
        self._run(command, first)
        rest = []
        found = self.plan.load(f"rank.{first[0]}")
        if found is not None:
            rest = [r for r in choose(self.plan.ranks, self.world, found) if r not in first]
        self._run(command, rest)
        return {}

    def _run(self, command: Sequence[str], ranks: Sequence[int]) -> None:
        with ThreadPoolExecutor(self.plan.jobs) as pool:
            for _ in pool.map(partial(self._rehearse, command), ranks):
                pass

    def _rehearse(self, command: Sequence[str], rank: int, behind: tuple[int, ...] = ()) -> None:
        """Rehearse a rank, and before it those whose values it reads.

        :param behind: ranks that wait for this one, which so must not wait for them.
        """
        if self.plan.load(f"rank.{rank}") is not None:  # another one read its values
            return
        waited = behind
        while (sender := self._start(command, rank, waited)) is not None:
            log.say(f"rank {rank} reads what rank {sender} sends")
            waited = (*waited, sender)
            self._rehearse(command, sender, (*behind, rank))

    def _start(self, command: Sequence[str], rank: int, waited: tuple[int, ...]) -> int | None:
        """Rehearse a rank; if it ends since it reads another's values, that one."""
        local = rank % self.per_node
        environ = {
            **os.environ,
            **self.plan.environment(),
            WAITED: ",".join(map(str, waited)),
            "RANK": str(rank),
            "WORLD_SIZE": str(self.world),
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(self.per_node),
            "GROUP_RANK": str(rank // self.per_node),
            "NODE_RANK": str(rank // self.per_node),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29511",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }
        if self.tasks:
            environ |= {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(local)}
        if not self.plan.flags:  # a remedy is named as it begins
            print(f"rehearsing rank {rank} of {self.world}", file=sys.stderr, flush=True)
        path = os.path.join(self.plan.directory, f"rank.{rank}.log")
        with open(path, "wb") as output:
            status = subprocess.run(
                command,
                check=False,
                env=environ,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            ).returncode
        wants = self.plan.load(f"wants.{rank}")
        if wants is not None and wants["rank"] not in waited:
            return int(wants["rank"])
        if self.plan.load(f"rank.{rank}") is not None:
            return None
        with open(path, errors="replace") as log_file:
            tail = log_file.read().splitlines()[-_TAIL:]
        self.plan.write(f"failed.{rank}", {"rank": rank, "status": status, "tail": tail})
        for line in tail if not self.plan.flags else ():  # a remedy that it refuses has a row
            print(line, file=sys.stderr)
        return None
