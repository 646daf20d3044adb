"""Checks for NaN that are read once an iteration: what upstream would do, a little later."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from patched_function import patched

from accel_bridge.backends.cpu import CpuBackend
from accel_bridge.patches import loss_checks
from accel_bridge.patching.host import Host

pytestmark = pytest.mark.megatron
NAN = "found NaN in local forward loss calculation"


@pytest.fixture
def module() -> Any:
    return pytest.importorskip("megatron.core.rerun_state_machine")


@pytest.fixture
def machine(module: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A state machine with both patches, which takes host tensors for the device's."""
    kind = module.RerunStateMachine
    host = Host(CpuBackend(), lambda args: None, print, lambda: None)
    for patch in loss_checks.PATCHES:
        name = patch.target.rpartition(".")[2]
        new = patched([patch], getattr(kind, name), module=module, owner=kind, host=host)
        monkeypatch.setattr(kind, name, new)
    monkeypatch.setattr(loss_checks, "_on_device", lambda result: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return kind(mode=module.RerunMode.DISABLED)


def check(machine: Any, loss: float, message: str = NAN) -> None:
    weight = torch.ones((), requires_grad=True)
    machine.validate_result(
        result=weight * loss, rejection_func=torch.isnan, message=message, tolerance=0.0
    )


def test_a_good_iteration_reads_nothing_before_its_end(machine: Any) -> None:
    for _ in range(3):
        assert machine.should_run_forward_backward(None)
        check(machine, 1.0)
        check(machine, 2.0)
        kept = machine.__dict__[loss_checks._UNREAD]
        assert len(kept) == 2
        assert not kept[0][0].requires_grad
        assert not machine.should_run_forward_backward(None)
        assert loss_checks._UNREAD not in machine.__dict__


def test_a_loss_that_is_no_number_stops_before_the_optimizer(machine: Any) -> None:
    assert machine.should_run_forward_backward(None)
    check(machine, 1.0, "the first micro batch")
    check(machine, float("nan"), "the second micro batch")
    with pytest.raises(RuntimeError, match=r"Unexpected result nan.*the second micro batch"):
        machine.should_run_forward_backward(None)


def test_a_rejected_result_is_repeated_as_upstream_does(
    machine: Any, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.mode = module.RerunMode.VALIDATE_RESULTS
    machine.first_iteration_complete = True
    monkeypatch.setattr(machine, "_save_state", lambda: None)
    monkeypatch.setattr(machine, "_restore_state", lambda: None)
    monkeypatch.setattr(machine, "_reduce_any", lambda flag: flag)
    monkeypatch.setattr(machine, "_log_validation_error_to_file", lambda **_: None)
    assert machine.should_run_forward_backward(None)
    check(machine, 1.0)
    check(machine, float("nan"))
    assert machine.should_run_forward_backward(None)
    assert machine.state == module.RerunState.RERUNNING_IN_PLACE
    assert machine.failed_validation_call.sequence == 2, "the second check of this message"


def test_what_upstream_must_see_at_once_is_not_kept(machine: Any, module: Any) -> None:
    machine.state = module.RerunState.NOT_RUNNING_YET  # an evaluation
    with pytest.raises(RuntimeError, match="Unexpected result"):
        check(machine, float("nan"))
    machine.state = module.RerunState.INITIAL_RUN
    seen: list[Any] = []
    machine.validate_result(
        result=torch.ones(()), rejection_func=lambda one: seen.append(one), message="spiky"
    )
    assert len(seen) == 1
