"""Ask a server for greedy completions: python ask.py URL OUT.json TOKENS PROMPT..."""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

url, out, count, *prompts = sys.argv[1:]


def ask(prompt: str) -> str:
    body = {"model": "EMPTY", "prompt": prompt, "max_tokens": int(count), "temperature": 1.0}
    request = urllib.request.Request(
        f"{url}/v1/completions",
        json.dumps({**body, "top_k": 1, "top_p": 0.0}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        text: str = json.load(answer)["choices"][0]["text"]
    return text


ends = time.monotonic() + 120
while True:
    try:
        ask(prompts[0])
        break
    except urllib.error.HTTPError:
        raise
    except OSError:  # it does not listen yet
        if time.monotonic() > ends:
            raise
        time.sleep(1)
Path(out).write_text(json.dumps([{"text": ask(prompt)} for prompt in prompts]))
