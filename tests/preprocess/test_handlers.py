"""Data handlers: what MindSpeed-LLM's own tool wrote, byte for byte, and what is refused.

``answers.json`` has digests of that tool's output on 1,000 made-up samples for every case
(`make mindspeed-data` compares all of them again); some are tried here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from accel_bridge.pretrain.preprocess import _handler_encoder as handler_tokenizer_module
from accel_bridge.pretrain.preprocess._prompt_templates import _OWN, _read_file

from .mindspeed import ours, samples
from .mindspeed.cases import CASES, Case, digest
from .mindspeed.ours import preprocess as make

ANSWERS = json.loads((Path(__file__).parent / "mindspeed/answers.json").read_text())
TEMPLATES = _read_file(_OWN)
BY_NAME = {case.name: case for case in CASES}
CHOSEN = (
    "alpaca-qwen3",
    "sharegpt-llama3",
    "thinking-true-glm4_moe",
    "neat-qwen3",
    "pack-qwen_lf",
    "chat-qwen",
    "pairs-llama2",
    "prompts-glm4",
    "text-eod",
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    return samples.write_tokenizer(tmp_path_factory.mktemp("handlers") / "tokenizer")


@pytest.fixture(autouse=True)
def _transformers_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler_tokenizer_module, "ask_transformers", ours.ask_here)


def test_the_judge_was_asked_about_every_case_and_template() -> None:
    assert set(ANSWERS["digests"]) == set(BY_NAME)
    assert ANSWERS["samples"] == 1000
    used = {
        case.words[case.words.index("--prompt-type") + 1]
        for case in CASES
        if case.keys != ("text",)
    }
    assert used == set(TEMPLATES)


@pytest.mark.parametrize("name", CHOSEN)
def test_bytes_are_those_of_mindspeed_llm(name: str, tokenizer: Path, tmp_path: Path) -> None:
    case = BY_NAME[name]
    data = samples.write(case.data, ANSWERS["samples"], tmp_path)
    assert make(case, data, tmp_path / "ours", tokenizer) == ANSWERS["digests"][name]


def test_every_format_gives_the_same_bytes(tokenizer: Path, tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    case = BY_NAME["alpaca-qwen"]
    records = samples.alpaca(60)
    listed, lines, table = (tmp_path / name for name in ("a.json", "a.jsonl", "a.parquet"))
    listed.write_text(json.dumps(records, indent=2), encoding="utf-8")
    lines.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), table)
    found = [
        make(case, path, tmp_path / path.suffix[1:], tokenizer) for path in (listed, lines, table)
    ]
    assert len(found[0]) == 64
    assert len(set(found)) == 1
    small = Case(case.name, case.data, (*case.words, "--workers", "2", "--block-bytes", "900"))
    assert make(small, listed, tmp_path / "blocks", tokenizer) == found[0]


QWEN = ("--handler-name", "AlpacaStyleInstructionHandler", "--prompt-type", "qwen")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--handler-name", "MossHandler"), "--handler-name MossHandler is not known here"),
        (("--handler-name", "LlamaFactoryInstructionHandler"), "AlpacaStyleInstructionHandler"),
        (QWEN[:2], "needs a prompt template"),
        ((*QWEN[:3], "qwen9"), "--prompt-type qwen9 is not known"),
        ((*QWEN[:3], "magistral"), "templates.json"),
        ((*QWEN, "--prompt-type-path", "/no/file"), "--prompt-type-path is no list"),
        ((*QWEN, "--pack"), "--pack fills rows of a length"),
        ((*QWEN, "--neat-pack", "--seq-length", "64"), "--neat-pack refines --pack"),
        ((*QWEN, "--map-keys", "[1]"), "--map-keys is no object"),
        ((*QWEN, "--map-keys", '{"messages": "m"}'), "has no part 'messages'"),
        ((*QWEN, "--map-keys", '{"response": "answer"}'), "no key 'answer'"),
        (("--handler-name", "GeneralPretrainHandler", "--pack"), "rows of plain text"),
        (("--prompt-type", "qwen"), "is for a data handler"),
        ((*QWEN, "--seq-length", "-3"), "--seq-length: '-3' is no whole number from 1"),
        ((*QWEN, "--tokenizer-type", "NullTokenizer"), "need a Hugging Face tokenizer"),
    ],
)
def test_what_cannot_be_done_is_said_in_three_parts(
    words: tuple[str, ...],
    said: str,
    tokenizer: Path,
    tmp_path: Path,
    run: Callable[..., SimpleNamespace],
) -> None:
    data = samples.write("alpaca", 5, tmp_path)
    kind = () if "--tokenizer-type" in words else ("--tokenizer-type", "PretrainedFromHF")
    done = run(
        *("--input", data, "--output-prefix", tmp_path / "out", *kind),
        *("--tokenizer-name-or-path", tokenizer, *words),
    )
    assert done.code == 2
    assert said in done.err
    assert "evidence:" in done.err
    assert "next:" in done.err
    assert not list(tmp_path.glob("out*"))


def test_a_template_of_ones_own(tokenizer: Path, tmp_path: Path) -> None:
    """The same format under another name gives the same bytes."""
    mine: dict[str, Any] = {**TEMPLATES["qwen3"], "name": "mine"}
    file = tmp_path / "templates.json"
    file.write_text(json.dumps([mine]), encoding="utf-8")
    data = samples.write("plain-talk", 40, tmp_path)
    case = BY_NAME["talk-qwen3"]
    words = ("mine" if word == "qwen3" else word for word in case.words)
    named = Case("mine", case.data, (*words, "--prompt-type-path", str(file)))
    found = make(named, data, tmp_path / "mine", tokenizer)
    assert found == make(case, data, tmp_path / "known", tokenizer)
    assert found == digest(tmp_path / "known", case)
