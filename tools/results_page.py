"""The tables and charts of docs/results.md, from measured rows that are kept as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from charts import Bar, bars, table

ROOT: Final = Path(__file__).resolve().parents[1]

#: Model in docs/performance.json and docs/rehearsed-memory.json -> its name in tables and charts.
NAMES: Final = {
    "llama-8b": "Llama-3-8B shape, 3 layers, 8k tokens",
    "llama-8b-32k": "Llama-3-8B, 32k tokens",
    "llama-8b-8-layers": "Llama-3-8B, 8 layers",
    "llama-16k": "Llama, 16k tokens",
    "llama-70b": "Llama-3-70B shape, 2 layers",
    "qwen3": "Qwen3 1.7B shape, 8 layers",
    "nemotron": "Nemotron shape, squared ReLU",
    "wide-heads": "heads of 256, quick GEGLU",
    "moe-128x8": "Qwen3 MoE shape, 128 experts, top 8",
    "deepseek-v3": "DeepSeek-V3 shape, MLA, 64 experts, MTP",
    "gpt-oss": "gpt-oss shape, 32 experts, windows",
    "mixtral": "Mixtral 8x7B shape, 2 layers",
    "moe-64x6": "64 experts, top 6",
    "mla-moe": "MLA, 16 experts, top 4",
    "llama-8b-fp8-tensorwise": "Llama-3-8B, FP8 tensorwise",
    "llama-8b-fp8-delayed": "Llama-3-8B, FP8 delayed",
    "llama-8b-fp8-blockwise": "Llama-3-8B, FP8 blockwise",
    "llama-8b-8-layers-fp8-tensorwise": "Llama-3-8B, 8 layers, FP8 tensorwise",
    "llama-8b-8-layers-fp8-blockwise": "Llama-3-8B, 8 layers, FP8 blockwise",
    "llama-70b-fp8-tensorwise": "Llama-3-70B, FP8 tensorwise",
    "llama-70b-fp8-delayed": "Llama-3-70B, FP8 delayed",
    "llama-70b-fp8-blockwise": "Llama-3-70B, FP8 blockwise",
    "mla-moe-fp8-tensorwise": "MLA, 16 experts, FP8 tensorwise",
    "mla-moe-fp8-blockwise": "MLA, 16 experts, FP8 blockwise",
    "mixtral-fp8-tensorwise": "Mixtral 8x7B, FP8 tensorwise",
    "moe-64x6-fp8-tensorwise": "64 experts, top 6, FP8 tensorwise",
    "gpt-124m-512": "GPT-2 124M, 512 tokens",
    "gpt-124m-512-fp16": "GPT-2 124M, fp16",
    "gpt-124m-512-local-graph": "GPT-2 124M, CUDA graphs of layers",
    "gpt-124m-512-full-graph": "GPT-2 124M, CUDA graph of a step",
    "llama-8b-tp2-sp": "Llama-3-8B, 2 GPUs, TP 2 with SP",
    "llama-8b-dp2": "Llama-3-8B, 2 GPUs, DP 2",
    "mla-moe-ep2": "MLA, 16 experts, 2 GPUs, EP 2",
    "mla-moe-ep2-fp8-tensorwise": "MLA, 16 experts, 2 GPUs, EP 2, FP8",
    "mla-moe-router-fusion": "MLA, 16 experts, fused router",
    "moe-8x2": "8 experts, top 2",
    "gpt-1.3b": "GPT-3 1.3B shape",
    "delta-net": "gated delta layers",
    "hybrid": "Nemotron-H-8B shape, mamba_ssm",
    "l4-h4096": "GPT, 4 layers of 4096",
    "l4-h4096-dropout": "GPT, 4 layers of 4096, dropout 0.1",
    "l4-h4096-window-1024": "GPT, 4 layers of 4096, window of 1024",
}
#: What is measured beside Transformer Engine.
_BF16: Final = (
    *("llama-8b", "llama-8b-32k", "llama-8b-8-layers", "llama-70b", "qwen3", "nemotron"),
    *("wide-heads", "mixtral", "moe-128x8", "deepseek-v3", "gpt-oss", "moe-64x6", "mla-moe"),
    "hybrid",
)
#: Model -> our way beside Transformer Engine's, where both take a library's own kernels.
_OURS: Final = {"hybrid": "triton"}
_FP8: Final = (
    *(f"llama-8b-fp8-{recipe}" for recipe in ("tensorwise", "delayed", "blockwise")),
    *(f"llama-8b-8-layers-fp8-{recipe}" for recipe in ("tensorwise", "blockwise")),
    *(f"llama-70b-fp8-{recipe}" for recipe in ("tensorwise", "delayed", "blockwise")),
    *("mixtral-fp8-tensorwise", "mla-moe-fp8-tensorwise", "mla-moe-fp8-blockwise"),
    "moe-64x6-fp8-tensorwise",
)
_OTHERS: Final = (
    *("gpt-124m-512", "gpt-124m-512-local-graph", "gpt-124m-512-full-graph"),
    *("llama-8b-tp2-sp", "llama-8b-dp2", "mla-moe-ep2", "mla-moe-ep2-fp8-tensorwise"),
)


def _read(name: str) -> Any:
    return json.loads((ROOT / name).read_text(encoding="utf-8"))


def _steps(models: Iterable[str]) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(name, our row, Transformer Engine's row), measured in one session."""
    rows = {(row["model"], row["way"]): row for row in _read("docs/performance.json")}
    found = [
        (NAMES[model], rows[model, _OURS.get(model, "bridge")], rows[model, "te"])
        for model in models
    ]
    for name, ours, theirs in found:
        assert ours["lease"] == theirs["lease"], name
    return found


def _speed_chart(title: str, models: Iterable[str]) -> str:
    """Speed relative to Transformer Engine at its best, a bar for each model."""
    ratios = [(name, te["milliseconds"] / us["milliseconds"]) for name, us, te in _steps(models)]
    rows = [Bar(name, [(ratio, 0)], f"{ratio:.2f}x") for name, ratio in ratios]
    return bars(f"{title} on one H200, Transformer Engine = 1", rows, mark=1.0)


def speed_table() -> str:
    """Milliseconds of a step, and memory."""
    rows = [
        (
            name,
            f"{ours['milliseconds']:.0f} ms",
            f"{te['milliseconds']:.0f} ms",
            f"**{te['milliseconds'] / ours['milliseconds']:.2f}x**",
            f"{ours['gigabytes'] / te['gigabytes']:.2f}x",
        )
        for name, ours, te in _steps((*_BF16, *_OTHERS))
    ]
    return table(("model", "accel_bridge", "Transformer Engine", "speed", "memory"), rows)


def speed_notes() -> str:
    """What a hybrid model takes without mamba_ssm."""
    rows = {(row["model"], row["way"]): row for row in _read("docs/performance.json")}
    alone = rows["hybrid", "bridge"]
    time, memory = alone["milliseconds"], alone["gigabytes"]
    return f"Nemotron-H without mamba_ssm: {time:.0f} ms, {memory:.0f} GB.\n"


def frameworks_table() -> str:
    """What was typed in each framework above Megatron, and what came out."""
    rows = []
    for name in ("results", "h200"):
        for client, entry in _read(f"tests/conformance/clients/{name}.json").items():
            steps = entry["steps"]
            number = next(iter(entry["versions"].values()))
            faults = [name for name in steps if "injected" in name]
            runs = [n for n in steps if n not in faults and not n.startswith("reference")]
            passed = sum(steps[name]["ok"] for name in runs)
            found = sum(steps[name]["ok"] for name in faults)
            rows.append(
                (f"{client}, {number}", f"{passed} of {len(runs)}", f"{found} of {len(faults)}")
            )
    return table(("framework", "runs that passed", "injected faults found"), rows)


def mindspeed_summary() -> str:
    """How many scripts parse, in a sentence."""
    outcomes = list(_read("docs/mindspeed-llm.json")["scripts"].values())
    return (
        f"{outcomes.count('parses')} of the {len(outcomes)} scripts in MindSpeed-LLM's "
        f"`examples/mcore` parse; {len(outcomes) - outcomes.count('parses')} are refused by "
        "flag name.\n"
    )


def mindspeed_trained() -> str:
    """How far EMULATED NPUs were from the CPU, in a sentence."""
    rows = _read("docs/mindspeed-llm-trained.json")
    differences = [row["difference"] for row in rows]
    return (
        f"{len(rows)} of them, made small, train on EMULATED NPUs: {differences.count(0)} with the "
        f"CPU's losses,\nthe others within {max(differences):.0e}. Every injected fault changes a "
        f"loss by {min(row['injected'] for row in rows):.0e} or more.\n"
    )


#: Lists of docs/results.json that are shown as they are: a field of a row -> its heading.
STATED: Final = {
    "frameworks_left": {"framework": "not run, or failed", "left": "evidence", "whose": "cause"},
    "suites": {"suite": "suite", "where": "where", "result": "result", "left": "the others"},
    "parity": {
        "compared": "compared",
        "precision": "precision",
        "difference": "largest relative difference of the loss",
    },
}


def stated(name: str) -> str:
    """One of :data:`STATED`."""
    heads = STATED[name]
    rows = _read("docs/results.json")[name]
    return table([*heads.values()], ([row[field] for field in heads] for row in rows))


def charts() -> dict[str, str]:
    """The pictures of docs/."""
    return {
        "docs/images/speed.svg": _speed_chart("Training speed in bf16", _BF16),
        "docs/images/fp8.svg": _speed_chart("Training speed in FP8", _FP8),
        "docs/images/memory.svg": _memory_chart(),
        "docs/images/preprocess.svg": _preprocess_chart(),
    }


def _memory_chart() -> str:
    """Peak memory of a rank, measured, and how far a rehearsal was from it."""
    rows = []
    for row in _read("docs/rehearsed-memory.json"):
        name = NAMES.get(row["model"], row["model"])
        difference = f"{row['rehearsed'] / row['measured'] - 1:+.1%}".replace("-0.0", "0.0")
        text = f"{row['measured']:.1f} GB, {difference.replace('+0.0', '0.0')}"
        rows.append(Bar(name, [(row["measured"], 0)], text))
    return bars("Peak memory on an H200, and the rehearsal's difference", rows)


def time_sentence() -> str:
    """How often the measured time of a step lay in the range that a rehearsal estimates."""
    times = {
        row["model"]: row["milliseconds"] / 1e3
        for row in _read("docs/performance.json")
        if row["way"] == "bridge"
    }
    rows = _read("docs/rehearsed-memory.json")
    inside = sum(row["step"]["low"] <= times[row["model"]] <= row["step"]["high"] for row in rows)
    return (
        f"The time of a step lay in the estimated range for {inside} of {len(rows)} models. The "
        "others have experts, or are small.\n"
    )


def reliability_table() -> str:
    """Campaigns of faults."""
    rows = [
        (row["what"], f"{row['runs']:,}", row["result"])
        for row in _read("docs/results.json")["reliability"]
    ]
    return table(("campaign", "runs", "result"), rows)


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
    return table(head, rows)


def _preprocess_chart() -> str:
    """How many times less CPU time than Megatron 0.19's tool."""
    rows = [
        Bar(row["corpus"], [(row["tool"] / row["ours"], 0)], f"{row['tool'] / row['ours']:.0f}x")
        for row in _read("docs/results.json")["preprocess"]
    ]
    return bars("Preprocessing: CPU time of Megatron 0.19's tool, ours = 1", rows, mark=1.0)
