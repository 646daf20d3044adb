"""Log-probabilities of the same tokens by Megatron, by Transformers, and in files of engines."""

from __future__ import annotations

import json
import math
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from accel_bridge.errors import BridgeError
from accel_bridge.process.endings import held
from accel_bridge.recording import Plan

#: Before the id, where vLLM was asked for ids instead of text.
_ID: Final = "token_id:"
_HOW: Final = (
    'vLLM: "prompt_logprobs": 0 and "return_token_ids": true in the request; SGLang: '
    '"return_logprob": true and "logprob_start_len": 0'
)
#: Megatron's arguments beside the model, which is the checkpoint's: it trains no step.
_WORDS: Final = """
--finetune --no-load-optim --no-load-rng --exit-on-missing-checkpoint --mock-data --train-iters 1
--lr 1e-5 --micro-batch-size 1 --eval-iters 0 --tokenizer-type NullTokenizer --vocab-size 1
--attention-dropout 0 --hidden-dropout 0 --num-workers 0
--num-layers 1 --hidden-size 1 --num-attention-heads 1 --seq-length 1 --max-position-embeddings 1
""".split()
_TRACKER: Final = "latest_checkpointed_iteration.txt"


class LogprobsError(BridgeError):
    """Log-probabilities cannot be read, computed or compared."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One sequence.

    :param tokens: ids.
    :param logprobs: natural logarithm of each token's probability after those before it, as many
        as there are tokens; None where nobody says (the first one).
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One sequence by two engines, A and B.

    :param tokens: how many both have scored.
    :param mean: of the magnitudes of the differences, in nats.
    :param largest: of them.
    :param perplexities: of A and B.
    :param parts: position and id of the first token that differs by more than the limit, and what
        A and B say of it; None where there is none.
    """

    tokens: int
    mean: float
    largest: float
    perplexities: tuple[float, float]
    parts: tuple[int, int, float, float] | None


# Files


def read_scored(path: Path) -> list[Scored]:
    """The sequences of a file of vLLM, SGLang or this package: one JSON value, or one on each line.

    :raises LogprobsError: it cannot be read, or lacks tokens or log-probabilities.
    """
    try:
        text = path.read_text(encoding="utf-8")
        try:
            documents = [json.loads(text)]
        except ValueError:
            documents = [json.loads(line) for line in text.splitlines() if line.strip()]
        found = [one for document in documents for one in _sequences(document)]
        if not found:
            raise ValueError("no sequence in it has log-probabilities")
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise LogprobsError(
            f"{path} does not hold log-probabilities with their tokens.",
            evidence=f"{type(error).__name__}: {error}"[:200],
            next=_HOW,
        ) from error
    return found


def _sequences(document: Any) -> Iterator[Scored]:
    """Of one document: a list, a response with several choices, or one sequence."""
    if isinstance(document, list):
        for one in document:
            yield from _sequences(one)
    elif "meta_info" in document:
        about = document["meta_info"]
        given = about["input_token_logprobs"]
        if about.get("prompt_tokens", 0) > len(given):
            raise ValueError(f"{about['prompt_tokens']} tokens of the prompt, {len(given)} scored")
        rows = [*given, *about.get("output_token_logprobs", ())]
        yield _scored([row[1] for row in rows], [row[0] for row in rows])
    elif "logprobs" in document and "tokens" in document:
        yield _scored(document["tokens"], document["logprobs"])
    else:
        # A chat's prompt stands beside its choices, a completion's in each of them.
        for choice in document.get("choices") or document.get("outputs") or [{}]:
            yield _of_vllm({**document, **choice})


def _of_vllm(response: Any) -> Scored:
    rows, tokens = response.get("prompt_logprobs") or [], response.get("prompt_token_ids") or []
    # The token itself stands first, before likelier ones.
    tokens = tokens or [next(iter(row)) if row else None for row in rows]
    made, own = _generated(response)
    if rows:
        both = zip(rows, tokens, strict=True)
        values = [row[str(token)]["logprob"] if row else None for row, token in both]
    else:
        tokens = [] if made[: len(tokens)] == list(tokens) else tokens  # an echo has them
        values = [None] * len(tokens)
    return _scored([*tokens, *made], [*values, *own])


def _generated(response: Any) -> tuple[list[Any], list[float | None]]:
    """Tokens and log-probabilities of what was generated, or echoed."""
    found, ids = response.get("logprobs"), response.get("token_ids") or []
    if not found:
        return [], []
    if isinstance(found, list):  # the offline engine's
        return ids, [row[str(token)]["logprob"] for token, row in zip(ids, found, strict=True)]
    if found.get("content") is not None:  # of a chat
        rows = found["content"]
        words, values = [row["token"] for row in rows], [row["logprob"] for row in rows]
    else:
        words, values = found["tokens"], found["token_logprobs"]
    return (ids if len(ids) == len(words) else [_id(word) for word in words]), values


def _id(word: str) -> int:
    if not word.startswith(_ID):
        raise ValueError(f"{word!r} is the text of a token, not its id (return_token_ids)")
    return int(word.removeprefix(_ID))


def _scored(tokens: Sequence[Any], values: Sequence[Any]) -> Scored:
    if None in tokens:
        raise ValueError("the id of the first token is not there (return_token_ids)")
    if len(tokens) != len(values) or all(value is None for value in values):
        known = sum(value is not None for value in values)
        raise ValueError(f"{len(tokens)} tokens and {known} log-probabilities")
    return Scored(
        tuple(map(int, tokens)), tuple(None if value is None else float(value) for value in values)
    )


# Models


def score(
    source: Path, prompts: Sequence[Sequence[int]], precision: str, words: Sequence[str]
) -> list[Scored]:
    """What ``source`` says of ``prompts``; a file says what is in it.

    :param precision: of a model that is computed here, ``float32`` or ``bfloat16``.
    :param words: more arguments for Megatron.
    :raises LogprobsError: it is nothing that scores tokens, or fails to.
    """
    if source.is_file():
        return read_scored(source)
    if (source / _TRACKER).is_file():
        return _megatron(source, prompts, precision, words)
    if (source / "config.json").is_file():
        return _transformers(source, prompts, precision)
    raise LogprobsError(
        f"{source} is nothing that scores tokens.",
        evidence=f"it is no file, and no directory with {_TRACKER} or config.json",
        next="give a JSON file of vLLM or SGLang, a model directory of Hugging Face Transformers, "
        "or the directory that Megatron's --save wrote to",
    )


def _transformers(path: Path, prompts: Sequence[Sequence[int]], precision: str) -> list[Scored]:
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    device, dtype = "cuda" if torch.cuda.is_available() else "cpu", getattr(torch, precision)
    load = transformers.AutoModelForCausalLM.from_pretrained
    try:
        model = load(path, dtype=dtype, local_files_only=True).to(device).eval()
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise LogprobsError(
            f"Transformers cannot load {path}.",
            evidence=str(error).strip().partition("\n")[0][:300],
            next="give a directory that AutoModelForCausalLM.from_pretrained loads",
        ) from error
    found = []
    for prompt in prompts:
        with torch.no_grad():
            tokens = torch.tensor([prompt], device=device)
            scores = model(tokens).logits[0, :-1].float().log_softmax(-1)
        own = scores.gather(1, tokens[0, 1:, None]).flatten().tolist()
        found.append(Scored(tuple(prompt), (None, *own)))
    return found


def _megatron(
    path: Path, prompts: Sequence[Sequence[int]], precision: str, words: Sequence[str]
) -> list[Scored]:
    """By the model that Megatron builds for a training, in place of its first step."""
    with TemporaryDirectory(prefix="accel-bridge-logprobs-") as directory:
        tokens, out = Path(directory) / "tokens.json", Path(directory) / "scored.json"
        tokens.write_text(json.dumps([list(one) for one in prompts]), encoding="utf-8")
        plan = Plan(out=str(out), tokens=str(tokens)).as_word()
        command = [sys.executable, "-m", "accel_bridge", "pretrain", "--runner"]
        command += [shlex.join(["accel_bridge.apps.record", plan]), "--", *_WORDS]
        command += ["--load", str(path.absolute()), *(["--bf16"] if precision != "float32" else [])]
        with held():
            done = subprocess.run(
                [*command, *words], capture_output=True, text=True, errors="replace", check=False
            )
        if done.returncode == 0 and out.is_file():
            return read_scored(out)
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    said = [line[:300] for line in lines if "Error" in line or "error:" in line or "evid" in line]
    raise LogprobsError(
        f"Megatron cannot score tokens with {path}.",
        evidence=[f"status {done.returncode}", *(said or lines)[-3:]],
        next="give Megatron's arguments that the model needs after --",
    )


# Comparison


def compare(
    a: Sequence[Scored], b: Sequence[Scored], names: tuple[str, str], limit: float
) -> list[Prompt]:
    """Compare two engines, sequence by sequence.

    :raises LogprobsError: they have scored other tokens, or none in common.
    """
    for number, (one, two) in enumerate(zip(a, b, strict=False)):
        for place, (x, y) in enumerate(zip(one.tokens, two.tokens, strict=False)):
            if x != y:
                raise _other(names, f"sequence {number}, token {place}: {x} and {y}")
        if len(one.tokens) != len(two.tokens):
            said = f"{len(one.tokens)} and {len(two.tokens)} tokens"
            raise _other(names, f"sequence {number}: {said}")
    if len(a) != len(b):
        raise _other(names, f"{len(a)} and {len(b)} sequences")
    return [_prompt(one, two, names, limit) for one, two in zip(a, b, strict=True)]


def _other(names: tuple[str, str], evidence: str) -> LogprobsError:
    return LogprobsError(
        f"{names[0]} and {names[1]} have scored other tokens.",
        evidence=evidence,
        next="give the tokens of the one to the other as a prompt, and ask for its logprobs",
    )


def _prompt(one: Scored, two: Scored, names: tuple[str, str], limit: float) -> Prompt:
    both = [
        (place, token, x, y)
        for place, (token, x, y) in enumerate(
            zip(one.tokens, one.logprobs, two.logprobs, strict=True)
        )
        if x is not None and y is not None
    ]
    if not both:
        raise _other(names, "no token has a log-probability in both")
    apart = [_apart(x, y) for _, _, x, y in both]
    return Prompt(
        len(both),
        sum(apart) / len(both),
        max(apart),
        (_perplexity([x for _, _, x, _ in both]), _perplexity([y for *_, y in both])),
        next((row for row, far in zip(both, apart, strict=True) if far > limit), None),
    )


def _apart(x: float, y: float) -> float:
    """A number that is none is infinitely far."""
    apart = 0.0 if x == y else abs(x - y)
    return math.inf if math.isnan(apart) else apart


def _perplexity(values: Sequence[float]) -> float:
    mean = -sum(values) / len(values)
    return math.exp(mean) if mean < 700 else math.inf
