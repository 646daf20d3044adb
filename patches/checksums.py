"""Checksums beside a distributed checkpoint: written by each save, compared by each load.

The file is Megatron's own ``integrity.json`` (its ``--verify-integrity``), where rank 0 alone reads
the whole checkpoint twice. Here every rank reads its part.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from accel_bridge.errors import BridgeError
from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patches._variables import CHECKSUMS
from accel_bridge.patching import Kind, PatchContext, around, before

FILE: Final = "integrity.json"
#: The files of a checkpoint that say what is in the others.
_READ_FIRST: Final = (".metadata", "metadata.json", "common.pt")
_CHUNK: Final = 1 << 22


class DamagedCheckpoint(BridgeError):
    """Files of a checkpoint are not as they were written."""


def digest(file: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    made = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            made.update(chunk)
    return made.hexdigest()


def differences(directory: Path, sums: Mapping[str, str]) -> list[str]:
    """One line for each of these files that is missing, unreadable or not as it was."""
    found = []
    for name, expected in sums.items():
        try:
            if digest(directory / name) != expected:
                found.append(f"{name}: its checksum is another one")
        except OSError as error:
            found.append(f"{name}: {error.strerror or error}")
    return found


def recorded(directory: Path) -> dict[str, str]:
    """The sums beside a checkpoint, by file name; nothing where none were written.

    :raises DamagedCheckpoint: their file is damaged.
    """
    try:
        sums = json.loads((directory / FILE).read_text(encoding="utf-8"))
        return {str(name): str(value) for name, value in sums["files"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(directory, [f"{FILE}: {error}"]) from error


def damaged(directory: Path, lines: list[str]) -> DamagedCheckpoint:
    """The error for files that are not as they were written."""
    others = sorted(path.name for path in directory.parent.glob("iter_*") if path != directory)
    more = [f"and {len(lines) - 5} more"] if len(lines) > 5 else []
    return DamagedCheckpoint(
        f"The checkpoint {directory} is damaged.",
        evidence=[*lines[:5], *more, f"other checkpoints there: {', '.join(others) or 'none'}"],
        next="load an earlier one by --ckpt-step N, or copy this one again; "
        f"{CHECKSUMS.name}=off loads it as it is",
    )


def _ranks() -> tuple[int, int]:
    from torch import distributed

    if not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def _gathered(part: Any) -> list[Any]:
    from torch import distributed

    _, world = _ranks()
    if world == 1:
        return [part]
    parts: list[Any] = [None] * world
    distributed.all_gather_object(parts, part)
    return parts


def write(directory: Path) -> None:
    """Write the sums of a directory's files; every rank must call it when all files are there."""
    rank, world = _ranks()
    files = sorted(path for path in directory.iterdir() if path.is_file() and path.name != FILE)
    sums: dict[str, str] = {}
    for part in _gathered({path.name: digest(path) for path in files[rank::world]}):
        sums |= part
    if rank == 0:
        text = json.dumps({"algorithm": "sha256", "files": dict(sorted(sums.items()))}, indent=2)
        partial = directory / f"{FILE}.partial"
        partial.write_text(text, encoding="utf-8")
        partial.replace(directory / FILE)


def compare(directory: Path) -> None:
    """Compare a directory's files with their sums; every rank must call it.

    :raises DamagedCheckpoint: on every rank, for the first five files that differ.
    """
    rank, world = _ranks()
    names = list(recorded(directory).items())
    lines = [
        line
        for part in _gathered(differences(directory, dict(names[rank::world])))
        for line in part
    ]
    if lines:
        raise damaged(directory, lines)


def _here(directory: Any) -> bool:
    """A directory of this machine, and sums are wanted."""
    return "://" not in str(directory) and CHECKSUMS.read()


def _save(_context: PatchContext, call: Callable[[], Any], where: Any) -> Any:
    """Save, then write the sums; for an asynchronous save when it is complete."""
    if "://" not in str(where) and _ranks()[0] == 0:
        (Path(where) / FILE).unlink(missing_ok=True)  # of an earlier save of this iteration
    request = call()
    if _here(where):
        if request is None:
            write(Path(where))
        else:
            request.add_finalize_fn(functools.partial(write, Path(where)))
    return request


def _compare_first(context: PatchContext, where: Any) -> None:
    """What a load reads before all ranks come together: this rank compares that alone."""
    if _here(where):
        directory = Path(where)
        sums = {name: of for name, of in recorded(directory).items() if name in _READ_FIRST}
        if lines := differences(directory, sums):
            raise damaged(directory, lines)


def _make_load(context: PatchContext) -> Callable[..., Any]:
    upstream = context.original
    place = context.argument("checkpoint_dir")
    compared: set[str] = set()

    def load(*args: Any, **kwargs: Any) -> Any:
        """Compare the sums where all ranks load, once a directory, then load."""
        where = str(place.get(args, kwargs))
        if where not in compared and kwargs.get("process_group") is None and _here(where):
            compared.add(where)
            compare(Path(where))
        return upstream(*args, **kwargs)

    return load


PATCHES = (
    megatron_patch(
        id="write-checksums",
        target="megatron.core.dist_checkpointing.serialization:save",
        kind=Kind.WRAP,
        make=around(_save),
        why="a bit that flips in a shard changes weights, and nothing notices",
        removed_when="upstream's --verify-integrity reads in parallel and is on by default",
        loses="a damaged checkpoint can be loaded",
        uses=("checkpoint_dir",),
    ),
    megatron_patch(
        id="compare-checksums",
        target="megatron.core.dist_checkpointing.serialization:load",
        kind=Kind.WRAP,
        make=_make_load,
        why="a bit that flips in a shard changes weights, and nothing notices",
        removed_when="upstream's --verify-integrity reads in parallel and is on by default",
        loses="a damaged checkpoint can be loaded",
        uses=("checkpoint_dir",),
        after=("checkpoint-extra-state",),
    ),
    megatron_patch(
        id="compare-first-checksums",
        target="megatron.core.dist_checkpointing.serialization:load_common_state_dict",
        kind=Kind.WRAP,
        make=before(_compare_first),
        why="damage of the files that are read first shows as an error of pickle or json",
        removed_when="upstream's --verify-integrity reads in parallel and is on by default",
        loses="the name of the file that is damaged",
        uses=("checkpoint_dir",),
    ),
)
