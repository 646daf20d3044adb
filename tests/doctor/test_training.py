"""Faults of a training's arguments, its data and its directories, each injected, each found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from injected_machine import GIB, Injected

from accel_bridge.device.backend import Memory
from accel_bridge.patches.doctor.parsing import by_words
from accel_bridge.plugins.checks import Run, Verdict
from accel_bridge.pretrain.checks import prefixes

FAILS, WARNING = Verdict.FAILS, Verdict.WARNING


@pytest.fixture
def injected(tmp_path: Path) -> Injected:
    return Injected(tmp_path / "injected")


def words(injected: Injected, text: str, **run: int) -> None:
    """A training whose arguments nobody but this project has read."""
    from accel_bridge.plugins.checks import ParsedArguments

    injected.run = Run(parsed=ParsedArguments("words", by_words(text.split())), **run)


def dataset(directory: Path, documents: list[list[int]], kind: str = "<u2") -> str:
    """An .idx/.bin pair; its prefix."""
    directory.mkdir(parents=True, exist_ok=True)
    prefix = directory / "x_text_document"
    lengths = np.array([len(one) for one in documents], "<i4")
    ids = np.concatenate([np.array(one, kind) for one in documents])
    pointers = (np.concatenate(([0], np.cumsum(lengths)[:-1])) * ids.itemsize).astype("<i8")
    code = {"<u2": 8, "<i4": 4}[kind]
    count = len(documents)
    head = b"MMIDIDX\0\0" + (1).to_bytes(8, "little") + bytes([code])
    head += count.to_bytes(8, "little") + (count + 1).to_bytes(8, "little")
    bounds = np.arange(count + 1, dtype="<i8")
    body = lengths.tobytes() + pointers.tobytes() + bounds.tobytes()
    Path(f"{prefix}.idx").write_bytes(head + body)
    Path(f"{prefix}.bin").write_bytes(ids.tobytes())
    return str(prefix)


def test_words_as_they_stand() -> None:
    text = "--seq-length 64 --lr=1e-3 --bf16 --split 969,30,1 --data-path 0.3 a 0.7 b --loss -1"
    assert by_words(text.split()) == {
        "seq_length": 64,
        "lr": 1e-3,
        "bf16": True,
        "split": "969,30,1",
        "data_path": ["0.3", "a", "0.7", "b"],
        "loss": -1,
    }


@pytest.mark.parametrize(
    ("given", "ranks", "texts"),
    [
        ("--tensor-model-parallel-size 4", 6, ("6 ranks", "groups of 4")),
        ("--global-batch-size 10 --micro-batch-size 4", 2, ("multiple of 8",)),
        ("--hidden-size 100 --num-attention-heads 8", 1, ("--hidden-size 100",)),
        ("--num-attention-heads 6 --tensor-model-parallel-size 4", 4, ("no multiple of 4",)),
        ("--num-layers 5 --pipeline-model-parallel-size 2", 2, ("--num-layers 5",)),
        ("--hybrid-layer-pattern M*- --pipeline-model-parallel-size 2", 2, ("3 layers", "with |")),
        ("--hybrid-layer-pattern M|*|-/M --pipeline-model-parallel-size 2", 2, ("3 segments",)),
        ("--num-experts 6 --expert-model-parallel-size 4", 4, ("--num-experts 6",)),
        ("--seq-length 30 --context-parallel-size 4", 4, ("--seq-length 30", "8")),
        (
            "--group-query-attention --num-query-groups 3 --tensor-model-parallel-size 2",
            2,
            ("--num-query-groups 3",),
        ),
        ("--seq-length 4096 --max-position-embeddings 2048", 1, ("--max-position-embeddings",)),
    ],
)
def test_what_cannot_be_divided(
    injected: Injected, given: str, ranks: int, texts: tuple[str, ...]
) -> None:
    words(injected, given, processes=ranks)
    injected.finding("layout", FAILS, *texts)


def test_layouts_that_fit(injected: Injected) -> None:
    words(
        injected,
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --num-layers 8 "
        "--num-attention-heads 8 --hidden-size 64 --global-batch-size 8 --micro-batch-size 2 "
        "--seq-length 64 --context-parallel-size 2 --num-experts 8 --expert-model-parallel-size 2",
        processes=8,
        machines=2,
    )
    assert not injected.findings("layout")
    words(injected, "--num-layers 5 --pipeline-model-parallel-layout Et|t*4L", processes=2)
    assert not injected.findings("layout")
    words(
        injected, "--hybrid-layer-pattern M*-|M/M*- --pipeline-model-parallel-size 2", processes=2
    )
    assert not injected.findings("layout")


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("ME --num-experts 2", ()),
        ("ME", ("layers E", "--num-experts")),
        ("MG --swiglu", ()),
        ("MG --deterministic-mode", ()),
        ("MG", ("layers G", "--swiglu")),
        ("D --apply-rope-fusion", ("layers D", "--no-rope-fusion")),
        ("D --add-bias-linear", ("layers D", "--disable-bias-linear")),
        ("D --tensor-model-parallel-size 2", ("layers D", "--sequence-parallel")),
        ("D --tensor-model-parallel-size 2 --sequence-parallel", ()),
        ("M --mamba-num-heads 8 --mamba-num-groups 3", ("layers M", "8 heads in 3 groups")),
        ("M --hidden-size 64 --mamba-head-dim 64 --mamba-num-groups 8", ("2 heads in 8 groups",)),
        ("M --mamba-num-heads 8 --mamba-num-groups 1 --tensor-model-parallel-size 2", ("1 gr",)),
        ("- --mamba-num-heads 8 --mamba-num-groups 3", ()),
        (
            "G --swiglu --linear-num-key-heads 2 --linear-num-value-heads 4 "
            "--context-parallel-size 4",
            ("layers G", "4 heads in 2 groups"),
        ),
    ],
)
def test_what_the_layers_of_a_pattern_need(
    injected: Injected, given: str, texts: tuple[str, ...]
) -> None:
    words(injected, f"--hybrid-layer-pattern={given}", processes=8)
    if texts:
        injected.finding("layout", FAILS, *texts)
    else:
        assert not injected.findings("layout")


@pytest.mark.parametrize(
    ("free", "total", "verdict", "text"),
    [
        (70, 80, None, ""),
        (62, 80, WARNING, "nearly"),
        (30, 80, FAILS, "something else uses the rest"),
        (40, 40, FAILS, "does not fit into the devices' memory"),
    ],
)
def test_memory_that_megatron_estimates(
    injected: Injected, free: int, total: int, verdict: Verdict | None, text: str
) -> None:
    injected.backend, injected.devices = "cuda", 2
    injected.memory = (Memory(75 * GIB, 80 * GIB), Memory(free * GIB, total * GIB))
    injected.run = Run(processes=2)
    injected.arguments(bytes_needed=60 * GIB)
    if verdict is None:
        assert [one.verdict for one in injected.findings("memory")] == [Verdict.OK]
    else:
        injected.finding("memory", verdict, text, "60.0 GiB", "--micro-batch-size")


def test_ranks_share_the_memory_of_a_host(injected: Injected) -> None:
    injected.memory = (Memory(30 * GIB, 32 * GIB),)
    injected.run = Run(processes=4)
    injected.arguments(bytes_needed=10 * GIB)
    injected.finding("memory", FAILS, "4 ranks share it: 40.0 GiB")


LOCKED = {"forbidden": ("root/data",), "/data/x": "", "arguments": {"save": "/data/made"}}
MANY = {"run": Run(processes=8), "backend": "cuda", "devices": 4}
#: A check, its verdict, what is changed, and what it says.
FAULTS: list[tuple[Any, ...]] = [
    ("ranks", FAILS, MANY, "8 ranks would share 4 devices", "--nproc-per-node 4"),
    ("outputs", FAILS, LOCKED, "--save /data/made cannot be written"),
    ("outputs", FAILS, {"/data/x": "", "arguments": {"save": "/data/x"}}, "is a file"),
    ("data", WARNING, {"arguments": {}}, "--mock-data", "--data-path PREFIX"),
    ("tokenizer", FAILS, {"arguments": {"tokenizer_type": "HuggingFaceTokenizer"}}, "-model PATH"),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(injected: Injected, fault: tuple[Any, ...]) -> None:
    injected.find(*fault)


@pytest.mark.parametrize(("free", "verdict"), [(50, FAILS), (150, WARNING), (300, None)])
def test_room_for_checkpoints(injected: Injected, free: int, verdict: Verdict | None) -> None:
    injected.disk = (free * GIB, 1000 * GIB)
    injected.arguments(save="/data/checkpoints", parameters=7_000_000_000)
    if verdict is None:
        assert [one.verdict for one in injected.findings("outputs")] == [Verdict.OK]
    else:
        injected.finding("outputs", verdict, "7.00 billion", "91.3 GiB")


def test_inputs_that_are_not_there(injected: Injected, tmp_path: Path) -> None:
    injected.arguments(vocab_file=str(tmp_path / "vocab.json"))
    injected.finding("inputs", FAILS, "vocab.json does not exist")
    injected.arguments(load=str(tmp_path / "none"), exit_on_missing_checkpoint=True)
    injected.finding("inputs", FAILS, "latest_checkpointed_iteration.txt")
    injected.arguments(load="/none", save="/other")
    injected.finding("inputs", WARNING, "from scratch")
    injected.arguments(load="/none", save="/none")  # a script that resumes
    assert not injected.findings("inputs")


def test_which_data_a_training_names(injected: Injected, tmp_path: Path) -> None:
    listed = tmp_path / "list"
    listed.write_text("0.5 c 0.5 d")
    splits = tmp_path / "splits.json"
    splits.write_text('{"train": ["1", "e"], "valid": ["f"], "test": null}')
    injected.arguments(
        data_path=["0.3", "a", "0.7", "b"],
        train_data_path=["a", "g", "h"],
        data_args_path=str(listed),
        per_split_data_args_path=str(splits),
    )
    assert injected.run is not None
    assert prefixes(injected.run) == ["a", "b", "g", "h", "c", "d", "e", "f"]


@pytest.fixture
def prefix(injected: Injected, tmp_path: Path) -> str:
    """Ten documents of ten ids from 0 to 99, named by a training that fits."""
    made = dataset(tmp_path / "data", [list(range(10 * n, 10 * n + 10)) for n in range(10)])
    use(injected, made)
    return made


def use(injected: Injected, prefix: str, **others: object) -> None:
    given = {"data_path": [prefix], "padded_vocab_size": 128, "split": "8,1,1", "seq_length": 16}
    injected.arguments(**{**given, **others})


def test_data_that_is_sound(injected: Injected, prefix: str) -> None:
    for name in ("data", "token-ids", "amount-of-data", "tokenizer"):
        assert all(one.verdict is Verdict.OK for one in injected.findings(name)), name


def test_data_that_is_not_there(injected: Injected, prefix: str) -> None:
    use(injected, f"{prefix}s")
    injected.finding("data", FAILS, "x_text_document", "in that directory")


def test_data_with_its_suffix(injected: Injected, prefix: str) -> None:
    use(injected, f"{prefix}.bin")
    injected.finding("data", FAILS, f"--data-path {prefix}")


@pytest.mark.parametrize(
    ("suffix", "change", "text"),
    [
        (".bin", lambda old: old[:-7], "truncated"),
        (".idx", lambda old: b"PK\x03\x04" + old[4:], "not an index"),
        (
            ".bin",
            lambda old: b"version https://git-lfs.github.com/spec/v1\nsize 9\n",
            "git lfs pull",
        ),
    ],
)
def test_damaged_data(
    injected: Injected, prefix: str, suffix: str, change: Callable[[bytes], bytes], text: str
) -> None:
    path = Path(f"{prefix}{suffix}")
    path.write_bytes(change(path.read_bytes()))
    injected.finding("data", FAILS, text)


def test_directory_of_data_that_cannot_be_written(injected: Injected, prefix: str) -> None:
    injected.forbidden = ("/data",)
    injected.finding("data", FAILS, "--data-cache-path")
    use(injected, prefix, data_cache_path="/tmp")
    assert all(one.verdict is Verdict.OK for one in injected.findings("data"))


@pytest.mark.parametrize("kind", ["<u2", "<i4"])
def test_ids_outside_the_vocabulary(injected: Injected, tmp_path: Path, kind: str) -> None:
    made = dataset(tmp_path / "data", [[1, 2, 3], [4, 511, 5]], kind)
    use(injected, made, padded_vocab_size=512)
    assert [one.verdict for one in injected.findings("token-ids")] == [Verdict.OK]
    use(injected, made, padded_vocab_size=384)
    injected.finding("token-ids", FAILS, "511", "0 to 383", "accel-bridge inspect")
    # Without a tokenizer that was built, --vocab-size is padded as Megatron does.
    injected.arguments(data_path=[made], vocab_size=500, make_vocab_size_divisible_by=1)
    injected.finding("token-ids", FAILS, "0 to 499")
    injected.arguments(data_path=[made], vocab_size=500)
    assert [one.verdict for one in injected.findings("token-ids")] == [Verdict.OK]


def test_too_little_data(injected: Injected, prefix: str) -> None:
    use(injected, prefix, seq_length=4096)
    injected.finding("amount-of-data", FAILS, "100 tokens", "--seq-length 4096")


def test_split_without_documents(injected: Injected, prefix: str) -> None:
    use(injected, prefix, split="969,30,1")
    injected.finding("amount-of-data", FAILS, "validation, test would hold none", "10 documents")
    use(injected, prefix, split="969,30,1", eval_iters=0)
    assert not injected.findings("amount-of-data")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b"", "empty"),
        (b"<html>404</html>", "no JSON"),
    ],
)
def test_tokenizer_file_that_is_none(
    injected: Injected, tmp_path: Path, content: bytes, text: str
) -> None:
    file = tmp_path / "vocab.json"
    file.write_bytes(content)
    injected.arguments(vocab_file=str(file))
    injected.finding("tokenizer", FAILS, text)
