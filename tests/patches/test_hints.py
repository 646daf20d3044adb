"""Untrue hints are left out, and nothing else is."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from accel_bridge.patches import hints


def made(function: Any) -> Any:
    context: Any = SimpleNamespace(original=function)
    return hints._without(hints.SOFTMAX)(context)


def test_a_printed_hint_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    def _compile_dependencies() -> int:
        print("> compiling dataset index builder ...")
        print("WARNING: constraints are not met.", hints.SOFTMAX)
        print(f"WARNING: constraints for softmax are not met. {hints.SOFTMAX}", flush=True)
        print("")
        print(">>> done", end="\n", flush=True)
        return 7

    assert made(_compile_dependencies)() == 7
    told = capsys.readouterr().out
    assert hints.SOFTMAX not in told
    assert told.startswith("> compiling dataset index builder ...\n")
    assert told.endswith("\n>>> done\n")


def test_a_warning_is_left_out_and_others_are_not() -> None:
    def _compile_dependencies() -> None:
        warnings.warn(f"Constraints are not met. {hints.SOFTMAX}", stacklevel=1)
        warnings.warn("your data is wrong", stacklevel=1)

    with pytest.warns(UserWarning, match="your data") as seen:
        made(_compile_dependencies)()
    assert [str(one.message) for one in seen] == ["your data is wrong"]
