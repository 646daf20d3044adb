"""The checks of frameworks with Megatron's own training loop, and of workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conformance.clients import megatron_bridge, ray_workers, verl
from conformance.clients.steps import Failed, Work


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path, tmp_path)


def iterations(*losses: float, start: int = 1) -> str:
    return "".join(
        f" [2026-11-22 18:07:24] iteration {step:8}/       4 | consumed samples: {4 * step:12} | "
        f"lm loss: {loss:.6E} | loss scale: 1.0 |\n"
        for step, loss in enumerate(losses, start=start)
    )


def steps(*losses: float, start: int = 1) -> str:
    return "".join(
        f"step:{step} - train/loss:{loss} - train/grad_norm:1.5 - train/lr:0.001\n"
        for step, loss in enumerate(losses, start=start)
    )


@pytest.mark.parametrize(
    ("module", "lines"), [(megatron_bridge, iterations), (verl, steps)], ids=["iterations", "steps"]
)
class TestLearns:
    def test_what_falls_as_another_does_passes(self, work: Work, module, lines) -> None:  # type: ignore[no-untyped-def]
        work.log("one rank").write_text(lines(5.5, 5.4, 5.3, 5.2))
        check = module.learns("one rank")
        assert "5.0e-05 from `one rank`" in check(work, lines(5.5, 5.4, 5.30005, 5.2))
        resumed = module.learns("one rank", 3)
        assert "0.0e+00" in resumed(work, lines(5.3, 5.2, start=3))
        for wrong in (lines(5.5, 5.4, 5.31, 5.2), lines(5.3, 5.2, start=3), "Traceback"):
            with pytest.raises(Failed):
                check(work, wrong)
        with pytest.raises(Failed):
            resumed(work, lines(5.5, 5.4, 5.3, 5.2))

    def test_what_does_not_fall_is_noticed(self, work: Work, module, lines) -> None:  # type: ignore[no-untyped-def]
        for wrong in (lines(5.5, 5.5), lines(5.5), lines(5.5, float("nan")), ""):
            with pytest.raises(Failed):
                module.learns()(work, wrong)

    def test_an_injected_fault_must_show(self, work: Work, module, lines) -> None:  # type: ignore[no-untyped-def]
        work.log("right").write_text(lines(5.5, 5.4))
        check = module.learns("right", far=True)
        assert "1.0e-02" in check(work, lines(5.5, 5.39))
        with pytest.raises(Failed):
            check(work, lines(5.5, 5.4))


def test_the_first_loss_is_that_of_transformers(work: Work) -> None:
    printed = "TRANSFORMERS 5.5000400\n" + iterations(5.5, 5.4)
    assert "4.0e-05 from Hugging Face's" in megatron_bridge.learns()(work, printed)
    with pytest.raises(Failed):
        megatron_bridge.learns()(work, printed.replace("5.5000400", "5.5010000"))


@pytest.mark.parametrize("wrong", [{"logits": 1e-3}, {"injected": 0.0}, {"changed": ["a"]}])
def test_a_conversion_that_changed_something_is_noticed(
    work: Work, wrong: dict[str, object]
) -> None:
    report = {"logits": 1e-7, "injected": 0.1, "tensors": 3, "changed": []}
    assert "3 of 3 tensors" in megatron_bridge.converts(work, f"REPORT {json.dumps(report)}\n")
    with pytest.raises(Failed):
        megatron_bridge.converts(work, f"REPORT {json.dumps({**report, **wrong})}\n")


def test_a_worker_without_the_bridge_is_noticed(work: Work) -> None:
    def lines(**wrong: object) -> str:
        rows = {
            place: {"process": number, "device": "cpu", "active": True}
            for number, place in enumerate(ray_workers.PLACES)
        }
        rows["actor"].update(wrong)
        return "".join(f"FOUND {place} {row}\n" for place, row in rows.items())

    assert "6 processes" in ray_workers.everywhere(work, lines())
    for wrong in (lines(active=False), lines(device="meta"), lines().replace("FOUND spawn", "x")):
        with pytest.raises(Failed):
            ray_workers.everywhere(work, wrong)
