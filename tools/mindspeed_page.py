"""The tables of docs/mindspeed-llm.md: scripts, flags, and the scripts that were trained."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]

#: Words of the tables in both languages.
_WORDS: Final = {
    "english": {
        "same": "same: Megatron's own flag",
        "no effect": "no effect here",
        "refused": "refused",
        "mapped": "mapped: {}",
        "flags": ("flag", "scripts", "here", "why"),
        "scripts": ("script", "why it is refused"),
        "trained": (
            "script",
            "losses on the CPU",
            "an EMULATED NPU differs by",
            "with a planted error",
            "date",
        ),
    },
    "chinese": {
        "same": "相同：Megatron 自己的参数",
        "no effect": "在这里无作用",
        "refused": "拒绝",
        "mapped": "转换：{}",
        "flags": ("参数", "脚本数", "在这里", "原因（英文）"),
        "scripts": ("脚本", "拒绝的原因（英文）"),
        "trained": ("脚本", "CPU 上的损失", "模拟 NPU 的差", "植入的错误", "日期"),
    },
}


def _read(name: str) -> Any:
    return json.loads((ROOT / "docs" / name).read_text(encoding="utf-8"))


def flags_rows(language: str) -> list[tuple[str, ...]]:
    """A row for each flag that a script uses, the most used first."""
    from accel_bridge.patches.mindspeed._flag import Effect
    from accel_bridge.patches.mindspeed.attention_flags import BECOMES
    from accel_bridge.patches.mindspeed.choices import CHOICES
    from accel_bridge.patches.mindspeed.flags import FLAGS

    words = _WORDS[language]
    values = {"--" + name.replace("_", "-"): sorted(known) for name, known in CHOICES.items()}
    values["--spec"] = ["mindspeed_llm..."]
    rows = []
    counts = Counter(_read("mindspeed-llm.json")["flags"])
    for name, count in counts.most_common():
        flag = FLAGS.get(name)
        if name in BECOMES:
            here, why = str(words["mapped"]).format(BECOMES[name]), "how attention is called"
        elif flag is None:
            here, why = str(words["same"]), ""
            if name in values:
                why = "values of MindSpeed: " + ", ".join(f"`{value}`" for value in values[name])
        elif flag.effect is Effect.MAPPED:
            here, why = str(words["mapped"]).format(flag.becomes or f"`{flag.to}`"), flag.means
        elif flag.effect is Effect.IGNORED:
            here, why = str(words["no effect"]), flag.means
        else:
            here, why = str(words["refused"]), f"{flag.means}; {flag.next}"
            if flag.harmless:
                accepted = ", ".join(f"`{value}`" for value in flag.harmless)
                why += f" ({accepted}: accepted)"
        rows.append((f"`{name}`", str(count), here, why))
    return rows


def scripts_rows() -> list[tuple[str, ...]]:
    """The scripts that are refused, and why."""
    scripts = _read("mindspeed-llm.json")["scripts"]
    return [(f"`{name}`", why) for name, why in scripts.items() if why != "parses"]


def trained_rows() -> list[tuple[str, ...]]:
    """The scripts that were trained on the CPU and on emulated NPUs."""
    return [
        (
            f"`{row['script']}`" + (f", {row['ranks']} ranks" if row["ranks"] > 1 else ""),
            ", ".join(f"{loss:.6f}" for loss in row["losses"]),
            f"{row['difference']:.1e}" if row["outcome"] == "equal" else row["outcome"],
            f"{row['planted']:.1e} (`{row['planted_with']}`)",
            row["date"],
        )
        for row in _read("mindspeed-llm-trained.json")
    ]


def table(name: str, language: str) -> str:
    """One of the tables in Markdown."""
    from generated_docs import table as markdown

    rows = {"flags": lambda: flags_rows(language), "scripts": scripts_rows, "trained": trained_rows}
    return markdown(tuple(_WORDS[language][name]), rows[name]())


def summary(language: str) -> str:
    """How many scripts parse, in a sentence."""
    found = _read("mindspeed-llm.json")
    outcomes = list(found["scripts"].values())
    parses = outcomes.count("parses")
    return {
        "english": f"{parses} of the {len(outcomes)} training scripts parse, the other "
        f"{len(outcomes) - parses} are refused by name (MindSpeed-LLM {found['mindspeed_llm']}, "
        f"Megatron {found['megatron']}, {found['date']}).\n",
        "chinese": f"{len(outcomes)} 个训练脚本中 {parses} 个可以解析，其余 "
        f"{len(outcomes) - parses} 个按名字拒绝（MindSpeed-LLM {found['mindspeed_llm']}，"
        f"Megatron {found['megatron']}，{found['date']}）。\n",
    }[language]
