"""Where the bridge is active: in a task and an actor of Ray, and in what an actor starts."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

import ray


def look() -> dict[str, Any]:
    """What this process finds, after Megatron was imported."""
    import torch
    from megatron.core.extensions import transformer_engine

    import accel_bridge

    return {
        "process": os.getpid(),
        "device": str(torch.ones(1, device="cuda").device),
        "active": accel_bridge.current() is not None,
        "linear": transformer_engine.TELinear.__mro__[1].__module__,
    }


@ray.remote
class Actor:
    """A worker that stays."""

    def look(self) -> dict[str, Any]:
        return look()

    def start(self, kind: str) -> dict[str, Any]:
        """Look in a child of this worker."""
        return start(kind)


def start(kind: str) -> dict[str, Any]:
    """Look in a new process of that kind, which finds no function in a worker's __main__."""
    import workers

    with multiprocessing.get_context(kind).Pool(1) as pool:
        return pool.apply(workers.look)


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False)
    print("FOUND task", ray.get(ray.remote(look).remote()), flush=True)
    actor = Actor.remote()
    print("FOUND actor", ray.get(actor.look.remote()), flush=True)
    print("FOUND fork in an actor", ray.get(actor.start.remote("fork")), flush=True)
    for each in ("fork", "spawn", "forkserver"):
        print(f"FOUND {each}", start(each), flush=True)
    ray.shutdown()
