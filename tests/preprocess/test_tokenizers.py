"""Every tokenizer type against Megatron 0.19's own class of that name."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path

import pytest

from accel_bridge.pretrain.preprocess.build import build_engine
from accel_bridge.pretrain.preprocess.errors import TokenizerError
from accel_bridge.pretrain.preprocess.tokenizers import TokenizerSpec

from .support import TEXTS, assert_same_pair, write_jsonl, write_reference

ROWS = [{"text": text} for text in (*TEXTS, *(" ".join(TEXTS[i:]) for i in range(4)))]


@pytest.fixture
def compare(tmp_path, run, megatron_tokenizer):
    """Run with ``flags`` and compare with Megatron's tokenizer of ``given``."""

    def call(flags, given, *, directory=None, rows=ROWS, eod=True):
        source = write_jsonl(tmp_path / "a.jsonl", rows)
        extra = ["--append-eod"] if eod else []
        result = run("--input", source, "--output-prefix", tmp_path / "ours", *flags, *extra)
        assert result.code == 0, result.err
        arguments = {"directory": directory} if directory else {}
        tokenizer = megatron_tokenizer(tokenizer_type=flags[1], **given, **arguments)
        write_reference(tmp_path / "ref", rows, tokenizer, append_eod=eod)
        assert_same_pair(tmp_path / "ours", tmp_path / "ref")
        return result

    return call


def test_gpt2_with_special_tokens(compare, gpt2):
    rows = [*ROWS, {"text": "a<x>b <y> <|endoftext|><x>"}]
    compare(
        [*gpt2.flags, "--tokenizer-special-tokens", "<x>", "<y>"],
        {
            "vocab_file": str(gpt2.vocab),
            "merge_file": str(gpt2.merges),
            "special_tokens": ["<x>", "<y>"],
        },
        rows=rows,
    )


def save_huggingface(gpt2, directory: Path, **options):
    from tokenizers import Tokenizer, decoders
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(BPE.from_file(str(gpt2.vocab), str(gpt2.merges)))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if options.pop("bos", False):
        from tokenizers.processors import TemplateProcessing

        tokenizer.add_special_tokens(["<bos>"])
        tokenizer.post_processor = TemplateProcessing(
            single="<bos> $A <|endoftext|>", pair="<bos> $A $B",
            special_tokens=[("<bos>", tokenizer.token_to_id("<bos>")), ("<|endoftext|>", 0)],
        )  # fmt: skip
    if options.pop("normalizer", False):
        from tokenizers.normalizers import NFKC

        tokenizer.normalizer = NFKC()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>", **options)
    fast.save_pretrained(str(directory))
    return directory


def huggingface(directory) -> list[str]:
    return ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", str(directory)]


@pytest.mark.parametrize("bos", [True, False])
def test_huggingface_directory(compare, gpt2, tmp_path, bos):
    directory = save_huggingface(gpt2, tmp_path / "hf", bos=bos)
    result = compare(huggingface(directory), {"tokenizer_model": str(directory)})
    assert "note:" not in result.err
    assert "gigatoken" in result.out


@pytest.mark.slow
def test_huggingface_without_special_tokens(compare, gpt2, tmp_path):
    directory = save_huggingface(gpt2, tmp_path / "hf", bos=True)
    compare(
        [*huggingface(directory), "--tokenizer-hf-no-include-special-tokens"],
        {"tokenizer_model": str(directory), "tokenizer_hf_no_include_special_tokens": True},
    )


def test_a_normalizer_keeps_the_fast_engine_out(compare, gpt2, tmp_path):
    directory = save_huggingface(gpt2, tmp_path / "hf", normalizer=True)
    result = compare(huggingface(directory), {"tokenizer_model": str(directory)})
    assert "it has a normalizer" in result.err
    assert "gigatoken" not in result.out


@pytest.mark.slow
def test_a_class_of_its_own_goes_through_transformers(compare, gpt2):
    result = compare(huggingface(gpt2.directory), {"tokenizer_model": str(gpt2.directory)})
    assert "loaded through transformers" in result.err
    assert "gigatoken" in result.out


@pytest.mark.slow
def test_huggingface_with_added_special_tokens(compare, gpt2, tmp_path):
    directory = save_huggingface(gpt2, tmp_path / "hf")
    rows = [*ROWS, {"text": "a<x>b"}]
    compare(
        [*huggingface(directory), "--tokenizer-special-tokens", "<x>"],
        {"tokenizer_model": str(directory), "special_tokens": ["<x>"]},
        rows=rows,
    )


def test_a_bare_tokenizer_json(tmp_path, gpt2, run):
    directory = save_huggingface(gpt2, tmp_path / "hf")
    source = write_jsonl(tmp_path / "a.jsonl", ROWS)
    for prefix, model in (("ours", directory / "tokenizer.json"), ("ref", directory)):
        argv = ("--input", source, "--output-prefix", tmp_path / prefix, *huggingface(model))
        assert run(*argv, "--append-eod").code == 0
    assert_same_pair(tmp_path / "ours", tmp_path / "ref")


def test_no_end_token(tmp_path, gpt2, run):
    document = json.loads((save_huggingface(gpt2, tmp_path / "hf") / "tokenizer.json").read_text())
    document["added_tokens"] = []
    del document["model"]["vocab"]["<|endoftext|>"]
    document["model"]["vocab"]["<stop>"] = 0
    model = tmp_path / "tokenizer.json"
    model.write_text(json.dumps(document))
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": "a"}])
    argv = ("--input", source, "--output-prefix", tmp_path / "ours", *huggingface(model))
    result = run(*argv, "--append-eod")
    assert result.code == 2
    assert "--eod-token" in result.err
    assert run(*argv, "--append-eod", "--eod-token", "<stop>").code == 0
    assert (tmp_path / "ours_text_document.bin").read_bytes()[-2:] == b"\0\0"


@pytest.mark.parametrize(
    "type_name", ["SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer"]
)
@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_sentencepiece(compare, tmp_path, type_name, model_type):
    model = train_sentencepiece(tmp_path, model_type)
    compare(
        ["--tokenizer-type", type_name, "--tokenizer-model", str(model)],
        {"tokenizer_model": str(model)},
    )


def test_sentencepiece_keeping_spaces(compare, tmp_path):
    model = train_sentencepiece(tmp_path, "bpe")
    compare(
        ["--tokenizer-type", "Llama2Tokenizer", "--tokenizer-model", str(model),
         "--no-tokenizer-sentencepiece-ignore-extra-whitespaces"],
        {"tokenizer_model": str(model), "tokenizer_sentencepiece_ignore_extra_whitespaces": False},
    )  # fmt: skip


def test_sentencepiece_legacy_special_tokens(compare, tmp_path):
    model = train_sentencepiece(tmp_path, "bpe")
    rows = [*ROWS, {"text": "a<x> b <y><x>c<s>"}]
    compare(
        ["--tokenizer-type", "Llama2Tokenizer", "--tokenizer-model", str(model),
         "--tokenizer-sentencepiece-legacy", "--tokenizer-special-tokens", "<x>", "<y>", "<s>"],
        {"tokenizer_model": str(model), "tokenizer_sentencepiece_legacy": True,
         "special_tokens": ["<x>", "<y>", "<s>"]},
        rows=rows, eod=False,
    )  # fmt: skip


def train_sentencepiece(directory: Path, model_type: str) -> Path:
    import sentencepiece

    text = directory / "train.txt"
    lines = [line.strip() for sentence in TEXTS for line in sentence.split("\n") if line.strip()]
    text.write_text("\n".join(line.replace("\0", "") for line in lines * 5))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(directory / "sp"), vocab_size=500, model_type=model_type,
        byte_fallback=True, minloglevel=2, hard_vocab_limit=False,
    )  # fmt: skip
    return directory / "sp.model"


@pytest.mark.parametrize("pattern", ["v1", "v2", None])
def test_tiktoken(compare, tmp_path, pattern):
    merged = [b"he", b"lo", b"th", b" t", b"in", "你".encode()[:2], b"12", b"'s"]
    tokens = [bytes([i]) for i in range(256)] + merged
    model = tmp_path / "tiktoken.json"
    model.write_text(
        json.dumps(
            [
                {"rank": i, "token_bytes": base64.b64encode(t).decode(), "token_str": ""}
                for i, t in enumerate(tokens)
            ]
        )
    )
    size = len(tokens) + 20
    flags = ["--tokenizer-type", "TikTokenizer", "--tokenizer-model", str(model),
             "--vocab-size", str(size), "--tiktoken-num-special-tokens", "20"]  # fmt: skip
    given = {"tokenizer_model": str(model), "vocab_size": size, "tiktoken_num_special_tokens": 20}
    if pattern:
        flags += ["--tiktoken-pattern", pattern]
        given["tiktoken_pattern"] = pattern
    # tiktoken replaces lone surrogates where others fail; so must we.
    rows = [*ROWS, {"text": "a</s>b<SPECIAL_9>"}, {"text": "a\ud800b"}]
    compare(flags, given, rows=rows)


@pytest.mark.parametrize("given", [{}, {"null_tokenizer_eod_id": 3}])
@pytest.mark.parametrize("size", [100, 70000])
def test_null(compare, given, size):
    flags = ["--tokenizer-type", "NullTokenizer", "--vocab-size", str(size)]
    if given:
        flags += ["--null-tokenizer-eod-id", "3"]
    rows = [{"text": "1 2 3"}, {"text": "99"}, {"text": ["4 5", "6"]}]
    compare(flags, {"vocab_size": size, **given}, rows=rows)


@pytest.mark.parametrize("text", ["", "1 x", "1  2", "70000", "-1"])
def test_null_refuses_what_megatron_refuses(tmp_path, run, megatron_tokenizer, text):
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": text}])
    flags = ["--tokenizer-type", "NullTokenizer", "--vocab-size", "100"]
    result = run("--input", source, "--output-prefix", tmp_path / "ours", *flags)
    assert result.code == 2
    assert "the tokenizer refuses it" in result.err
    tokenizer = megatron_tokenizer(tokenizer_type="NullTokenizer", vocab_size=100)
    with pytest.raises((ValueError, OverflowError)):
        write_reference(tmp_path / "ref", [{"text": text}], tokenizer)


@pytest.mark.parametrize("cased", [True, False])
def test_bert(compare, tmp_path, cased):
    from tokenizers import BertWordPieceTokenizer

    trained = BertWordPieceTokenizer(lowercase=not cased)
    trained.train_from_iterator(
        list(TEXTS) * 3, vocab_size=400, min_frequency=1, show_progress=False
    )
    trained.save_model(str(tmp_path))
    vocab = tmp_path / "vocab.txt"
    # Megatron asks transformers for a directory of this name beside the vocabulary file.
    name = "bert-large-cased" if cased else "bert-large-uncased"
    directory = tmp_path / name
    directory.mkdir()
    shutil.copy(vocab, directory / "vocab.txt")
    (directory / "config.json").write_text('{"model_type": "bert"}')
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": not cased})
    )
    flags = ["--tokenizer-type", "BertWordPieceCase" if cased else "BertWordPieceLowerCase"]
    rows = [*ROWS, {"text": ["A first sentence [SEP] here.", "", "The second <extra_id_3>!"]}]
    compare(
        [*flags, "--vocab-file", str(vocab)],
        {"vocab_file": str(vocab)},
        directory=tmp_path,
        rows=rows,
    )


def test_compat_012_takes_special_tokens_for_text(tmp_path, gpt2, run):
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": "a<|endoftext|>b"}])
    argv = ("--input", source, "--output-prefix", tmp_path / "ours", *gpt2.flags, "--append-eod")
    eod = json.loads(gpt2.vocab.read_text())["<|endoftext|>"].to_bytes(2, "little")

    def tokens() -> list[bytes]:
        data = (tmp_path / "ours_text_document.bin").read_bytes()
        return [data[i : i + 2] for i in range(0, len(data), 2)]

    assert run(*argv).code == 0
    assert tokens().count(eod) == 2
    assert run(*argv, "--compat", "0.12").code == 0
    assert tokens().count(eod) == 1


@pytest.mark.parametrize(
    ("flag", "contents", "said"),
    [
        ("--vocab-file", "not json", "cannot be read"),
        ("--vocab-file", "[1, 2]", "not an object"),
        ("--vocab-file", '{"a": "b"}', "not an object"),
        ("--merge-file", "#version: 0.2\na b\nab\n", "broken:3"),
        ("--merge-file", "", "the merges file is empty"),
    ],
)
def test_broken_vocabularies_and_merges(tmp_path, prepare, flag, contents, said):
    broken = tmp_path / "broken"
    broken.write_text(contents)
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": "a"}])
    result = prepare(source, flag, broken)
    assert result.code == 2
    assert said in result.err
    assert str(broken) in result.err


@pytest.mark.parametrize("content", [b"", b"\0" * 40, b"no model"])
def test_errors_of_a_tokenizers_library(tmp_path, content):
    """Each library has its own: sentencepiece takes an empty file, and fails at the first text."""
    spec = TokenizerSpec("sentencepiece", content, 9, None)
    with pytest.raises(TokenizerError, match="does not accept it") as caught:
        build_engine(spec)
    assert caught.value.evidence
