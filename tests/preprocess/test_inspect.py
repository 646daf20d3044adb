"""``accel-bridge inspect``: what it prints, and every kind of damage it must see."""

from __future__ import annotations

import os
import shutil
import struct

import numpy as np
import pytest

from accel_bridge.pretrain.preprocess import inspect_main, main
from accel_bridge.pretrain.preprocess._inspect import inspect_pair

from .support import write_jsonl


@pytest.fixture(scope="module")
def sound(tmp_path_factory, gpt2):
    """Where a sound pair lies: three documents, the second empty, the third of two sentences."""
    directory = tmp_path_factory.mktemp("sound")
    rows = [{"text": "Hello world!"}, {"text": ""}, {"text": ["one", "two"]}]
    source = write_jsonl(directory / "a.jsonl", rows)
    argv = ["--input", source, "--output-prefix", directory / "x", *gpt2.flags, "--append-eod"]
    assert main([str(word) for word in argv]) == 0
    return directory


@pytest.fixture
def pair(tmp_path, sound):
    """The prefix of a copy of it."""
    for path in sound.glob("x_text_document.*"):
        shutil.copy(path, tmp_path)
    return str(tmp_path / "x_text_document")


@pytest.mark.parametrize("suffix", ["", ".idx", ".bin"])
def test_a_sound_pair(pair, gpt2, capfd, suffix):
    assert inspect_main([pair + suffix, *gpt2.flags]) == 0
    out = capfd.readouterr().out
    assert "documents  3 (1 empty)" in out
    assert "sequences  3" in out
    assert "uint16" in out
    assert "'Hello world!<|endoftext|>'" in out
    assert out.endswith("sound\n")
    assert "NOT" not in out


def test_it_takes_every_tokenizer_that_made_the_data(pair, gpt2, capfd):
    flags = [*gpt2.flags, "--compat", "0.12", "--tokenizer-special-tokens", "<a>"]
    assert inspect_main([pair, "--tokenizer-type", "NullTokenizer", "--vocab-size", "700"]) == 0
    assert inspect_main([*flags, "--", pair]) == 0
    capfd.readouterr()
    assert inspect_main([pair, *gpt2.flags, "--tiktoken-num-special-tokens", "0"]) == 2
    assert "--tiktoken-num-special-tokens: '0' is no whole number from 1" in capfd.readouterr().err


def patch(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


DAMAGE = {
    "magic": (lambda p: patch(p + ".idx", 0, b"X"), "is not an index"),
    "version": (lambda p: patch(p + ".idx", 9, b"\x02"), "version 1 and"),
    "type": (lambda p: patch(p + ".idx", 17, b"\x63"), "the code of a type"),
    "count": (lambda p: patch(p + ".idx", 18, struct.pack("<Q", 9)), "is truncated"),
    "short index": (lambda p: os.truncate(p + ".idx", 40), "is truncated"),
    "no header": (lambda p: os.truncate(p + ".idx", 20), "is not an index"),
    "length": (lambda p: patch(p + ".idx", 34, struct.pack("<i", 1)), "do not follow"),
    "negative": (lambda p: patch(p + ".idx", 34, struct.pack("<i", -1)), "negative length"),
    "offset": (lambda p: patch(p + ".idx", 34 + 12, struct.pack("<q", 2)), "do not follow"),
    "documents": (lambda p: patch(p + ".idx", 34 + 36, struct.pack("<q", 1)), "begin at 0"),
    "overlap": (lambda p: patch(p + ".idx", 34 + 44, struct.pack("<q", 3)), "overlap"),
    "last": (lambda p: patch(p + ".idx", 34 + 60, struct.pack("<q", 2)), "do not end with"),
    "short data": (lambda p: os.truncate(p + ".bin", 4), ".bin has 4 bytes"),
    "long data": (
        lambda p: os.truncate(p + ".bin", os.path.getsize(p + ".bin") + 2),
        ".idx asks for",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_seen(pair, capfd, name):
    damage, said = DAMAGE[name]
    damage(pair)
    assert inspect_main([pair]) == 1
    out = capfd.readouterr().out
    assert said in out
    assert out.endswith("NOT SOUND\n")


def test_ids_outside_the_vocabulary(pair, capfd):
    patch(pair + ".bin", 0, struct.pack("<H", 60000))
    assert inspect_main([pair, "--vocab-size", "600"]) == 1
    assert "id 60000 is outside the vocabulary of 600" in capfd.readouterr().out


@pytest.mark.megatron
def test_megatrons_own_output_and_a_multimodal_index(tmp_path, capfd):
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    for multimodal in (False, True):
        prefix = str(tmp_path / f"m{multimodal}")
        builder = IndexedDatasetBuilder(prefix + ".bin", dtype=np.int32, multimodal=multimodal)
        builder.add_document([1, 2, 70000], [2, 1], [0, 1] if multimodal else None)
        builder.finalize(prefix + ".idx")
        report = inspect_pair(prefix)
        assert report.problems == []
        assert (report.multimodal, report.largest_id) == (multimodal, 70000)
