"""Random bytes and records against the reference loop."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from random_examples import examples

from accel_bridge.pretrain.preprocess import records as lines_module
from accel_bridge.pretrain.preprocess.blocks import LinesBlock
from accel_bridge.pretrain.preprocess.build import build_engine
from accel_bridge.pretrain.preprocess.encoder import BlockEncoder
from accel_bridge.pretrain.preprocess.tokenizer_flags import TokenizerArguments
from accel_bridge.pretrain.preprocess.tokenizers import read_tokenizer

EOD = 0
FUZZ = settings(examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def encoder(gpt2) -> BlockEncoder:
    arguments = TokenizerArguments(
        "GPT2BPETokenizer", vocab_file=str(gpt2.vocab), merge_file=str(gpt2.merges)
    )
    return BlockEncoder(
        build_engine(read_tokenizer(arguments)).engine, ["text"], np.dtype(np.uint16), EOD
    )


@pytest.fixture(scope="module")
def reference(gpt2):
    """Ids of a text by the tokenizers library alone."""
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer(str(gpt2.vocab), str(gpt2.merges))
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return lambda text: tokenizer.encode(text).ids


def expected(data: bytes, tokenize) -> list[list[list[int]]] | None:
    """Sentences of each document, by the reference loop; ``None`` where it fails."""
    documents = []
    try:
        for line in io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"):
            value = json.loads(line)["text"]
            sentences = [tokenize(text) for text in (value if isinstance(value, list) else [value])]
            sentences = [ids for ids in sentences if ids]
            if sentences:
                sentences[-1] = [*sentences[-1], EOD]
            documents.append(sentences)
    except Exception:
        return None
    return documents


def actual(data: bytes, encoder: BlockEncoder) -> list[list[list[int]]] | None:
    """The same from :class:`BlockEncoder`; ``None`` where it reports a bad record."""
    result = encoder.encode(LinesBlock(data))
    if result.bad:
        return None
    tokens, lengths, counts = result.keys["text"]
    ids = np.frombuffer(tokens, np.uint16).tolist()
    sequences = []
    for length in np.frombuffer(lengths, np.int32).tolist():
        sequences.append(ids[:length])
        ids = ids[length:]
    documents = []
    for count in np.frombuffer(counts, np.int32).tolist():
        documents.append(sequences[:count])
        sequences = sequences[count:]
    assert not ids
    assert not sequences
    return documents


texts = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from("'s  tdabc01\n\r\t\x00\u2028\u0085<|endoftext|>"),
        st.sampled_from("\u088f\u0c5c\ua7ce\U00010940\U000323b0😀你"),
    ),
    max_size=40,
)
values = st.one_of(texts, texts.map(lambda t: t + "<|endoftext|>" + t), st.lists(texts, max_size=4))
junk = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
    st.lists(st.integers(), max_size=2), st.dictionaries(st.text(max_size=2), st.integers()),
)  # fmt: skip
records = st.fixed_dictionaries({"text": values}, optional={"a": junk, "z": junk})
ends = st.sampled_from([b"\n", b"\r\n", b"\r"])


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    """Lines of JSON, most of them good."""
    result = b""
    for _ in range(draw(st.integers(0, 6))):
        record = draw(st.one_of(records, records, records, junk))
        text = json.dumps(record, ensure_ascii=draw(st.booleans()))
        result += text.encode(errors="surrogatepass") + draw(ends)
    return result if draw(st.booleans()) else result.rstrip(b"\r\n")


@given(lines())
@FUZZ
def test_records(encoder, reference, data):
    assert actual(data, encoder) == expected(data, reference)


pieces = st.sampled_from(
    [b'{"text": "a"}', b'{"text":', b'"b"', b"}", b"{", b"\n", b"\r", b"\r\n", b" ", b"\t", b",",
     b"[", b"]", b"NaN", b"-Infinity", b"null", b"1e5", b"-0", b"01", b"\\ud800", b"\\udc00",
     b"\\u0000", b"\x00", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xc2\x85",
     b"\xe2\x80\xa8", b"\xf0\x9f\x98\x80", b'"text": ["x", "y"]', b'{"text": "a", "text": "b"}',
     b'{"text": "\\ud83d\\ude00"}', b'{"a": NaN, "text": "c"}', b"//", b"'text'", b"\x0b", b"\x0c"]
)  # fmt: skip


@given(st.lists(st.one_of(pieces, pieces, st.binary(max_size=3)), max_size=12).map(b"".join))
@example(b'{"text": "a"}\n\n')
@example(b'{"text": "a"},{"text": "b"}\n')
@example(b'\xef\xbb\xbf{"text": "a"}')
@FUZZ
def test_bytes(encoder, reference, data):
    assert actual(data, encoder) == expected(data, reference)


@given(lines(), st.integers(1, 200))
@FUZZ
def test_cutting_into_blocks_changes_nothing(data, size):
    whole = lines_module.split_lines(data)
    parts, rest = [], data
    while rest:
        window = size
        while window < len(rest) and not lines_module.block_end(rest[:window]):
            window += 1
        cut = lines_module.block_end(rest[:window]) if window < len(rest) else len(rest)
        parts += lines_module.split_lines(rest[:cut])
        rest = rest[cut:]
    assert parts == whole
