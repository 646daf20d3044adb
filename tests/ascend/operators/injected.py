"""Errors on purpose: each compares an operator with something else, and must be found different."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch_npu
from attention import DENSE, PACKED, Problem, dense, packed
from cases import Case, leaf, rand, with_gradients
from fused import second


def either(on_npu: Case, on_cpu: Case) -> Case:
    return lambda device: (on_npu if device == "npu" else on_cpu)(device)


def sub_for_add(device: str) -> Any:
    x, y = rand(device, 4), rand(device, 4)
    return x + y if device == "npu" else x - y


def wrong_dtype(device: str) -> Any:
    x = rand(device, 4)
    return x if device == "npu" else x.double()


def wrong_gradient(device: str) -> Any:
    x = leaf(device, 6)
    y = x * 2 if device == "npu" else x * 2 + (x - x.detach()) * 0.01
    return with_gradients(y, (x,))


def one_element(device: str) -> Any:
    x = rand(device, 1000)
    if device == "cpu":
        x[777] += 0.001
    return x


def other_half(device: str) -> Any:
    x = rand(device, 4, 8)
    if device == "npu":
        return torch_npu.npu_swiglu(x)
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
        "sub_for_add": sub_for_add,
        "bias_kind": either(second(0), second(1)),
        "bias_start": either(second(2, 3), second(2)),
        "bias_root": either(second(2), second(3)),
        "dtype": wrong_dtype,
        "gradient": wrong_gradient,
        "one_element": one_element,
        "swiglu_halves": other_half,
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
