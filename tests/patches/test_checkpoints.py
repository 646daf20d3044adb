"""Checkpoints that are not what they seem: damaged, of another vocabulary, named by nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from accel_bridge.patches._variables import CHECKSUMS
from accel_bridge.patches.checkpoints import TRACKER, check_iteration, vocabulary_differs
from accel_bridge.patches.checksums import (
    FILE,
    DamagedCheckpoint,
    _compare_first,
    compare,
    write,
)
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


def test_sums_of_a_sound_checkpoint(directory: Path) -> None:
    place = directory / "iter_0000006"
    compare(place)  # from before there were sums
    write(place)
    compare(place)


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
