"""What ``accel-bridge rehearse`` tells the processes below it, in one environment variable."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "_ACCEL_BRIDGE_REHEARSAL"
#: For a rank: those whose values it need not wait for, with commas.
WAITED: Final = "_ACCEL_BRIDGE_REHEARSAL_WAITED"
#: For the bridge's activation: what runs before it.
ATTACH: Final = "accel_bridge.apps.rehearse.attach:attach"


@dataclass(frozen=True, slots=True)
class Plan:
    """One rehearsal.

    :param directory: where each rank writes what it found.
    :param device: name of a device in the table.
    :param ranks: numbers with commas, ``all``, ``all-kinds``, or empty: the kinds that matter most.
    :param steps: training steps of each rank.
    :param jobs: ranks that are rehearsed at the same time.
    :param flags: added to the program's own arguments.
    :param microbatches: ``few``, ``all``, or ``whole``: few, each of which is run in full.
    :param why: what a rank found that needs more than ``few``.
    """

    directory: str
    device: str
    ranks: str = ""
    steps: int = 2
    jobs: int = 1
    flags: tuple[str, ...] = ()
    microbatches: str = "few"
    why: str = ""

    def environment(self) -> dict[str, str]:
        """The variable, for a child."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Plan | None:
        """The plan under which this process runs, or None."""
        text = environ.get(VARIABLE)
        return cls(**json.loads(text)) if text else None

    def write(self, name: str, data: Any) -> None:
        """Leave a result for the command; it appears whole or not at all."""
        partial = Path(self.directory, f"{name}.new")
        partial.write_text(json.dumps(data))
        partial.replace(Path(self.directory, f"{name}.json"))

    def load(self, name: str) -> Any:
        """What a process has left, or None."""
        path = Path(self.directory, f"{name}.json")
        return json.loads(path.read_text()) if path.exists() else None

    def results(self) -> list[Path]:
        """Files of the ranks that were rehearsed to their end."""
        return list(Path(self.directory).glob("rank.*.json"))
