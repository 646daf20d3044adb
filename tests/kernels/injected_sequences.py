"""Kernels of the sequence contracts with one error each."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.nn import functional

from accel_bridge.kernels import CONTRACTS

from .injected import Function, with_changes, with_result

_CONVOLUTION: Final = "causal_convolution"
_SCAN: Final = "state_space_scan"
_DELTA: Final = "gated_delta_rule"


def _interleaved(name: str) -> Any:
    """Heads take turns with the groups, instead of standing together."""

    def change(options: dict[str, Any]) -> torch.Tensor:
        tensor: torch.Tensor = options[name]
        return tensor.repeat(1, 1, 2, 1) if tensor.shape[2] == 2 else tensor

    return change


def _sigmoid_gate(**options: Any) -> Any:
    gate = options.pop("gate")
    output, state = CONTRACTS[_SCAN].reference(**options, gate=None)
    return (output if gate is None else output * gate.sigmoid()), state


def _shifted(name: str) -> Any:
    return lambda options: options[name].roll(1, 1)


def _rounded_state(result: Any, options: dict[str, Any]) -> Any:
    output, state = result
    return output, state.bfloat16().to(state.dtype)


def _decayed_after_the_write(**options: Any) -> Any:
    """The old value is read from a state that has not decayed yet."""
    beta, log_decay = options["beta"], options["log_decay"]
    late = functional.pad(log_decay, (0, 0, 1, 0))[:, :-1]
    return CONTRACTS[_DELTA].reference(**{**options, "log_decay": late, "beta": beta})


#: contract -> name -> (kernel, part that must be named, words of a case that must fail).
INJECTED: Final[dict[str, dict[str, tuple[Function, str, str]]]] = {
    _CONVOLUTION: {
        "taps in reverse": (
            with_changes(_CONVOLUTION, weight=lambda o: o["weight"].flip(1)),
            "output",
            "s=64",
        ),
        "sees the next position": (
            with_changes(_CONVOLUTION, input=lambda o: functional.pad(o["input"], (0, 1))[..., 1:]),
            "output",
            "s=5",
        ),
        "bias ignored": (with_changes(_CONVOLUTION, bias=lambda o: None), "grad bias", "s=64"),
        "no activation": (with_changes(_CONVOLUTION, silu=lambda o: False), "output", "s=64"),
        "sequences mixed": (
            with_changes(_CONVOLUTION, sequence_ids=lambda o: None),
            "output",
            "packed",
        ),
        "state ignored": (
            with_changes(
                _CONVOLUTION,
                initial_state=lambda o: (
                    None if o["initial_state"] is None else o["initial_state"] * 0
                ),
            ),
            "output",
            "initial state",
        ),
        "in bfloat16": (
            with_changes(_CONVOLUTION, weight=lambda o: o["weight"].bfloat16()),
            "output",
            "s=150",
        ),
        "half of the weight's gradient": (
            with_changes(_CONVOLUTION, weight=lambda o: (o["weight"] + o["weight"].detach()) / 2),
            "grad weight",
            "s=150",
        ),
    },
    _SCAN: {
        "decay one position late": (
            with_changes(_SCAN, log_decay=_shifted("log_decay")),
            "output",
            "s=150",
        ),
        "groups take turns": (
            with_changes(_SCAN, write=_interleaved("write"), read=_interleaved("read")),
            "output",
            "s=64",
        ),
        "step ignored": (
            with_changes(_SCAN, step=lambda o: None if o["step"] is None else o["step"] * 0 + 1),
            "output",
            "s=5",
        ),
        "skip ignored": (
            with_changes(_SCAN, skip=lambda o: None if o["skip"] is None else o["skip"] * 0),
            "output",
            "s=64",
        ),
        "gate without its factor": (_sigmoid_gate, "output", "s=64"),
        "sequences mixed": (with_changes(_SCAN, sequence_ids=lambda o: None), "output", "packed"),
        "a border one position late": (
            with_changes(
                _SCAN,
                sequence_ids=lambda o: (
                    None
                    if o["sequence_ids"] is None
                    else functional.pad(o["sequence_ids"], (1, 0))[:, :-1]
                ),
            ),
            "output",
            "packed",
        ),
        "state ignored": (
            with_changes(
                _SCAN,
                initial_state=lambda o: (
                    None if o["initial_state"] is None else o["initial_state"] * 0
                ),
            ),
            "output",
            "initial state",
        ),
        "state in bfloat16": (with_result(_SCAN, _rounded_state), "state", "s=150"),
        "half of the decay's gradient": (
            with_changes(_SCAN, log_decay=lambda o: (o["log_decay"] + o["log_decay"].detach()) / 2),
            "grad log_decay",
            "s=150",
        ),
    },
    _DELTA: {
        "scale ignored": (with_changes(_DELTA, scale=lambda o: 1.0), "output", "s=1"),
        "overwrites as a whole": (
            with_changes(_DELTA, beta=lambda o: torch.ones_like(o["beta"]) + 0 * o["beta"]),
            "output",
            "s=64",
        ),
        "decay one position late": (_decayed_after_the_write, "output", "s=150"),
        "heads take turns": (
            with_changes(_DELTA, query=_interleaved("query"), key=_interleaved("key")),
            "output",
            "s=64",
        ),
        "sequences mixed": (with_changes(_DELTA, sequence_ids=lambda o: None), "output", "packed"),
        "state ignored": (
            with_changes(
                _DELTA,
                initial_state=lambda o: (
                    None if o["initial_state"] is None else o["initial_state"] * 0
                ),
            ),
            "output",
            "initial state",
        ),
        "state in bfloat16": (with_result(_DELTA, _rounded_state), "state", "s=150"),
        "keys in bfloat16": (
            with_changes(_DELTA, key=lambda o: o["key"].bfloat16().to(o["value"].dtype)),
            "output",
            "keys alike",
        ),
        "beta without its part in the inverse": (
            with_changes(_DELTA, beta=lambda o: (o["beta"] + o["beta"].detach()) / 2),
            "grad beta",
            "s=150",
        ),
    },
}
