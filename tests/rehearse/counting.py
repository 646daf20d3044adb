"""A real run's collectives and parameters, written down as a rehearsal writes them.

Named by ``_ACCEL_BRIDGE_BEFORE``; each rank leaves ``real.RANK.json`` in ``COUNT_DIRECTORY``.
"""

from __future__ import annotations

import faulthandler
import json
import os
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

from accel_bridge.process.import_hook import ImportHook


def attach() -> None:
    """Before the bridge is active; a crash says where."""
    faulthandler.enable()
    ImportHook(["megatron.training.training"], _training, searching=lambda: None).install()


def _training(name: str, module: ModuleType) -> None:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from accel_bridge.apps.rehearse.collectives import Collectives

    seen = Collectives()

    class Count(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func.namespace == "c10d":
                seen.write(func, args)
            return func(*args, **(kwargs or {}))

    train_step = module.train_step

    def counted(*args: Any, **kwargs: Any) -> Any:
        seen.step += 1
        with Count():  # type: ignore[no-untyped-call]
            answer = train_step(*args, **kwargs)
        if seen.step == 2:
            lists = [one for one in args if isinstance(one, list)]
            models = next(one for one in lists if isinstance(one[0], torch.nn.Module))
            parameters = sum(p.numel() for model in models for p in model.parameters())
            data = {
                "parameters": parameters,
                "own_groups": seen.groups,
                "calls": [call.row() for call in seen.calls],
            }
            rank = torch.distributed.get_rank()
            Path(os.environ["COUNT_DIRECTORY"], f"real.{rank}.json").write_text(json.dumps(data))
        return answer

    module.train_step = counted  # type: ignore[attr-defined]


def count(rank: dict[str, Any], sizes: bool = True) -> Counter[tuple[Any, ...]]:
    """(kind, ranks of the group, dtype, bytes) of the second step's collectives -> how many."""
    made: Counter[tuple[Any, ...]] = Counter()
    for step, kind, group, dtype, _, size, *_, times in rank["calls"]:
        if step == 2:
            ranks = tuple(rank["own_groups"][group]["ranks"])
            made[kind, ranks, dtype, size if sizes else None] += times
    return made


def volumes(counted: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """(kind, ranks of the group) -> bytes of all."""
    found: Counter[tuple[Any, ...]] = Counter()
    for (kind, ranks, _, size), number in counted.items():
        found[kind, ranks] += size * number
    return found
