"""Recordings made by strangers: refused in three parts, in little memory, or compared."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_examples import examples

from accel_bridge.apps.cli import parity_compare
from accel_bridge.apps.comparison import compare
from accel_bridge.apps.comparison.report import as_html, as_json
from accel_bridge.errors import BridgeError
from accel_bridge.process.outputs import OutputError
from accel_bridge.recording import Recording, RecordingError, read, write
from parity.hostile import changed, document, packed, places
from parity.made import recording

#: A small recording with every field in use.
SMALL = recording(
    steps=3,
    observations=tuple(replace(o, first=o.moments) for o in recording().observations[::5]),
    notes=("a note",),
    patches=({"id": "x", "state": "applied"},),
    arguments={"micro_batch_size": 1, "list": [1, {"y": None}]},
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that is written over and over."""
    path = tmp_path_factory.mktemp("hostile") / "run.rec"
    write(SMALL, path)
    return path


@pytest.fixture(scope="module")
def made(file: Path) -> Any:
    """The document of :data:`SMALL`."""
    write(SMALL, file)
    return document(file)


def refusal(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(RecordingError) as caught:
        read(path)
    assert caught.value.evidence
    assert caught.value.next
    return str(caught.value)


def use(found: Recording) -> None:
    """Everything that `parity compare` does with a recording, less the picture."""
    for a, b, third in ((SMALL, found, None), (found, found, None), (SMALL, SMALL, found)):
        with contextlib.suppress(BridgeError):
            result = compare(a, b, third)
            json.dumps(as_json(result), allow_nan=False)
            as_html(result, None).encode()
            with contextlib.redirect_stdout(io.StringIO()) as shown:
                parity_compare._print_comparison(result)
            assert "\x1b" not in shown.getvalue()
            shown.getvalue().encode()


@examples(400)
@given(st.integers(0, 2**32))
def test_one_value_is_changed(file: Path, made: Any, seed: int) -> None:
    mutated = changed(made, random.Random(seed), list(places(made)))
    file.write_bytes(packed(json.dumps(mutated).encode()))
    try:
        found = read(file)
    except RecordingError as error:
        shown = str(error)
    else:
        use(found)
        shown = ""
    assert "\x1b" not in shown


def _set(*path: Any, to: Any) -> Callable[[Any], None]:
    def change(made: Any) -> None:
        for key in path[:-1]:
            made = made[key]
        made[path[-1]] = to

    return change


#: What the searches above have found, or an older reader took: change -> what the error names.
CORPUS: dict[str, tuple[Callable[[Any], None], str]] = {
    "a field is gone": (lambda made: made.pop("layout"), "layout: Field required"),
    "no steps": (_set("steps", to=[]), "steps: List should have at least 1 item"),
    "a step twice": (lambda made: made["steps"].append(made["steps"][0]), "step 1 comes after"),
    "a loss as text": (
        _set("steps", 1, "loss", to="4.8"),
        "steps[1].loss: Input",
    ),
    "a loss as truth": (
        _set("steps", 1, "loss", to=True),
        "steps[1].loss: Input",
    ),
    "endless seconds": (_set("steps", 0, "seconds", to=float("inf")), "steps[0].seconds: "),
    "a count of none": (_set("observations", 0, 5, 0, to=0), "observations[0][5]"),
    "negative squares": (_set("observations", 0, 5, 2, to=-1.0), "it is negative"),
    "half a sample": (_set("observations", 0, 7, to="AAAAA"), "observations[0][7]"),
    "a kind of its own": (_set("observations", 0, 1, to=["weight"]), "observations[0][1]: "),
    "eight columns": (lambda made: made["observations"][0].pop(), "observations[0][8]: Field req"),
    "a layout of zero": (_set("layout", "TP", to=0), "layout.TP: Input should be greater"),
    "half a character": (_set("about", "device", to="\ud800"), "Invalid JSON"),
    "a long name": (_set("precision", to="x" * 10_001), "precision: String should have at most"),
    "nested": (_set("arguments", "x", to=json.loads("[" * 300 + "]" * 300)), "recursion limit"),
    "a model as text": (_set("identity", "model", to="gpt"), "identity.model: Input should be"),
    "an escape in a name": (_set("about", "\x1b[31m", to=1), r"about.\x1b[31m: Input should be"),
}


@pytest.mark.parametrize("name", CORPUS)
def test_the_field_is_named(name: str, file: Path, made: Any) -> None:
    change, said = CORPUS[name]
    mutated = json.loads(json.dumps(made))
    change(mutated)
    assert said in refusal(file, packed(json.dumps(mutated).encode()))


#: Name -> (beginning, what is repeated, how often, end).
BOMBS = {
    "one long text": (b'"', b"a", 1 << 28, b'"'),
    "many lists": (b"[", b"[],", 40 << 20, b"[]]"),
    "many objects": (b"[", b'{"a":1},', 14 << 20, b"1]"),
    "wide characters": (b'"\xf0\x9f\x98\x80', b"a", 126 << 20, b'"'),
    "deep lists": (b"", b"[", 1 << 20, b""),
}
READ = """
import sys
from pathlib import Path
from accel_bridge.recording import RecordingError, read
for name in sys.argv[1:]:
    try:
        read(Path(name))
    except RecordingError as error:
        # Not getrusage: it counts the process that forked this one.
        (peak,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
        print("evidence:" in str(error), peak.split()[1])
"""


@pytest.mark.slow
def test_a_small_file_of_a_large_document(tmp_path: Path) -> None:
    """Refused before it is parsed: the memory is what the longest document takes."""
    for name, (beginning, unit, times, end) in BOMBS.items():
        (tmp_path / name).write_bytes(packed(beginning + unit * times + end))
        assert (tmp_path / name).stat().st_size < 100_000
    command = [sys.executable, "-c", READ, *(str(tmp_path / name) for name in BOMBS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found = [line.split() for line in done.stdout.splitlines()]
    assert [refused for refused, _ in found] == ["True"] * len(BOMBS)
    assert max(int(kilobytes) for _, kilobytes in found) < 400 << 10


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/null", ".", "pipe", "absent"])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RecordingError, match="cannot be read"):
        read(tmp_path / name)


def test_what_could_not_be_read_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accel_bridge.recording._file.DOCUMENT", 1000)
    with pytest.raises(RecordingError, match="too much to be read again"):
        write(SMALL, tmp_path / "run.rec")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        write(SMALL, tmp_path / "missing" / "run.rec")
