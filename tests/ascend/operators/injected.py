"""Errors on purpose: each compares an operator with something else, and must be found different."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch_npu
from attention import DENSE, PACKED, Problem, dense, packed
from cases import Case, beside
from fused import second


def either(on_npu: Case, on_cpu: Case) -> Case:
    return lambda device: (on_npu if device == "npu" else on_cpu)(device)


def wrong_gradient(x: Any) -> Any:
    return x * 2 + (x - x.detach()) * 0.01


def one_element(x: Any) -> Any:
    return x.index_add(0, torch.tensor([777]), torch.tensor([0.001]))


def other_half(x: Any) -> Any:
    value, gate = x.chunk(2, -1)
    return torch.nn.functional.silu(gate) * value


class Unscaled(Problem):
    @property
    def scale(self) -> float:
        return 0.5


causal, banded = DENSE["BNSD-2"], DENSE["4"]
CASES: dict[str, Case] = {
    f"injected-{name}": case
    for name, case in {
        "sub_for_add": beside(torch.add, torch.sub, (4,), (4,)),
        "bias_kind": either(second(0), second(1)),
        "bias_start": either(second(2, 3), second(2)),
        "bias_root": either(second(2), second(3)),
        "dtype": beside(lambda x: x + 0, lambda x: x.double(), (4,), gradients=False),
        "gradient": beside(lambda x: x * 2, wrong_gradient, (6,)),
        "one_element": beside(lambda x: x + 0, one_element, (1000,), gradients=False),
        "swiglu_halves": beside(torch_npu.npu_swiglu, other_half, (4, 8), gradients=False),
        "attention_mask": either(dense(causal), dense(Problem())),
        "attention_scale": either(dense(causal), dense(Unscaled(mode=2))),
        "attention_layout": either(dense(Problem("BSH", batch=8)), dense(Problem("SBH", batch=8))),
        "attention_band": either(dense(banded), dense(replace(banded, before=2))),
        "attention_corner": either(dense(DENSE["2-wide"]), dense(DENSE["3-wide"])),
        "attention_heads": either(
            dense(Problem("SBH")), dense(Problem("SBH", heads=2, kv_heads=2, size=16))
        ),
        "attention_window_7": either(packed(PACKED["7"]), packed(replace(PACKED["7"], mode=3))),
        "attention_window_8": either(
            packed(PACKED["8"]), packed(replace(PACKED["8"], before=4, after=0))
        ),
    }.items()
}
