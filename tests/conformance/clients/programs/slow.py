"""Qwen's tokenizer as it is published, with words and merges: python slow.py MODEL OUT

Also rows as Pai-Megatron-Patch reads them, in OUT/rows.json.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

model, out = (Path(word) for word in sys.argv[1:])
shutil.copytree(model, out, dirs_exist_ok=True)
saved = json.loads((out / "tokenizer.json").read_text())
special = {one["content"]: one["id"] for one in saved["added_tokens"]}
words = {word: place for word, place in saved["model"]["vocab"].items() if word not in special}
(out / "vocab.json").write_text(json.dumps(words))
merges = [one if isinstance(one, str) else " ".join(one) for one in saved["model"]["merges"]]
(out / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
settings = json.loads((out / "tokenizer_config.json").read_text())
settings["tokenizer_class"] = "Qwen2Tokenizer"
settings["added_tokens_decoder"] = {
    str(place): {"content": word, "special": True} for word, place in special.items()
}
settings["chat_template"] = (out / "chat_template.jinja").read_text()
(out / "tokenizer_config.json").write_text(json.dumps(settings))
(out / "chat_template.jinja").unlink()
(out / "tokenizer.json").unlink()
row = json.loads(Path("models/sft.jsonl").read_text().splitlines()[0])["messages"]
pair = {"query": row[0]["content"], "response": row[1]["content"]}
(out / "rows.json").write_text(f"{json.dumps(pair)}\n" * 64)
