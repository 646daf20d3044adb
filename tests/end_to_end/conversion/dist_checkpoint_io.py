"""The parts of upstream's tools/checkpoint/dist_checkpoint_io.py that the bridge changes.

No wheel has the tool. As upstream's: whole tensors by the names that they are stored under, and the
rest from a file ``common.pt``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config


def resolve_checkpoint_subdir(load_dir: Path) -> tuple[Path, int]:
    """The last checkpoint's directory and its iteration."""
    iteration = int((load_dir / "latest_checkpointed_iteration.txt").read_text())
    return load_dir / f"iter_{iteration:07d}", iteration


def load_dist_checkpoint_full(load_dir: Path) -> tuple[Any, ...]:
    """Weights, everything else, prefix of their names, format and iteration."""
    directory, iteration = resolve_checkpoint_subdir(load_dir)
    reader = dcp.FileSystemReader(directory)
    stored = reader.read_metadata().state_dict_metadata
    weights: OrderedDict[str, Any] = OrderedDict(
        (name, torch.empty(about.size, dtype=about.properties.dtype))
        for name, about in stored.items()
        if hasattr(about, "size") and not name.startswith("optimizer.")
    )
    dcp.load(weights, storage_reader=reader)
    common = directory / "common.pt"
    return weights, torch.load(common) if common.exists() else {}, "", "torch_dist", iteration


def save_dist_checkpoint_full(
    model_state_dict: Mapping[str, Any],
    common_state: Mapping[str, Any],
    save_dir: Path,
    model_prefix: str = "model.",
    backend: str = "torch_dist",
) -> None:
    """Write them as one rank."""
    save_dir.mkdir(parents=True)
    dcp.save(dict(model_state_dict), storage_writer=dcp.FileSystemWriter(save_dir))
    if common_state:
        torch.save(common_state, save_dir / "common.pt")
    save_config(CheckpointingConfig(backend), str(save_dir))
