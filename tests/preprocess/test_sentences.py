"""``--split-sentences`` against the same NLTK tokenizer called as Megatron's tool calls it."""

from __future__ import annotations

import pytest

from accel_bridge.pretrain.preprocess import _recipe as sentences_module
from accel_bridge.pretrain.preprocess.errors import UsageError

from .support import assert_same_pair, write_jsonl, write_reference

TEXTS = [
    "Dr. Smith went home. He slept.\n\nThen he woke up!  Did he eat? Yes.",
    "",
    "No end",
    "First line.\nSecond line.\n  Third one. ",
]


@pytest.fixture
def punkt(tmp_path, monkeypatch):
    """A model of a few abbreviations, where NLTK looks for one."""
    from nltk.tokenize.punkt import PunktTokenizer

    directory = tmp_path / "nltk" / "tokenizers" / "punkt_tab" / "english"
    directory.mkdir(parents=True)
    (directory / "abbrev_types.txt").write_text("dr\nmr\n")
    for name in ("collocations.tab", "sent_starters.txt", "ortho_context.tab"):
        (directory / name).write_text("")
    monkeypatch.setattr("nltk.data.path", [str(tmp_path / "nltk")])
    return PunktTokenizer


def test_sentences_become_sequences(tmp_path, megatron_gpt2, prepare, punkt):
    rows = [{"text": text} for text in TEXTS]
    source = write_jsonl(tmp_path / "a.jsonl", rows)
    result = prepare(source, "--append-eod", "--split-sentences", "--workers", 2)
    assert result.code == 0, result.err
    split = [{"text": list(punkt("english").tokenize(text))} for text in TEXTS]
    assert [len(row["text"]) for row in split] == [5, 0, 1, 3]
    write_reference(tmp_path / "ref", split, megatron_gpt2, level="sentence")
    assert_same_pair(tmp_path / "ours", tmp_path / "ref", "text_sentence")


def test_keep_newlines(punkt):
    """Nothing but white space at the very end is lost; other white space ends a sentence."""
    split = sentences_module.build_splitter("english", keep_newlines=True)
    for text in TEXTS:
        assert "".join(split(text)) == text.rstrip()
    assert split(TEXTS[0])[1] == "He slept.\n\n"
    plain = sentences_module.build_splitter("english", keep_newlines=False)
    assert plain(TEXTS[0])[1] == "He slept."


@pytest.mark.slow
def test_long_texts_are_split_in_pieces(punkt, monkeypatch):
    assert sentences_module._PIECE_CHARACTERS == 1_000_000
    monkeypatch.setattr(sentences_module, "_PIECE_CHARACTERS", 10_000)
    text = "A sentence here. " * 600
    split = sentences_module.build_splitter("english", keep_newlines=False)
    tokenizer = punkt("english")
    pieces = [text[i : i + 10_000] for i in range(0, len(text), 10_000)]
    assert split(text) == [s for piece in pieces for s in tokenizer.tokenize(piece)]


def test_a_missing_model_is_named(tmp_path, prepare, punkt):
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": "a"}])
    result = prepare(source, "--split-sentences", "--lang", "klingon")
    assert result.code == 2
    assert "klingon" in result.err
    assert "nltk.downloader punkt_tab" in result.err


@pytest.mark.parametrize("language", ["../../etc", "klingon", ""])
def test_a_language_without_a_model(language):
    with pytest.raises(UsageError, match="no sentence model") as caught:
        sentences_module.build_splitter(language, keep_newlines=False)
    assert caught.value.evidence[0]
