"""The script of a two-GPU tutorial trains on this machine, unedited."""

from __future__ import annotations

import json
import os
from pathlib import Path

from end_to_end.launcher import ROOT, SCRIPT, launch


def test_trains_in_fp16_on_two_processes(tmp_path: Path, warm: str) -> None:
    corpus = tmp_path / "corpus.jsonl"
    sources = sorted((ROOT / "accel_bridge").rglob("*.py"))
    texts = [path.read_text() for path in sources] * 4
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts if text))
    learn = [warm, "-m", "accel_bridge", "tokenizer", "train", "--input", str(corpus)]
    launch([*learn, "--output", str(tmp_path / "tok"), "--vocab-size", "1024"]).succeeded()
    vocab, merges = tmp_path / "tok" / "vocab.json", tmp_path / "tok" / "merges.txt"
    tokenizer = ["--tokenizer-type", "GPT2BPETokenizer"]
    tokenizer += ["--vocab-file", str(vocab), "--merge-file", str(merges), "--append-eod"]
    preprocess = [warm, "-m", "accel_bridge", "preprocess", "--input", str(corpus)]
    launch([*preprocess, "--output-prefix", str(tmp_path / "data"), *tokenizer]).succeeded()
    script = Path(__file__).with_name("two_gpu_tutorial.sh")
    torchrun = tmp_path / "bin" / "torchrun"
    torchrun.parent.mkdir()
    torchrun.write_text(f'#!/bin/sh\nexec {warm} -m torch.distributed.run "$@"\n')
    torchrun.chmod(0o755)
    environment = {
        "PATH": f"{torchrun.parent}{os.pathsep}{os.environ['PATH']}",
        "MASTER_PORT": "29741",
        "TRAIN_ITERS": "2",
        "DATA_PATH": str(tmp_path / "data_text_document"),
        "VOCAB_FILE": str(vocab),
        "MERGE_FILE": str(merges),
        "PRETRAIN_GPT": str(SCRIPT),
        "CHECKPOINT_PATH": str(tmp_path / "checkpoint"),
    }
    run = launch(["bash", str(script)], env=environment, timeout=500).succeeded()
    # Megatron's first loss scale is 2^32: the first iterations of fp16 are skipped and halve it.
    assert "loss scale: 2147483648.0" in run.output
    assert "fp16 ............................................ True" in run.output
    assert (tmp_path / "checkpoint" / "latest_checkpointed_iteration.txt").read_text() == "2"
