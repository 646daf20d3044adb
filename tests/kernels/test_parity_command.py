"""``accel-bridge parity kernels``: exit status, tables, JSON, HTML, errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from accel_bridge.apps.cli import parity
from accel_bridge.backends.cpu import kernels as cpu_kernels
from accel_bridge.errors import BridgeError
from accel_bridge.kernels import FLOAT8_QUANTIZE, SWIGLU, Kernel, Kernels

Run = Callable[..., int]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in this process."""
    monkeypatch.delenv("ACCEL_BRIDGE_BACKEND", raising=False)
    # The command may set these for the backend; the fixture puts back what was there.
    for name in ("TORCH_DEVICE_BACKEND_AUTOLOAD", "TORCHDYNAMO_DISABLE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")

    def command(*words: str) -> int:
        return parity.main(["kernels", "--backend", "cpu", "--jobs", "1", *words])

    return command


def inject(monkeypatch: pytest.MonkeyPatch, kernel: Kernel[Any, Any]) -> None:
    monkeypatch.setattr(cpu_kernels, "KERNELS", cpu_kernels.KERNELS.replaced(kernel))


def wrong_swiglu(input: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    output = SWIGLU.reference(input, bias)
    return output * 1.01 if input.dtype == torch.float32 else output


def test_a_good_kernel_gives_status_0_and_every_row(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--kernel", "swiglu", "--kernel", "adamw") == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("swiglu") for line in lines) == 27 + 1  # rows and the summary
    assert sum(line.startswith("adamw") for line in lines) == 10 + 1
    assert lines[-1] == "PASS: 37 rows on cpu (37 passed, 0 failed, 0 outside)"


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_contract_of_which_nothing_was_compared_does_not_pass(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], jobs: str
) -> None:
    monkeypatch.setattr("accel_bridge.apps.parity._run.all_cases", list)
    assert run("--kernel", "swiglu", "--jobs", jobs) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "FAIL: 0 rows on cpu (0 passed, 0 failed, 0 outside, no case of swiglu)"


class DeadProcesses(ThreadPoolExecutor):
    """Processes that die in every call."""

    def __init__(self, jobs: int, mp_context: object) -> None:
        super().__init__(jobs)

    def submit(self, *call: Any) -> Future[Any]:  # type: ignore[override]
        done: Future[Any] = Future()
        done.set_exception(BrokenProcessPool())
        return done


def test_a_process_that_dies_is_an_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accel_bridge.apps.parity._run.ProcessPoolExecutor", DeadProcesses)
    with pytest.raises(BridgeError, match="died"):
        run("--kernel", "adamw", "--kernel", "grouped_matmul", "--jobs", "2")


def test_a_wrong_kernel_gives_status_1_and_stands_first(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    inject(monkeypatch, SWIGLU.kernel(wrong_swiglu, "injected", source="<injected>"))
    page = tmp_path / "parity.html"
    assert run("--kernel", "rms_norm", "--kernel", "swiglu", "--html", str(page)) == 1
    out = capsys.readouterr().out
    first = out.splitlines()[1]
    assert first.startswith("swiglu")
    assert "fail: output" in first
    assert out.splitlines()[-1].startswith("FAIL: ")
    text = page.read_text()
    assert text.index('<tr class="fail">') < text.index('<tr class="pass">')
    assert "&lt;injected&gt;" in text
    checker = HTMLParser()
    checker.feed(text)
    checker.close()


def test_json_holds_every_measurement(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inject(monkeypatch, SWIGLU.kernel(wrong_swiglu, "injected"))
    assert run("--kernel", "swiglu", "--json") == 1
    sequence = json.loads(capsys.readouterr().out)
    assert sequence["passed"] is False
    assert sequence["backend"] == "cpu"
    assert [kernel["contract"] for kernel in sequence["kernels"]] == ["swiglu"]
    rows = sequence["rows"]
    assert len(rows) == 27
    severities = [max(part["ratio"] / part["limit"] for part in row["parts"]) for row in rows]
    assert severities == sorted(severities, reverse=True)
    assert {row["verdict"] for row in rows if row["dtype"] == "float32"} == {"fail"}
    assert {row["verdict"] for row in rows if row["dtype"] != "float32"} == {"pass"}


def test_a_wrong_signature_fails_even_if_the_numbers_agree(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def swiglu(input: torch.Tensor, bias: torch.Tensor | None = None, extra: int = 0) -> object:
        return SWIGLU.reference(input, bias)

    inject(monkeypatch, SWIGLU.kernel(swiglu, "injected"))  # type: ignore[arg-type]
    assert run("--kernel", "swiglu") == 1
    assert "signature of swiglu: parameters" in capsys.readouterr().out


def test_a_contract_that_does_not_exist_is_an_error_with_a_suggestion(run: Run) -> None:
    with pytest.raises(BridgeError, match="did you mean 'swiglu'"):
        run("--kernel", "swigloo")


def test_what_a_backend_refuses_is_outside(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A device without FP8 has no kernel for it, and cannot run the reference either."""
    others = (kernel for kernel in cpu_kernels.KERNELS if kernel.contract is not FLOAT8_QUANTIZE)
    monkeypatch.setattr(cpu_kernels, "KERNELS", Kernels(*others))
    assert run("--kernel", "float8_quantize", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["verdict"] for row in rows} == {"outside"}
    assert "no kernel for float8_quantize" in rows[0]["reason"]
