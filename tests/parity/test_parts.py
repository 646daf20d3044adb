"""Operators that are too large for a capsule: a part of each runs again exactly, and tells."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from accel_bridge import kernels
from accel_bridge.apps.capsules.replayed import Judgement, as_json, judge, lines_of_one
from accel_bridge.apps.parity._case import convert_all
from accel_bridge.apps.parity._cases import all_cases
from accel_bridge.apps.parity._run import evaluate
from accel_bridge.kernels.cases import Case
from accel_bridge.recording import Capsule, tape
from accel_bridge.recording.recorder import capsule_of
from accel_bridge.recording.tape import Tape

#: Contracts without a rule: their results need everything, or the file's own scale does.
WHOLE = {
    *("attention_max_logit", "float8_current_quantize", "float8_block_quantize"),
    *("grouped_float8_quantize", "grouped_float8_block_transpose", "grouped_scaled_matmul"),
    *("grouped_scaled_weight_gradient", "grouped_weight_gradient"),
}


def cases() -> dict[str, list[Case]]:
    """Those of every contract, and of every layout of attention."""
    found: dict[str, list[Case]] = {}
    for case in all_cases():
        if case.contract not in WHOLE and case.expected is None:
            layout = next((word for word in case.name.split() if word in kernels.LAYOUTS), "")
            found.setdefault(f"{case.contract} {layout}", []).append(case)
    return found


def recorded(made: Tape, names: tuple[str, ...] = ("",)) -> Capsule:
    """What a tape holds; operators with these prefixes alone."""
    made.tape.operators = [one for one in made.tape.operators if one.name.startswith(names)]
    return Capsule("step", 1, "float32", {}, {}, *capsule_of([made.tape]))


def judged(case: Case, factor: float) -> Judgement:
    """A call of a contract whose results are off by a factor, of which nothing is kept whole."""
    made = Tape("step")
    made._for_parts, made._most = made._room, 64
    contract = kernels.CONTRACTS[case.contract]

    def wrong(*args: Any, **kwargs: Any) -> Any:
        found = contract.reference(*args, **kwargs)
        if factor == 1.0:
            return found
        many = found if isinstance(found, tuple) else (found,)
        with torch.no_grad():
            for name in case.changed:
                for one in kwargs[name] if isinstance(kwargs[name], list) else [kwargs[name]]:
                    one.mul_(factor)
        floats = (torch.float16, torch.bfloat16, torch.float32)
        off = [one if getattr(one, "dtype", None) not in floats else one * factor for one in many]
        return tuple(off) if isinstance(found, tuple) else off[0]

    kernels.watch_kernels(made.contract)
    made.start([])
    try:
        evaluate(case, contract.kernel(wrong, ""), convert_all(case.inputs()))
    finally:
        made.stop()
        kernels.watch_kernels(None)
    return judge(recorded(made, (case.contract,)))


def test_a_part_of_every_contract_replays_and_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tape, "_SMALL", 0)
    found = cases()
    assert {name.split()[0] for name in found} == set(kernels.CONTRACTS) - WHOLE
    assert {f"attention {layout}" for layout in kernels.LAYOUTS} <= set(found)
    for name, some in found.items():
        for case in some:
            clean = judged(case, 1.0)
            assert (clean.findings, clean.skipped) == ((), {}), (name, case.name)
            if clean.parts:
                break
        else:
            pytest.fail(f"no part of any call of {name}")
        wrong = {one.operator.phase for one in judged(case, 1.01).findings}
        assert "forward" in wrong or case.contract == "float8_quantize", (name, case.name)


class Network(torch.nn.Module):
    """A vocabulary, a norm, GEMMs and a softmax of PyTorch's own operators."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Parameter(torch.randn(3000, 64))
        self.linear = torch.nn.Linear(64, 128)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = F.layer_norm(F.embedding(tokens, self.table), (64,))
        inner = F.gelu(self.linear(hidden))
        scores = torch.bmm(inner, inner.transpose(1, 2)).softmax(-1)
        return (scores @ inner).sum(0)


def network(room: int, factor: float = 1.0) -> Capsule:
    """One step of the network; its batched GEMMs are off by a factor."""

    def wrong(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.stack([one @ other for one, other in zip(a, b, strict=True)]) * factor

    made, model = Tape("step", room), Network()
    tokens = torch.randint(3000, (8, 256), generator=torch.Generator().manual_seed(1))
    with torch.library._scoped_library("aten", "IMPL") as library:
        if factor != 1.0:
            library.impl("bmm", wrong, "CPU")
        made.start([])
        try:
            model(tokens).square().sum().backward()
        finally:
            made.stop()
    return recorded(made)


def test_large_operators_of_torch_are_kept_by_parts() -> None:
    room = 8 << 20
    capsule = network(room)
    assert sum(len(one.data or b"") for one in capsule.values) <= room
    parts = {one.name for one in capsule.ranks[0] if one.part_inputs}
    assert {"aten.bmm.default", "aten._softmax.default", "aten.gelu.default"} < parts
    assert {"aten.mm.default", "aten.gelu_backward.default"} < parts
    found = judge(capsule)
    assert not found.findings
    (line,) = (one for one in lines_of_one(capsule, found, "") if "heads" in one)
    assert line.split()[0] == str(found.parts) == str(as_json(capsule, found)["parts"])
    bad = network(room, 1.01)
    found = judge(bad)
    assert found.findings[0].operator.name == "aten.bmm.default"
    assert found.findings[0].error == pytest.approx(0.01, rel=0.1)
    assert any("of which" in line for line in lines_of_one(bad, found, ""))
