"""tools/megatron_suite.py: what happens to ranks that fail, die and hang, and the verdicts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import megatron_suite as suite  # noqa: E402
import megatron_suite_report as report  # noqa: E402

TESTS = """
import os, time
import pytest

RANK = int(os.environ["RANK"])

def test_passes():
    assert os.environ["WORLD_SIZE"] == "2"

def test_fails():
    raise ValueError("on every rank")

def test_one_rank_fails():
    assert RANK != 1, "rank one"
    time.sleep(60)

def test_dies():
    if RANK == 0:
        os._exit(3)
    time.sleep(60)

@pytest.mark.flaky_in_dev
def test_hangs():
    time.sleep(60)

def test_skips():
    pytest.skip("not here")

def test_is_reached():
    pass

def test_is_not_chosen():
    pass
"""
ENDS = {
    "passes": ("passed", ""),
    "fails": ("failed", "ValueError: on every rank"),
    "one_rank_fails": ("failed", "AssertionError: rank one"),
    "dies": ("failed", "a rank ended with status 3"),
    "hangs": ("failed", "[marked flaky] no end within 6 s"),
    "skips": ("skipped", ""),
    "is_reached": ("passed", ""),
}


def test_every_test_has_its_end(tmp_path: Path, warm: str) -> None:
    folder = tmp_path / "tests/unit_tests"
    folder.mkdir(parents=True)
    (folder / "test_planted.py").write_text(TESTS)
    words = ["run", str(tmp_path), "--world", "2", "--jobs", "1", "--limit", "6", "--cold"]
    words += ["--without-bridge", "--json", str(tmp_path / "results.json")]
    chosen = tmp_path / "chosen.txt"
    chosen.write_text("".join(f"test_planted.py::test_{name}\n" for name in ENDS))
    words += ["--megatron", "none", "--tests", str(chosen)]
    command = [warm, str(ROOT / "tools/megatron_suite.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    tests: dict[str, Any] = json.loads((tmp_path / "results.json").read_text())["tests"]
    assert set(tests) == {f"test_planted.py::test_{name}" for name in ENDS}
    for name, (outcome, message) in ENDS.items():
        end = tests[f"test_planted.py::test_{name}"]
        assert end["outcome"] == outcome, (name, end)
        assert message in end["message"]


def test_make_passes_patterns_and_options_on() -> None:
    words = ["make", "-n", "megatron-suite", "MEGATRON=CHECKOUT", "WORLD=2"]
    shown = subprocess.run(
        [*words, "ARGS=test_utils.py --jobs 3"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    line = " ".join(shown.stdout.replace("\\\n", " ").split())
    run = line.partition("megatron_suite.py run ")[2].partition(" || ")[0].replace("$world", "2")
    given = suite.parser().parse_args(["run", *run.split()])
    assert (given.files, given.jobs, given.world) == (["test_utils.py"], 3, 2)


def document(world: int, **ends: str) -> dict[str, Any]:
    """Results on ``world`` ranks: name -> outcome, or the message of a failure."""
    outcomes = ("passed", "skipped", "not run")
    return {
        "world": world,
        "backend": "cpu",
        "tests": {
            f"test_a.py::{name}": {
                "outcome": end if end in outcomes else "failed",
                "message": "" if end in outcomes else end,
                "where": "",
            }
            for name, end in ends.items()
        },
    }


def test_the_verdict_over_all_numbers_of_ranks() -> None:
    reasons = [report.Reason("harness", "ranks", "why", ("world size",))]
    documents = [
        document(
            1, both="passed", ranks="world size 1", ours="boom", lost="passed", none="not run"
        ),
        document(8, both="passed", ranks="passed", ours="boom", lost="boom", none="skipped"),
    ]
    judged, worlds = report.judge_all(documents, reasons)
    outcomes = {test.partition("::")[2]: one.outcome for test, one in judged.items()}
    # What fails on eight ranks is not hidden by one rank on which it passes.
    assert outcomes == {
        "both": "passed",
        "ranks": "passed",
        "ours": "failed",
        "lost": "failed",
        "none": "upstream",
    }
    assert worlds[1]["test_a.py::ranks"].reason == "ranks"


def test_a_failure_on_fewer_ranks_counts_unless_eight_pass() -> None:
    judged, _ = report.judge_all([document(1, a="boom", b="boom"), document(8, a="passed")], [])
    assert judged["test_a.py::a"].outcome == "passed"
    assert judged["test_a.py::b"].outcome == "failed"


def test_a_skip_counts_as_megatrons_own_and_says_why() -> None:
    reasons = report.read_reasons()
    for message, name in {
        "Skipped: MXFP8 requires Blackwell": "skips itself: a GPU of the Hopper or Blackwell kind",
        "Skipped: for a reason of its own": "skips itself",
        # A failure is none, though it says what a skip would say.
        "AssertionError: MXFP8 requires Blackwell": "AssertionError: MXFP# requires Blackwell",
    }.items():
        outcome = "skipped" if message.startswith("Skipped") else "failed"
        end = {"outcome": outcome, "message": message, "where": ""}
        verdict = report.judge_one("test_a.py::test", end, "cpu", reasons)
        assert verdict.reason == name
        assert verdict.outcome == ("upstream" if outcome == "skipped" else "failed")


def test_the_reviewed_list() -> None:
    reasons = report.read_reasons()
    assert all(reason.why for reason in reasons)
    assert len({one.name for one in reasons if one.kind == "unclaimed"}) <= report.FEATURES
    assert not any(
        reason.covers("models/test_gpt_model.py::test_loss", "AssertionError: 1.0 != 2.0", "cpu")
        for reason in reasons
    )


def test_a_list_with_too_many_features_is_refused(tmp_path: Path) -> None:
    entry = '[[reason]]\nkind = "unclaimed"\nname = "{}"\nwhy = "it"\nmessages = ["x"]\n'
    path = tmp_path / "list.toml"
    path.write_text("".join(entry.format(number) for number in range(report.FEATURES + 1)))
    with pytest.raises(ValueError, match="13 unclaimed features; at most 12"):
        report.read_reasons(path)
