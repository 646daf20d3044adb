"""The judge finds what it must find, and a sample of the tables is answered well."""

from __future__ import annotations

import random
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.hostile.case import Case
from conformance.hostile.fixtures import can_mount, furnish, prepare_templates, remove_templates
from conformance.hostile.judge import Answer, judge
from conformance.hostile.tables import KINDS, draw

#: What a program does wrong -> what the judge must call it. Each is injected in `bad_program.py`.
INJECTED = {
    "1 / 0": Answer.TRACEBACK,
    "sys.exit('sorry')": Answer.BARE,
    "pass": Answer.WRONGLY_ACCEPTED,
    "os.kill(os.getpid(), 11)": Answer.CRASH,
    "time.sleep(60)": Answer.HANG,
    "subprocess.Popen(['sleep', '30'], start_new_session=True); three_parts()": Answer.HANG,
    "open('notes.txt', 'w'); three_parts()": Answer.LOSS,
    "os.unlink('photos/one.png'); three_parts()": Answer.LOSS,
    "os.chmod('notes.txt', 0o600); three_parts()": Answer.LOSS,
    "open('../precious.txt', 'a').write('x'); three_parts()": Answer.LOSS,
    "sys.stderr.write('\\x1b[2J'); three_parts()": Answer.UNSAFE,
    "x = b'x' * (300 << 20); three_parts()": Answer.MEMORY,
    "three_parts()": Answer.REFUSED,
}
BAD_PROGRAM = """\
import os, subprocess, sys, time
def three_parts():
    print("accel-bridge: error: x\\n  evidence: y\\n  next:     z", file=sys.stderr)
    sys.exit(2)
"""
pytestmark = pytest.mark.conformance


@pytest.fixture(scope="module", autouse=True)
def templates() -> Iterator[None]:
    prepare_templates(checkpoint=False)
    yield
    remove_templates()


@pytest.mark.parametrize(("body", "expected"), INJECTED.items())
def test_the_judge_finds_what_is_injected(body: str, expected: Answer, tmp_path: Path) -> None:
    directory = tmp_path / "work"
    furnish(directory)
    (directory / "bad_program.py").write_text(BAD_PROGRAM + body)
    seconds = 1 if "sleep(60)" in body else 60
    case = Case("injected", body, ["bad_program"], seconds=seconds, memory=200 << 20)
    assert judge(case, directory, sys.executable).answer is expected


#: A fault around a program -> what the program sees of it; without the fault it says nothing.
SEEN = {
    "limits": (
        {"limits": {resource.RLIMIT_NOFILE: 64}},
        "import resource; resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 64 and three_parts()",
    ),
    "twice": (
        {"twice": True},
        "import fcntl; f = open('notes.txt'); time.sleep(0.5)\n"
        "try: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB); time.sleep(3); three_parts()\n"
        "except OSError: three_parts()",
    ),
    "meanwhile": (
        {"meanwhile": lambda directory: (directory / "made").write_text(""), "outputs": ["made"]},
        "time.sleep(1); os.path.exists('made') and three_parts()",
    ),
    "mounts": (
        {"mounts": "mount -t tmpfs -o ro tmpfs photos"},
        "os.path.exists('photos/one.png') or three_parts()",
    ),
}


@pytest.mark.parametrize("fault", SEEN)
def test_the_judge_sees_the_fault(fault: str, tmp_path: Path) -> None:
    more, body = SEEN[fault]
    directory = tmp_path / "work"
    furnish(directory)
    (directory / "bad_program.py").write_text(BAD_PROGRAM + body)
    case = Case("injected", fault, ["bad_program"], memory=None, **more)  # type: ignore[arg-type]
    if fault == "mounts" and not can_mount():
        return  # such cases are left out
    without = Case("injected", fault, ["bad_program"], memory=None, outputs=["made"])
    if fault != "twice":
        assert judge(without, directory, sys.executable).answer is Answer.WRONGLY_ACCEPTED
    assert judge(case, directory, sys.executable).answer is Answer.REFUSED


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_cases_to_draw_from(kind: str) -> None:
    names = [case.name for case in draw(0, random.Random(1), [kind])]
    assert len(names) > 50
    assert names == [case.name for case in draw(0, random.Random(1), [kind])]
