"""Every operator of the emulator against PyTorch on the CPU, through the real torch_npu.

Two runners do the work, in child processes: ``operators/samples.py`` takes torch's own samples,
``operators/case_runner.py`` the cases written for what these leave out.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from accel_bridge.backends.ascend.limits import LIMITS

from .conftest import Emulate

RUNNERS = Path(__file__).with_name("operators")
#: Functions that torch_npu does not call.
NEVER_CALLED = {
    "aclnnGroupedMatmulV4": "torch_npu calls V5, but needs to see that V4 is there",
    **dict.fromkeys(
        ("aclnnScaledMaskedSoftmax", "aclnnScaledMaskedSoftmaxBackward"),
        "torch_npu calls them on other chips; here it takes the older interface",
    ),
    **dict.fromkeys(
        (
            "aclop_NPUAllocFloatStatus",
            "aclop_NPUClearFloatStatusV2",
            "aclop_NPUGetFloatStatusV2",
        ),
        "torch_npu calls them where overflow saturates (INF_NAN_MODE_FORCE_DISABLE=1)",
    ),
    "aclnnRingAttentionUpdate": "MindSpeed's own operator calls it; torch_npu calls V2, as it does",
}

#: Functions that need several ranks: collectives_worker.py calls them, in `fused_gemms`.
OF_SEVERAL_RANKS = {
    "aclnnAllGatherMatmul",
    "aclnnAllGatherMatmulV2",
    "aclnnAlltoAllvGroupedMatMul",
    "aclnnGroupedMatMulAlltoAllv",
    "aclnnMatmulAllReduce",
    "aclnnMatmulAllReduceV2",
    "aclnnMatmulReduceScatter",
    "aclnnMatmulReduceScatterV2",
}

Lines = Sequence[dict[str, Any]]


def ran(
    emulate: Emulate, directory: Path, runner: str, *words: str, options: Sequence[str] = ()
) -> Lines:
    """The report of a runner."""
    report = directory / f"{runner}.jsonl"
    ended = emulate(
        *(RUNNERS / f"{runner}.py", report, *words),
        warm=True,
        options=options,
        # An error is raised where the operator was called; results do not depend on threads.
        ASCEND_LAUNCH_BLOCKING="1",
        ASCEND_EMULATOR_TRACE=str(directory / "trace"),
        OMP_NUM_THREADS="1",
    )
    assert ended.returncode == 0, ended.output
    assert "[EMULATED Ascend]" in ended.output
    return [json.loads(line) for line in report.read_text().splitlines()]


@pytest.fixture(scope="module")
def samples(emulate: Emulate, tmp_path_factory: pytest.TempPathFactory) -> Lines:
    return ran(emulate, tmp_path_factory.mktemp("samples"), "samples")


@pytest.fixture(scope="module")
def cases(emulate: Emulate, tmp_path_factory: pytest.TempPathFactory) -> Lines:
    return ran(emulate, tmp_path_factory.mktemp("cases"), "case_runner")


@pytest.fixture(scope="module")
def cases_950(emulate: Emulate, tmp_path_factory: pytest.TempPathFactory) -> Lines:
    """Attention on a 950, for which torch_npu calls other functions."""
    directory = tmp_path_factory.mktemp("cases_950")
    return ran(emulate, directory, "case_runner", "attention", options=("--chip", "950"))


def test_a_missing_operator_is_named(emulate: Emulate) -> None:
    """Without ASCEND_LAUNCH_BLOCKING, too: the error comes up later, and from another thread."""
    script = (
        "import torch; x = torch.randn(3).npu(); y = torch.nn.functional.hardswish(x); "
        "torch.npu.synchronize()"
    )
    ended = emulate("-c", script, warm=True)
    assert ended.returncode != 0
    assert "the operator HardSwish is not emulated; add a row for aclnnHardswish" in ended.output
    assert "RuntimeError" in ended.output


def functions(libraries: Path) -> set[str]:
    """The operators that the library defines."""
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(libraries / "libopapi.so")],
        capture_output=True,
        text=True,
        check=True,
    )
    names = {line.split()[-1] for line in listing.stdout.splitlines()}
    return {
        name
        for name in names
        if name.startswith(("aclnn", "aclop_")) and not name.endswith("GetWorkspaceSize")
    }


def wrong(lines: Lines) -> list[str]:
    return [
        f"{line['name']}: {line['status']}: {line['reason']}"
        for line in lines
        if line["status"] != "passed"
    ]


def test_samples_of_torch(samples: Lines) -> None:
    assert len(samples) > 600
    assert wrong(samples) == []


def test_cases(cases: Lines) -> None:
    ours = [line for line in cases if not line["name"].startswith("injected-")]
    assert len(ours) > 300
    assert wrong(ours) == [], "\n".join(wrong(ours))


def test_injected_faults_are_found(cases: Lines) -> None:
    injected = {line["name"]: line for line in cases if line["name"].startswith("injected-")}
    assert len(injected) >= 12
    for name, line in injected.items():
        assert line["status"] == "different", name


def test_cases_of_a_950(cases_950: Lines) -> None:
    assert len(cases_950) > 20
    assert wrong(cases_950) == []


def test_every_function_is_reached(
    samples: Lines, cases: Lines, cases_950: Lines, libraries: Path
) -> None:
    """By a check that passed; a row that nothing can reach must go."""
    reached = {
        name
        for line in (*samples, *cases, *cases_950)
        if line["status"] == "passed"
        for name in line["ran"]
    }
    defined = functions(libraries)
    assert len(defined) > 350
    assert defined - reached == set(NEVER_CALLED) | OF_SEVERAL_RANKS, " ".join(
        sorted((defined - reached) ^ (set(NEVER_CALLED) | OF_SEVERAL_RANKS))
    )


#: A 910C has the rows of a 910B but for numbers of ranks.
MACHINES = ("910B:8.5.0", "910B:8.0.0", "950:8.5.0")
#: Refused by torch_npu itself, before CANN is asked.
OWN_CHECKS = {"layout", "mode", "packed_mode"}


@pytest.fixture(scope="module")
def walked(emulate: Emulate, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Lines]:
    """Each machine's walk along the table."""
    found = {}
    for machine in MACHINES:
        chip, cann = machine.split(":")
        report = tmp_path_factory.mktemp("edges") / "report.json"
        ended = emulate(
            *("-m", "accel_bridge", "ascend-limits", "--json", report),
            warm=True,
            options=("--chip", chip, "--cann", cann),
            ASCEND_EMULATOR_LOOKS="1",
        )
        assert ended.returncode == 0, ended.output
        found[machine] = json.loads(report.read_text())["calls"]
    return found


@pytest.mark.parametrize("machine", MACHINES)
def test_the_edges_of_the_table(walked: dict[str, Lines], machine: str) -> None:
    """What it allows is accepted, and one step further is refused with the row's own words."""
    lines = walked[machine]
    assert len(lines) > 100
    assert [line for line in lines if line["contradicts"]] == []
    for line in lines:
        if line["side"] == "outside":
            assert line["rule"] in line["said"] or line["key"] in OWN_CHECKS, line


def test_every_row_refuses_something(walked: dict[str, Lines]) -> None:
    refused = {
        (line["operator"], line["key"])
        for lines in walked.values()
        for line in lines
        if line["side"] == "outside"
    }
    rows = {(row.operator, row.key) for row in LIMITS}
    # collectives_worker.py has the ranks for these.
    elsewhere = {row for row in rows if row[1] == "bias"} | {("npu_mm_all_reduce_base", "ranks")}
    assert rows - refused <= elsewhere
