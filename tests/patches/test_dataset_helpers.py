"""Dataset helpers that are compiled are not compiled again; a split without tokens is refused."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from accel_bridge.errors import BridgeError
from accel_bridge.patches import dataset_helpers


def upstream() -> None:
    raise AssertionError("upstream runs make")


def compile_helpers(directory: Path, monkeypatch: pytest.MonkeyPatch, *, compiled: bool) -> None:
    """The patched function of a Megatron in ``directory``."""
    spec = object() if compiled else None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    module = SimpleNamespace(__file__=str(directory / "utils.py"))
    context: Any = SimpleNamespace(original=upstream, module=module)
    dataset_helpers._make(context)()


def test_compiled_helpers_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Makefile").write_text("default:\n\t@exit 1\n")
    compile_helpers(tmp_path, monkeypatch, compiled=True)


def test_without_a_makefile_the_wheel_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BridgeError, match="no helpers_cpp and no Makefile") as raised:
        compile_helpers(tmp_path, monkeypatch, compiled=False)
    assert "megatron-core" in raised.value.next


def test_they_are_compiled_for_this_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Makefile").write_text("default:\n\t@echo $(LIBEXT) > made\n")
    compile_helpers(tmp_path, monkeypatch, compiled=False)
    assert "cpython" in (tmp_path / "made").read_text()
    (tmp_path / "Makefile").write_text("default:\n\t@echo no pybind11; exit 1\n")
    with pytest.raises(BridgeError, match="no pybind11"):
        compile_helpers(tmp_path, monkeypatch, compiled=False)


class Data(list[int]):
    path_prefix = "small"


def test_a_split_without_tokens_is_refused() -> None:
    split: Any = SimpleNamespace(
        index_split=SimpleNamespace(name="valid"),
        dataset=Data([1]),
        config=SimpleNamespace(split="99,1,0"),
    )
    context: Any = None
    dataset_helpers._check_tokens(context, split, 7)
    with pytest.raises(BridgeError, match="The valid split of the data holds no tokens"):
        dataset_helpers._check_tokens(context, split, 0)
