"""Pythons that have imported what a training imports: each training is a fork of one.

Importing torch, Megatron and Transformer Engine takes longer than a training is measured. A fork
starts CUDA by itself, so the Python that is forked must not have: where importing started it, one
that has imported less is taken instead, or none.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))
from warm_python import COMPILER, LIBRARIES, start

#: What a server imports beforehand: everything, or only what no bridge is concerned with.
_EVERYTHING = """
import accel_bridge.auto
import torch
from megatron.training import training
from accel_bridge.pretrain import pretrain_gpt
from accel_bridge.pretrain.training import train
"""
_PREPARED = {"everything": _EVERYTHING, "libraries": ""}
#: A fork that can compute on a GPU.
_CHECK = "import torch; torch.ones(2, device={device!r}).sum().item()"
_SECONDS = 90


def warm_pythons(
    environments: Mapping[str, Mapping[str, str]], device: str = "cuda"
) -> dict[str, tuple[str, Mapping[str, str]]]:
    """Way -> the program whose processes are forks, and the environment that it must be given.

    A way of which no fork can use the device is left out.

    :param environments: of each way.
    """
    chosen: dict[str, tuple[str, Mapping[str, str]]] = {}
    with ThreadPoolExecutor() as pool:
        for level, prepare in _PREPARED.items():
            jobs = {
                way: pool.submit(_server, environment, prepare, device)
                for way, environment in environments.items()
                if way not in chosen
            }
            for way, job in jobs.items():
                if (found := job.result()) is not None:
                    chosen[way] = found
                    print(f"{way}: forks of a Python with {level} imported", file=sys.stderr)
    for way in environments.keys() - chosen.keys():
        print(f"{way}: no forks", file=sys.stderr)
    return chosen


def _server(
    environment: Mapping[str, str], prepare: str, device: str
) -> tuple[str, Mapping[str, str]] | None:
    """A server's program and environment; None where its forks cannot compute."""
    directory = Path(tempfile.mkdtemp(prefix="warm-"))
    # With NVML, a look for GPUs starts no CUDA; compilers of their own would not be forked.
    own = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    environ = {**environment, **own}
    server = start(directory, os.getpid(), environ, [*LIBRARIES, *COMPILER, "triton"], prepare)
    program = str(directory / "python")
    deadline = time.monotonic() + _SECONDS
    try:
        done = subprocess.run(
            [program, "-c", _CHECK.format(device=device)],
            env=environ,
            capture_output=True,
            text=True,
            timeout=max(1.0, deadline - time.monotonic()),
            check=False,
        )
        if done.returncode == 0:
            return program, environ
        said = (done.stderr or (directory / "python.log").read_text())[-300:]
    except subprocess.TimeoutExpired:
        said = f"no answer within {_SECONDS} s"
    print(f"no forks of {prepare.split()[:2]}: {said}", file=sys.stderr)
    server.kill()
    return None
