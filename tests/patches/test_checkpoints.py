"""Checkpoints: what is damaged, locked, or not for this run; what other devices would write."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from patched_function import patched
from torch.distributed.checkpoint.metadata import TensorProperties

from accel_bridge.errors import BridgeError
from accel_bridge.patches import dist_checkpointing, parameter_groups, save_lock
from accel_bridge.patches._variables import CHECKSUMS
from accel_bridge.patches.checkpoints import (
    TRACKER,
    check_iteration,
    check_weight_shards,
    vocabulary_differs,
)
from accel_bridge.patches.checksums import (
    FILE,
    DamagedCheckpoint,
    _compare_first,
    compare,
    write,
)
from accel_bridge.patches.recording import Failure, _Held, _make_pretrain
from accel_bridge.patching.host import ArgumentError


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with two whole checkpoints and half of a third."""
    for number in (3, 6, 9):
        place = tmp_path / f"iter_{number:07d}"
        place.mkdir()
        (place / "__0_0.distcp").write_bytes(bytes(range(256)) * 50)
        (place / ".metadata").write_bytes(b"metadata")
        if number < 9:
            (place / "metadata.json").write_text("{}")
    (tmp_path / TRACKER).write_text("6")
    return tmp_path


@pytest.mark.parametrize(
    "text", ["", " \n", "x", "6.0", "-6", "\u0666", "6 3", "9" * 40, "\0", "\udcff"]
)
def test_a_garbled_tracker(directory: Path, text: str) -> None:
    (directory / TRACKER).write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ArgumentError, match="does not say which checkpoint") as caught:
        check_iteration(directory)
    assert "echo 6 >" in caught.value.next  # the last that is whole, not the half one


@pytest.mark.parametrize("kind", ["directory", "loop"])
def test_a_tracker_that_is_no_file(directory: Path, kind: str) -> None:
    """Megatron would search for a checkpoint, and fail at the first save."""
    tracker = directory / TRACKER
    tracker.unlink()
    if kind == "directory":
        tracker.mkdir()
    else:
        tracker.symlink_to(TRACKER)
    with pytest.raises(ArgumentError, match="does not say"):
        check_iteration(directory)


def test_good_trackers(directory: Path) -> None:
    check_iteration(directory)
    (directory / TRACKER).write_text("3\n")
    check_iteration(directory)
    (directory / TRACKER).unlink()
    check_iteration(directory)  # a first start


def test_an_iteration_that_is_not_there(directory: Path) -> None:
    (directory / TRACKER).write_text("12")
    with pytest.raises(ArgumentError, match="iter_0000012 is not there") as caught:
        check_iteration(directory)
    assert "--ckpt-step 6" in caught.value.next
    with pytest.raises(ArgumentError, match="iter_0000004"):
        check_iteration(directory, 4)


@pytest.mark.parametrize("bit", [0, 5, 4000, 102_399])
def test_one_flipped_bit(directory: Path, bit: int) -> None:
    place = directory / "iter_0000006"
    write(place)
    shard = place / "__0_0.distcp"
    content = bytearray(shard.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    shard.write_bytes(content)
    with pytest.raises(DamagedCheckpoint, match="is damaged") as caught:
        compare(place)
    assert "__0_0.distcp" in str(caught.value)
    assert "iter_0000003" in str(caught.value)


def test_a_missing_shard_and_damaged_sums(directory: Path) -> None:
    place = directory / "iter_0000006"
    write(place)
    (place / "__0_0.distcp").unlink()
    with pytest.raises(DamagedCheckpoint, match="is damaged"):
        compare(place)
    for text in ("", "[]", '{"files": 3}', "{"):
        (place / FILE).write_text(text)
        with pytest.raises(DamagedCheckpoint, match="is damaged"):
            compare(place)


def test_a_file_that_is_missing_is_named_before_the_load(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = directory / "iter_0000006"
    write(place)
    check_iteration(directory)
    (place / "metadata.json").unlink()
    with pytest.raises(DamagedCheckpoint, match="is damaged") as caught:
        check_iteration(directory)
    assert "metadata.json: not there" in caught.value.evidence
    monkeypatch.setenv(CHECKSUMS.name, "off")
    check_iteration(directory)


def test_what_is_read_first_is_compared_first(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's message about a damaged .metadata is one of pickle."""
    place = directory / "iter_0000006"
    write(place)
    (place / "__0_0.distcp").write_bytes(b"")
    _compare_first(None, place)  # all ranks compare the shards together, later
    (place / ".metadata").write_bytes(bytes(8))
    with pytest.raises(DamagedCheckpoint) as caught:
        _compare_first(None, str(place))
    assert caught.value.evidence[0].startswith(".metadata: ")
    monkeypatch.setenv(CHECKSUMS.name, "off")
    _compare_first(None, place)


def _run(vocabulary: int | None, padded: int, parallel: int = 1) -> SimpleNamespace:
    return SimpleNamespace(
        vocab_size=vocabulary,
        padded_vocab_size=padded,
        make_vocab_size_divisible_by=128,
        tensor_model_parallel_size=parallel,
    )


def test_vocabularies() -> None:
    assert vocabulary_differs(_run(255, 256), _run(511, 512))
    assert vocabulary_differs(_run(None, 50304), _run(None, 32000))
    assert vocabulary_differs(_run(250, 256), _run(255, 256))
    # Padded for another layout, it may be the same.
    assert not vocabulary_differs(_run(None, 50304), _run(None, 50432, 2))
    assert not vocabulary_differs(_run(255, 256), _run(255, 512, 4))
    assert not vocabulary_differs(SimpleNamespace(), _run(255, 256))


def test_a_gate_in_other_weight_shards_is_refused() -> None:
    def run(parallel: int, shards: int, **more: bool) -> SimpleNamespace:
        return SimpleNamespace(
            tensor_model_parallel_size=parallel, gtp_weight_remat_size=shards, **more
        )

    for stored, here in ((run(1, 2), run(1, 1)), (run(1, 1), run(1, 2)), (run(1, 2), run(2, 2))):
        check_weight_shards(stored, here)
        here.swiglu = True
        with pytest.raises(ArgumentError, match="wrong order"):
            check_weight_shards(stored, here)
    check_weight_shards(run(1, 2), run(1, 2, swiglu=True))
    check_weight_shards(run(1, 1), run(2, 1, swiglu=True))
    check_weight_shards(SimpleNamespace(tensor_model_parallel_size=1), run(1, 1, swiglu=True))


class Quantized(torch.Tensor):
    """As an FP8 weight: a subclass that knows the numbers it stands for."""

    def dequantize(self) -> torch.Tensor:
        return torch.full((2,), 3.0)


def test_quantized_weights_are_written_as_numbers() -> None:
    transform = patched(
        dist_checkpointing.PATCHES, lambda planner, item, value: value, "checkpoint-quantized"
    )
    weight = torch.zeros(2).as_subclass(Quantized)
    assert transform(None, None, weight).tolist() == [3.0, 3.0]
    for value in (torch.ones(2), torch.nn.Parameter(torch.ones(2)), b"bytes"):
        assert transform(None, None, value) is value


def test_stored_properties_make_an_empty_tensor() -> None:
    context: Any = None
    shim: Any = dist_checkpointing._make_torch(context)
    properties = vars(TensorProperties(dtype=torch.bfloat16)) | {"strides": (1, 2)}
    empty = shim.empty((2, 3), **properties, device="meta")
    assert (empty.shape, empty.dtype) == ((2, 3), torch.bfloat16)
    assert shim.Tensor is torch.Tensor


@pytest.mark.parametrize(
    ("save", "locked"), [("made", True), (Path("made"), True), ("msc://made", False), ("", False)]
)
def test_paths_are_locked_and_addresses_are_not(
    save: Any, locked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "gloo")
    context: Any = SimpleNamespace(
        module=SimpleNamespace(get_args=lambda: SimpleNamespace(save=save)),
        host=SimpleNamespace(once=lambda name, action: taken.append(name)),
    )
    save_lock._take(context)
    assert bool(taken) == locked


#: By which Megatron 0.16 to 0.18 look for a saved group.
KEYS = ("wd_mult", "is_decoupled_lr")
#: The groups of a training with --decoupled-lr 0.1: biases, other weights, embeddings.
RATES = {"bias": (0.0, 1.0), "weight": (1.0, 1.0), "embedding": (1.0, 0.1)}


def groups(factor: float = 1.0) -> list[dict[str, Any]]:
    """As `_get_param_groups` makes them."""
    return [
        {
            "params": [torch.nn.Parameter(torch.zeros(1))],
            "wd_mult": decay,
            "is_decoupled_lr": False,
            "default_config": rate == 1.0,
            "max_lr": rate * factor,
        }
        for decay, rate in RATES.values()
    ]


def key_of(group: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(group[key] for key in KEYS)


def matched(
    current_groups: list[dict[str, Any]], state_dict_groups: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """What `_filter_and_reorder_param_groups` does."""
    saved = {key_of(group): group for group in state_dict_groups}
    return [saved[key_of(group)] for group in current_groups]


def load_state_dict(self: Any, state_dict: dict[str, Any]) -> None:
    """What `DistributedOptimizer.load_state_dict` does."""
    saved = {key_of(group): group for group in state_dict["optimizer"]["param_groups"]}
    inner = self.optimizer.state_dict()["param_groups"]
    made = [{**saved[key_of(group)], "params": group["params"]} for group in inner]
    self.optimizer.load_state_dict({"state": {}, "param_groups": made})


def rates(found: list[dict[str, Any]]) -> list[float]:
    # What is saved next must look as without the patch.
    assert not any(group["is_decoupled_lr"] for group in found)
    return [group["max_lr"] for group in found]


@pytest.mark.parametrize(("patch", "expected"), [(False, [1, 0.1, 0.1]), (True, [1, 1, 0.1])])
def test_groups_are_matched_by_their_rates(patch: bool, expected: list[float]) -> None:
    match = patched(parameter_groups.PATCHES[:1], matched) if patch else matched
    # Another --lr than the saved one is no other group.
    current, saved = groups(factor=3.0), groups()
    assert rates(match(current, saved)) == expected
    assert rates(current) == [3.0, 3.0, pytest.approx(0.3)]
    assert rates(saved) == [1, 1, 0.1]


@pytest.mark.parametrize(("patch", "expected"), [(False, [1, 0.1, 0.1]), (True, [1, 1, 0.1])])
def test_a_distributed_optimizer_takes_each_groups_rates(
    patch: bool, expected: list[float]
) -> None:
    load = load_state_dict
    if patch:
        load = patched(parameter_groups.PATCHES[1:], load_state_dict)
    distributed = SimpleNamespace(optimizer=torch.optim.SGD(groups(factor=3.0)))
    saved = deepcopy(groups())
    load(distributed, {"optimizer": {"param_groups": saved}})
    assert rates(distributed.optimizer.param_groups) == expected
    assert rates(saved) == [1, 1, 0.1]


def test_groups_of_an_older_checkpoint_are_found_by_their_mark() -> None:
    saved = groups()
    for group in saved:
        group["is_decoupled_lr"] = not group.pop("default_config")
    found = patched(parameter_groups.PATCHES[:1], matched)(groups(), saved)
    assert [group["max_lr"] for group in found] == [1, 1, 0.1]


FULL = BridgeError("The recording cannot be written.", evidence="full", next="free room")


def ended(training: Callable[[Failure], Any]) -> Any:
    """Megatron's ``pretrain``, patched, with another body."""
    held = _Held()
    host = SimpleNamespace(once=lambda key, make: held)
    context: Any = SimpleNamespace(host=host, original=lambda: training(held.failure))
    result = _make_pretrain(context)()
    assert not held.failure.waits
    return result


def test_it_fails_after_the_last_checkpoint() -> None:
    done = []

    def training(failure: Failure) -> None:
        assert failure.waits
        failure.error = FULL
        done.append("checkpoint")

    with pytest.raises(BridgeError, match="cannot be written"):
        ended(training)
    assert done == ["checkpoint"]


def test_a_run_that_is_recorded_ends_well() -> None:
    assert ended(lambda failure: 7) == 7


def test_an_error_in_an_exit_function_has_a_status_and_leaves_the_others() -> None:
    """Python alone prints a traceback, and ends with status 0."""
    code = """if True:
        import atexit
        from accel_bridge.errors import BridgeError
        from accel_bridge.process.endings import end_with
        def finish():
            atexit.unregister(finish)
            end_with(BridgeError("full", evidence="no room", next="free some"))
        atexit.register(print, "the others ran")
        atexit.register(finish)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "the others ran\n")
    assert done.stderr.startswith("accel-bridge: error: full\n  evidence: no room")
    assert "Traceback" not in done.stderr
