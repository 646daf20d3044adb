"""``accel-bridge parity logprobs``: Megatron, Transformers and files, and errors that it finds."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from plugin_site import Python

from accel_bridge.apps.cli.main import main
from accel_bridge.apps.logprobs import LogprobsError, Scored, compare, read_scored
from accel_bridge.apps.testing import FinishedRuns

#: A Llama, untrained, with weights so large that attention is not even.
LLAMA = """
--num-layers 2 --hidden-size 64 --num-attention-heads 4 --group-query-attention
--num-query-groups 2 --ffn-hidden-size 96 --swiglu --normalization RMSNorm --norm-epsilon 1e-6
--disable-bias-linear --position-embedding-type rope --rotary-base 20000
--untie-embeddings-and-output-weights --seq-length 64 --max-position-embeddings 64
--micro-batch-size 1 --global-batch-size 2 --tokenizer-type NullTokenizer --vocab-size 255
--attention-dropout 0 --hidden-dropout 0 --mock-data --num-workers 0 --lr 1e-3 --train-iters 1
--eval-iters 0 --eval-interval 1000 --init-method-std 0.1 --ckpt-format torch_dist
""".split()
TOKENS = (5, 17, 200, 3)
VALUES = (None, -1.5, -0.25, -3.0)
EXACT = Scored(TOKENS, VALUES)


def entry(token: int, value: float | None, *more: int) -> dict[str, Any] | None:
    """A row of vLLM's: the token, then likelier ones."""
    rows = {str(one): {"logprob": -0.1, "rank": 1} for one in more}
    return None if value is None else {str(token): {"logprob": value, "rank": 9}, **rows}


ROWS = [entry(token, value, 77) for token, value in zip(TOKENS, VALUES, strict=True)]
NAMED = [f"token_id:{token}" for token in TOKENS]
FORMS = {
    "ours": [{"tokens": TOKENS, "logprobs": VALUES}],
    "vLLM completion": {"choices": [{"prompt_logprobs": ROWS, "prompt_token_ids": TOKENS}]},
    "vLLM chat": {
        "prompt_logprobs": ROWS[:3],
        "prompt_token_ids": TOKENS[:3],
        "choices": [{"logprobs": {"content": [{"token": NAMED[3], "logprob": VALUES[3]}]}}],
    },
    "vLLM echo": {"choices": [{"logprobs": {"tokens": NAMED, "token_logprobs": VALUES}}]},
    "vLLM generated ids": {
        "choices": [
            {
                "prompt_logprobs": ROWS[:2],
                "prompt_token_ids": TOKENS[:2],
                "token_ids": TOKENS[2:],
                "logprobs": {"tokens": ["a", "b"], "token_logprobs": VALUES[2:]},
            }
        ]
    },
    "vLLM offline": {
        "prompt_logprobs": ROWS[:3],
        "prompt_token_ids": TOKENS[:3],
        "outputs": [{"token_ids": TOKENS[3:], "logprobs": ROWS[3:]}],
    },
    "SGLang": {
        "text": "",
        "meta_info": {
            "prompt_tokens": 3,
            "input_token_logprobs": [[VALUES[n], TOKENS[n], None] for n in range(3)],
            "output_token_logprobs": [[VALUES[3], TOKENS[3], "x"]],
        },
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read(form: str, tmp_path: Path) -> None:
    file = tmp_path / "scored.json"
    file.write_text(json.dumps(FORMS[form]))
    assert read_scored(file) == [EXACT]
    file.write_text("\n".join(json.dumps(FORMS[form]) for _ in range(2)))
    assert read_scored(file) == [EXACT, EXACT]


@pytest.mark.parametrize(
    ("document", "evidence"),
    [
        ("no JSON", "JSONDecodeError"),
        (
            {"choices": [{"logprobs": {"tokens": ["Hi", "!"], "token_logprobs": [None, -1]}}]},
            "'Hi'",
        ),
        ({"choices": [{"prompt_logprobs": ROWS}]}, "first token"),
        ({"choices": [{"text": "Hi"}]}, "0 tokens"),
        ({"meta_info": {"prompt_tokens": 9, "input_token_logprobs": [[-1, 5, None]]}}, "9 tokens"),
        ([], "no sequence"),
        (3, "TypeError"),
    ],
)
def test_what_cannot_be_read_says_what_to_ask_for(
    document: object, evidence: str, tmp_path: Path
) -> None:
    file = tmp_path / "scored.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    with pytest.raises(LogprobsError) as caught:
        read_scored(file)
    assert evidence in str(caught.value.evidence)
    assert "return_token_ids" in caught.value.next


def test_the_first_token_that_parts_is_named() -> None:
    other = Scored(TOKENS, (None, -1.5, -0.35, -5.0))
    (found,) = compare([EXACT], [other], ("a", "b"), 0.5)
    assert found.parts == (3, 3, -3.0, -5.0)
    assert (found.tokens, found.largest) == (3, 2.0)
    assert found.mean == pytest.approx(2.1 / 3)
    (same,) = compare([EXACT], [EXACT], ("a", "b"), 0.5)
    assert (same.largest, same.parts) == (0.0, None)
    (broken,) = compare(
        [EXACT], [Scored(TOKENS, (None, -1.5, float("nan"), -3.0))], ("a", "b"), 0.5
    )
    assert broken.largest == float("inf")
    with pytest.raises(LogprobsError, match="other tokens") as caught:
        compare([EXACT], [Scored((5, 17, 201, 3), VALUES)], ("a", "b"), 0.5)
    assert "sequence 0, token 2: 200 and 201" in str(caught.value)


def test_files_of_two_engines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = tmp_path / "vllm.json", tmp_path / "sglang.json"
    a.write_text(json.dumps(FORMS["vLLM completion"]))
    b.write_text(json.dumps(FORMS["SGLang"]).replace("-0.25", "-0.35"))
    words = ["parity", "logprobs", str(a), str(b)]
    assert main(words) == 0
    assert "PASS: mean difference 0.033 (limit 0.05), largest 0.1" in capsys.readouterr().out
    assert main([*words, "--limit", "0.05"]) == 1
    assert "2 (id 200): -0.2500 and -0.3500" in capsys.readouterr().out
    assert main([*words, "--prompts", str(a)]) == 2
    assert "does not hold lists of token ids" in capsys.readouterr().err
    assert main([*words[:3], str(tmp_path)]) == 2
    assert "is nothing that scores tokens" in capsys.readouterr().err


@pytest.fixture
def saved(finished_runs: FinishedRuns, forked: Python) -> Path:
    """The checkpoint of a Llama."""

    def make(directory: Path) -> None:
        done = forked(
            *("-m", "accel_bridge", "pretrain", "--", *LLAMA, "--save", str(directory)),
            *("--save-interval", "1"),
            ACCEL_BRIDGE_BACKEND="cpu",
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]

    return finished_runs.directory(("llama", *LLAMA), make)


def convert(saved: Path, directory: Path, base: float = 20000.0, factor: float = 1.0) -> None:
    """Write the checkpoint as a model directory of Transformers, with an error perhaps."""
    from torch.distributed.checkpoint import FileSystemReader, load
    from transformers import LlamaConfig, LlamaForCausalLM

    reader = FileSystemReader(saved / "iter_0000001")
    held = {
        name: torch.empty(one.size)
        for name, one in reader.read_metadata().state_dict_metadata.items()
        if hasattr(one, "size") and not name.startswith("optimizer")
    }
    load(held, storage_reader=reader, no_dist=True)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": base},
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    weights = {
        "model.embed_tokens.weight": held["embedding.word_embeddings.weight"],
        "model.norm.weight": held["decoder.final_layernorm.weight"],
        "lm_head.weight": held["output_layer.weight"],
    }
    for layer in range(2):
        own, prefix = f"model.layers.{layer}.", "decoder.layers."
        # Megatron keeps each group's queries beside their key and value.
        groups = held[f"{prefix}self_attention.linear_qkv.weight"][layer].view(2, 4, 16, 64)
        for name, part in (("q", groups[:, :2]), ("k", groups[:, 2]), ("v", groups[:, 3])):
            weights[f"{own}self_attn.{name}_proj.weight"] = part.reshape(-1, 64)
        both = held[f"{prefix}mlp.linear_fc1.weight"][layer].chunk(2)
        for name, part in zip(("gate", "up"), both, strict=True):
            weights[f"{own}mlp.{name}_proj.weight"] = part
        for name, other in (
            ("self_attn.o_proj", "self_attention.linear_proj.weight"),
            ("mlp.down_proj", "mlp.linear_fc2.weight"),
            ("input_layernorm", "self_attention.linear_qkv.layer_norm_weight"),
            ("post_attention_layernorm", "mlp.linear_fc1.layer_norm_weight"),
        ):
            weights[f"{own}{name}.weight"] = held[prefix + other][layer]
    weights["model.layers.1.mlp.down_proj.weight"] *= factor
    model.load_state_dict(weights)
    model.save_pretrained(directory)


def test_megatron_and_transformers_agree_and_errors_are_found(
    saved: Path,
    tmp_path: Path,
    warm: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("accel_bridge.apps.logprobs.sys.executable", warm)
    monkeypatch.setenv("ACCEL_BRIDGE_BACKEND", "cpu")
    prompts = tmp_path / "prompts"
    source = random.Random(1)
    prompts.write_text("\n".join(str([source.randrange(256) for _ in range(60)]) for _ in range(3)))
    words = ["parity", "logprobs"]
    good = tmp_path / "good"
    convert(saved, good)
    arguments = ["--prompts", str(prompts), "--json"]
    status = main([*words, str(saved), str(good), *arguments])
    document = json.loads(capsys.readouterr().out)
    assert status == 0, document
    (pair,) = document["pairs"]
    assert pair["largest"] < 1e-4
    assert [one["tokens"] for one in pair["prompts"]] == [59, 59, 59]
    for error in ({"base": 10000.0}, {"factor": 1.01}):
        bad = tmp_path / "bad"
        convert(saved, bad, **error)
        assert main([*words, str(good), str(bad), *arguments]) == 1
        (pair,) = json.loads(capsys.readouterr().out)["pairs"]
        assert pair["prompts"][0]["parts"] is not None
