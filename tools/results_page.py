"""The tables and charts of docs/results.md, from measured rows that are kept as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from charts import Bar, bars

ROOT: Final = Path(__file__).resolve().parents[1]

#: Model in docs/performance.json -> its name for a reader.
MODELS: Final = {
    "llama-8b": "Llama-3-8B shape",
    "llama-8b-tp2-sp": "the same, TP 2 with SP",
    "llama-8b-dp2": "the same, DP 2",
    "llama-16k": "Llama, 16k tokens",
    "llama-32k": "Llama, 32k tokens",
    "qwen3": "Qwen3 shape",
    "l4-h4096": "GPT, 4 layers of 4096",
    "l4-h4096-dropout": "the same, dropout 0.1",
    "l4-h4096-window-1024": "the same, window of 1024",
    "l4-h4096-8-documents": "the same, 8 sequences a row",
    "gpt-124m-512": "GPT-2 124M, 512 tokens",
    "gpt-124m-512-fp16": "the same, fp16",
    "gpt-124m-512-local-graph": "the same, CUDA graph of a layer",
    "gpt-124m-512-full-graph": "the same, CUDA graph of a step",
    "llama-8b-fp8-tensorwise": "Llama-3-8B, FP8 tensorwise",
    "llama-8b-fp8-delayed": "Llama-3-8B, FP8 delayed",
    "llama-8b-fp8-blockwise": "Llama-3-8B, FP8 blockwise",
    "mla-moe-fp8-tensorwise": "MLA and experts, FP8",
    "mla-moe-ep2-fp8-tensorwise": "MLA and experts, EP 2, FP8",
    "moe-64x6-fp8-tensorwise": "64 experts, top 6, FP8",
    "mla-moe": "MLA and experts",
    "mla-moe-ep2": "MLA and experts, EP 2",
    "moe-8x2": "8 experts, top 2",
    "moe-64x6": "64 experts, top 6",
}


def _read(name: str) -> Any:
    return json.loads((ROOT / name).read_text(encoding="utf-8"))


def speed_chart() -> str:
    """Speed relative to Transformer Engine at its best, a bar for each model."""
    rows = [
        Bar(row["model"], [(row["te"] / row["ours"], 0)], f"{row['te'] / row['ours']:.2f}x")
        for row in _read("docs/results.json")["speed"]
    ]
    return bars("Training speed on one H200, Transformer Engine = 1", rows, mark=1.0)


def speed_table() -> str:
    """Milliseconds of a step, and memory."""
    rows = [
        (
            row["model"],
            f"{row['ours']:.0f} ms",
            f"{row['te']:.0f} ms",
            f"**{row['te'] / row['ours']:.2f}x**",
            f"{row['memory']:.2f}x",
        )
        for row in _read("docs/results.json")["speed"]
    ]
    return _table(("model", "accel_bridge", "Transformer Engine", "speed", "memory"), rows)


def frameworks_table() -> str:
    """What was typed in each framework above Megatron, and what came out."""
    rows = []
    for name in ("results", "h200"):
        for client, entry in _read(f"tests/conformance/clients/{name}.json").items():
            steps = entry["steps"]
            number = next(iter(entry["versions"].values()))
            faults = [name for name in steps if "planted" in name]
            runs = [n for n in steps if n not in faults and not n.startswith("reference")]
            passed = sum(steps[name]["ok"] for name in runs)
            found = sum(steps[name]["ok"] for name in faults)
            rows.append(
                (f"{client}, {number}", f"{passed} of {len(runs)}", f"{found} of {len(faults)}")
            )
    return _table(("framework", "runs that passed", "injected faults found"), rows)


def mindspeed_table() -> str:
    """How far EMULATED NPUs were from the CPU, script by script."""
    rows = [
        (
            f"`{row['script']}`",
            f"{row['difference']:.0e}" if row["difference"] else "0",
            f"{row['planted']:.0e}",
        )
        for row in _read("docs/mindspeed-llm-trained.json")
    ]
    head = ("MindSpeed-LLM script", "EMULATED NPU against CPU", "with an injected fault")
    return _table(head, rows)


def mindspeed_summary() -> str:
    """How many scripts parse, in a sentence."""
    found = _read("docs/mindspeed-llm.json")
    outcomes = list(found["scripts"].values())
    return (
        f"{outcomes.count('parses')} of the {len(outcomes)} scripts in MindSpeed-LLM's "
        f"`examples/mcore` parse; {len(outcomes) - outcomes.count('parses')} are refused by "
        "flag name.\n"
    )


def suites_table() -> str:
    """Other projects' tests that judge the bridge and the emulator."""
    rows = [
        (row["suite"], row["where"], row["result"], row["left"])
        for row in _read("docs/results.json")["suites"]
    ]
    return _table(("suite", "where", "result", "the others"), rows)


def parity_table() -> str:
    """Runs that were compared, and how far apart their losses were."""
    rows = [
        (row["compared"], row["precision"], row["difference"])
        for row in _read("docs/results.json")["parity"]
    ]
    return _table(("compared", "precision", "largest relative difference of the loss"), rows)


def memory_table() -> str:
    """Peak memory of a rank and time of a step, rehearsed and measured."""
    path = "docs/rehearsed-memory.json"
    if not (ROOT / path).is_file():
        return "`python tools/rehearsed_memory.py` compares them.\n"
    times = {
        row["model"]: row["milliseconds"]
        for row in _read("docs/performance.json")
        if row["way"] == "bridge"
    }
    rows = []
    for row in _read(path):
        low, high = (row["step"][name] * 1e3 for name in ("low", "high"))
        cells = [MODELS.get(row["model"], row["model"])]
        cells += [f"{row['rehearsed']:.2f}", f"{row['measured']:.2f}"]
        cells += [f"{row['rehearsed'] / row['measured'] - 1:+.1%}", f"{low:.0f}-{high:.0f}"]
        rows.append([*cells, f"{times[row['model']]:.0f}" if row["model"] in times else ""])
    head = ("model", "rehearsed GB", "measured GB", "difference", "estimated ms", "measured ms")
    return _table(head, rows)


def reliability_table() -> str:
    """Campaigns of faults."""
    rows = [
        (row["what"], f"{row['runs']:,}", row["result"])
        for row in _read("docs/results.json")["reliability"]
    ]
    return _table(("campaign", "runs", "result"), rows)


def preprocess_table() -> str:
    """CPU time of preprocessing, against Megatron's tool."""
    rows = [
        (row["corpus"], f"{row['ours']:.2f} s", f"{row['fast']:.2f} s", f"{row['tool']:.2f} s")
        for row in _read("docs/results.json")["preprocess"]
    ]
    head = (
        "corpus",
        "`accel-bridge preprocess`",
        "main's `preprocess_data_fast.py`",
        "0.19's `preprocess_data.py`",
    )
    return _table(head, rows)


def preprocess_chart() -> str:
    """How many times less CPU time than Megatron 0.19's tool."""
    rows = [
        Bar(row["corpus"], [(row["tool"] / row["ours"], 0)], f"{row['tool'] / row['ours']:.0f}x")
        for row in _read("docs/results.json")["preprocess"]
    ]
    return bars("Preprocessing: CPU time of Megatron 0.19's tool, ours = 1", rows, mark=1.0)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    from generated_docs import table

    return table(tuple(head), (tuple(row) for row in rows))
