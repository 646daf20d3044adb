"""In every Python below ``accel-bridge rehearse``: its launcher, or a rank of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING

from accel_bridge.apps.rehearse.plan import Plan
from accel_bridge.process.import_hook import ImportHook

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
    """Put our launcher in the place of torchrun's, when that is imported."""

    def executed(name: str, module: ModuleType) -> None:
        from accel_bridge.apps.rehearse.launcher import Launcher

        module.elastic_launch = lambda config, entrypoint: Launcher(plan, config, entrypoint)  # type: ignore[attr-defined]

    ImportHook([_LAUNCHER], executed, searching=lambda: None).install()


def _rehearsed(plan: Plan, plugins: Plugins, selection: Selection) -> Selection:
    from accel_bridge.apps.rehearse.backend import RehearsedBackend
    from accel_bridge.apps.rehearse.session import Session

    if plan.load("launch") is None:  # no launcher of ranks stands above this process
        sys.argv += plan.flags
    session = Session(plan)
    backends = {found.item.name: found.item for found in plugins.backends()}
    backend = RehearsedBackend(
        backends[session.device.kernels], backends["cpu"], session.device, session
    )
    why = f"rehearsed: fake tensors of {session.device.title}; nothing is computed"
    return replace(selection, chosen=backend, why=why)
