"""Run MindSpeed-LLM's preprocess_data.py on many command lines, in one process.

    python tests/conformance/mindspeed/mindspeed_judge.py CHECKOUT < commands.json

Its imports of MindSpeed, CANN and torch_npu find empty modules: the tool needs nothing of them.
What its adaptor changes in Megatron's index builder is put in place. PYTHONPATH must have Megatron
0.12 and `datasets`. Each command is a list of words; the answer is a JSON list of errors, or null.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import json
import runpy
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: Packages of MindSpeed-LLM that are judged, not replaced.
_KEPT = ("mindspeed_llm.tasks.preprocess", "mindspeed_llm.training.tokenizer")
_ABSENT = ("mindspeed", "acl", "torch_npu", "mindspeed_llm")


class _Empty(types.ModuleType):
    """A module with any name in it; a name called on a function gives the function."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *words, **options: words[0] if words and callable(words[0]) else None


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, checkout: Path) -> None:
        self._checkout = checkout

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.split(".")[0] not in _ABSENT or fullname.startswith(_KEPT):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Empty(spec.name)
        module.__path__ = [str(self._checkout.joinpath(*spec.name.split(".")))]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing: its names are made when they are asked for."""


def main(checkout: Path) -> None:
    """Answer standard input's commands on standard output."""
    sys.meta_path.insert(0, _Finder(checkout))
    sys.path.insert(0, str(checkout))
    indexed_dataset = importlib.import_module("megatron.core.datasets.indexed_dataset")
    wrappers = runpy.run_path(str(checkout / "mindspeed_llm/core/datasets/indexed_dataset.py"))
    builder = indexed_dataset.IndexedDatasetBuilder
    for name, wrapper in (
        ("__init__", "indexed_dataset_builder_init_wrapper"),
        ("add_item", "add_item_wrapper"),
        ("finalize", "finalize_wrapper"),
    ):
        setattr(builder, name, wrappers[wrapper](getattr(builder, name)))
    tool = importlib.import_module("preprocess_data")
    templates = importlib.import_module("mindspeed_llm.tasks.preprocess.templates")
    answers: list[str | None] = []
    for words in json.load(sys.stdin):
        # A template remembers the flags of the first command that named it.
        templates.templates.clear()
        sys.argv = ["preprocess_data.py", *words]
        try:
            tool.main()
            answers.append(None)
        # Whatever its tool raises is its answer to that command.
        except Exception as error:
            answers.append(f"{type(error).__name__}: {error}")
    print("\n" + json.dumps(answers))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
