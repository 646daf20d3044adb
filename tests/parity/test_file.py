"""The file of a recording: what is written comes back; everything else is refused."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_examples import examples

from accel_bridge.recording import Moments, RecordingError, read, write
from accel_bridge.recording._file import FORMAT
from parity.made import recording, rounding


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a recording."""
    file = tmp_path / "run.rec"
    write(recording(rounding(1e-3, 1)), file)
    return file


def test_what_is_written_comes_back(path: Path) -> None:
    assert read(path) == recording(rounding(1e-3, 1))


def refusal(path: Path) -> RecordingError:
    with pytest.raises(RecordingError) as caught:
        read(path)
    assert caught.value.evidence
    assert caught.value.next
    return caught.value


@pytest.mark.parametrize("data", [b"", b"\x00\x01", b"PK\x03\x04 something else", b"accel-bridge"])
def test_another_file(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    assert "not a recording" in refusal(path).what


def test_a_format_of_the_future(path: Path) -> None:
    old = f'"format": {FORMAT}'.encode()
    path.write_bytes(path.read_bytes().replace(old, f'"format": {FORMAT + 1}'.encode(), 1))
    error = refusal(path)
    assert "later version" in error.what
    assert f"format {FORMAT + 1}" in error.evidence[0]


def test_any_damage_is_refused(path: Path) -> None:
    """Cuts and changed bytes anywhere: never another exception, never accepted."""
    whole, source = path.read_bytes(), random.Random(7)
    for _ in range(300):
        data = bytearray(whole)
        place = source.randrange(len(data))
        if source.random() < 0.5:
            del data[place:]
        else:
            data[place] ^= 1 << source.randrange(8)
        path.write_bytes(data)
        try:
            found = read(path)
        except RecordingError:
            continue
        # A changed space or an older format number in the head says nothing about the content.
        assert found == recording(rounding(1e-3, 1))


numbers = st.lists(st.floats(-100, 100), min_size=1, max_size=20)


@examples(50)
@given(numbers, numbers, st.floats(0.01, 100))
def test_moments_of_parts_are_those_of_the_whole(
    left: list[float], right: list[float], factor: float
) -> None:
    def of(values: list[float]) -> Moments:
        squares = sum(value * value for value in values)
        return Moments(len(values), sum(values), squares, max(map(abs, values)))

    both = Moments.merged([of(left), of(right)])
    whole = of([value * factor for value in left + right])
    scaled = both.scaled(factor)
    assert scaled.mean == pytest.approx(whole.mean, abs=1e-9)
    assert scaled.rms == pytest.approx(whole.rms, abs=1e-9)
    assert scaled.largest == pytest.approx(whole.largest)
    # Several ranks that hold the same tensor do not change what is derived.
    twice = Moments.merged([both, both])
    assert (twice.mean, twice.rms) == pytest.approx((both.mean, both.rms))
