"""The parts of a rehearsal by themselves."""

from __future__ import annotations

import io
import json
import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.attention.flex_attention import create_block_mask

from accel_bridge.apps.rehearse import devices, replaced
from accel_bridge.apps.rehearse.command import _said, main
from accel_bridge.apps.rehearse.estimate import Network, estimate
from accel_bridge.apps.rehearse.matching import match, of_all, stand_for
from accel_bridge.apps.rehearse.memory import MIB, simulate
from accel_bridge.apps.rehearse.microbatches import enough
from accel_bridge.apps.rehearse.mode import Rehearsal
from accel_bridge.apps.rehearse.passes import UNKNOWN, Key, Pass
from accel_bridge.apps.rehearse.report import Outcome, _rank_rows, advise, checkpoint, table
from accel_bridge.apps.rehearse.work import less
from accel_bridge.errors import BridgeError
from accel_bridge.patches import rehearsal


@pytest.mark.parametrize(
    ("sizes", "events", "allocated", "reserved"),
    [
        # 512 bytes at least; small blocks share a segment of 2 MiB.
        ([1, 600], [0, 1], 512 + 1024, 2 * MIB),
        # From 1 MiB to 10 MiB: a segment of 20 MiB.
        ([2 * MIB, 3 * MIB], [0, 1], 5 * MIB, 20 * MIB),
        # Larger ones: their own, in steps of 2 MiB; what is not split off counts.
        ([11 * MIB - 100], [0], 12 * MIB, 12 * MIB),
        # What is free again serves the next, and neighbours grow together.
        ([12 * MIB, 12 * MIB, 24 * MIB], [0, ~0, 1], 12 * MIB, 12 * MIB),
        ([2 * MIB, 2 * MIB, 9 * MIB], [0, 1, ~0, ~1, 2], 9 * MIB, 20 * MIB),
    ],
)
def test_allocator(sizes: list[int], events: list[int], allocated: int, reserved: int) -> None:
    usage = simulate(events, sizes)
    assert (usage.allocated, usage.reserved) == (allocated, reserved)


def test_memory_is_within_three_percent_of_every_measured_row() -> None:
    docs = Path(__file__).resolve().parents[2] / "docs"
    rows = json.loads((docs / "rehearsed-memory.json").read_text())
    measured = {
        row["model"]: row["gigabytes"]
        for row in json.loads((docs / "performance.json").read_text())
        if row["way"] == "bridge"
    }
    assert len(rows) > 20
    for row in rows:
        assert row["measured"] == measured[row["model"]]
        assert row["rehearsed"] == pytest.approx(row["measured"], rel=0.03), row["model"]


def test_data_sets_are_small_and_never_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """T5's validation set without a sample is an error in Megatron up to 0.19."""
    package = ModuleType("megatron.training")
    package.get_args = lambda: SimpleNamespace(global_batch_size=4)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "megatron.training", package)
    module = ModuleType("training")
    module.train_step = lambda: None  # type: ignore[attr-defined]
    module.get_train_valid_test_num_samples = lambda: (10**9, 0, None)  # type: ignore[attr-defined]
    rehearsal._training(module, cast(rehearsal.Session, SimpleNamespace(steps=2)))
    assert module.get_train_valid_test_num_samples() == (16, 4, None)


def test_any_rank_writes_the_index_of_a_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """As rank 0 does, which may not be among the rehearsed."""
    monkeypatch.setattr(torch.distributed, "get_rank", lambda group=None: 5)

    class Builder:
        def build(self) -> list[int]:
            return [torch.distributed.get_rank(), torch.distributed.get_rank("a group")]

    module = cast(ModuleType, SimpleNamespace(BlendedMegatronDatasetBuilder=Builder))
    rehearsal._data_sets(module, cast(rehearsal.Session, None))
    assert Builder().build() == [0, 5]
    assert torch.distributed.get_rank() == 5


@pytest.mark.parametrize(
    ("iterations", "samples", "steps"),
    [
        *((500, None, 2), (1, None, 1), (None, 8, 1), (0, None, 2)),
        pytest.param(None, 80, 1, marks=pytest.mark.megatron),
    ],
)
def test_a_short_training(iterations: int | None, samples: int | None, steps: int) -> None:
    args = SimpleNamespace(train_iters=iterations, train_samples=samples, global_batch_size=8)
    args.seq_length = 1
    args.rampup_batch_size = ["4", "4", "100"] if samples == 8 else None
    args.step_batch_size_schedule = "0:8, 1K:32 2M:64" if samples == 80 else None
    notes: list[str] = []
    session = SimpleNamespace(steps=2, note=notes.append)
    rehearsal._shorten(args, cast(rehearsal.Session, session))
    assert session.steps == steps
    assert len(notes) == (steps < 2) + bool(samples)
    assert args.rampup_batch_size is None
    assert args.global_batch_size == (64 if samples == 80 else 8)


def test_a_compiled_function_keeps_its_arguments_and_results() -> None:
    """And no more: gradients are of the same shapes, and nothing outlives the backward pass."""

    def gated(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (x.float() * torch.sigmoid(gate.float()) * weight).to(x.dtype)

    def saved(function: Callable[..., torch.Tensor]) -> tuple[int, int]:
        """Bytes that are alive after the forward and after the backward pass."""
        with FakeTensorMode(), Rehearsal("cpu", 0) as mode:
            x, gate = (torch.ones(1024, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
            weight = torch.ones(1024, requires_grad=True)
            before = mode.ledger.now
            out = function(x * 1, gate * 1, weight)
            after = mode.ledger.now - before
            out.sum().backward()
            assert x.grad.shape == x.shape
            del out
            return after, mode.ledger.now - before

    eager, compiled = saved(gated), saved(rehearsal.as_compiled(gated))
    assert compiled[0] == 3 * 2048  # x, the gate and the result
    assert eager[0] > 2 * compiled[0]
    assert compiled[1] == eager[1] == 2 * 2048 + 4096  # the gradients


def test_devices() -> None:
    assert devices.find("gb:80").memory == 80 * 10**9
    with pytest.raises(devices.DeviceNameError):
        devices.find("h1000")


def test_kinds_of_ranks() -> None:
    groups = [
        {"what": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": [0, 4]},
        {"what": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": [1, 5]},
        {"what": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": [2, 6]},
        {"what": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": [3, 7]},
        *({"what": "DATA_PARALLEL_GROUP", "ranks": [a, a + 2]} for a in (0, 1, 4, 5)),
    ]
    kinds = of_all(groups, 8)
    assert sorted(map(sorted, kinds.values())) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert stand_for([0, 2, 4, 7], kinds) == {0: [0, 1], 2: [2, 3], 4: [4, 5], 7: [6, 7]}
    assert stand_for([0, 7], kinds) == {0: [0, 1, 2, 3], 7: [4, 5, 6, 7]}
    assert stand_for(range(8), kinds) == {rank: [rank] for rank in range(8)}
    assert stand_for([0, 1, 4], kinds) == {0: [0, 2, 3], 1: [1], 4: [4, 5, 6, 7]}


def _rank(rank: int, *calls: tuple[Any, ...]) -> dict[str, Any]:
    return {
        "rank": rank,
        "own_groups": [{"what": "TP", "ranks": [0, 1]}],
        "schedule": {},
        "calls": [
            [1, kind, 0, "bfloat16", [[size]], 2 * size, peer, f"a.py:{size}", 1]
            for kind, size, peer in calls
        ],
    }


def test_matching() -> None:
    same = [("all_reduce", 4, -1), ("broadcast", 8, 0)]
    assert match([_rank(0, *same), _rank(1, *same)]) == []
    (problem,) = match([_rank(0, *same), _rank(1, *reversed(same))])
    assert "all_reduce" in problem
    assert "broadcast" in problem
    assert "a.py:4" in problem
    assert "a.py:8" in problem
    assert match([_rank(0, ("send", 4, 1)), _rank(1, ("recv", 4, 0))]) == []
    assert match([_rank(0, ("send", 4, 1)), _rank(1, ("recv", 5, 0))])
    assert match([_rank(0, ("send", 4, 1)), _rank(1)])


def test_ranks_of_which_one_ran_more_microbatches_meet() -> None:
    few, more = (_rank(n, *[("all_reduce", 4, -1)] * calls) for n, calls in ((0, 3), (1, 9)))
    few["calls"][1][-1], few["schedule"] = 7, {"run": 3}
    more["schedule"] = {"run": 9}
    assert match([few, more]) == []
    few["calls"][1][-1] = 6
    assert "never does" in match([few, more])[0]


@pytest.mark.parametrize(
    ("schedule", "run"),
    [((3, 1, 1, 1), 3), ((512, 1, 1, 1), 4), ((512, 16, 1, 1), 19), ((130, 4, 2, 4), 22)],
)
def test_microbatches_that_are_run(schedule: tuple[int, int, int, int], run: int) -> None:
    """Fill, two periods that are compared, and one at each end; what divides the rest remains."""
    assert enough(*schedule) == run


def test_nothing_is_kept_over_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    with pytest.raises(BridgeError, match="nothing is written over"):
        main(["--keep", str(tmp_path), "--", "true"])


def _remedies(room: int) -> tuple[list[dict[str, Any]], list[tuple[str, ...]]]:
    """Advice for a training of 100 bytes on a device of ``room``, and what was rehearsed for it."""
    saves = {"--a": 3, "--b": 20, "--c": 30, "--d": 30}
    tried: list[tuple[str, ...]] = []

    def again(flags: Sequence[str]) -> dict[str, Any]:
        tried.append(tuple(flags))
        if "--d" in flags:
            raise BridgeError("rank 0 does not get through.", evidence="--d is not for it", next="")
        needs = 100 - sum(saves[one] for one in flags if one.startswith("--"))
        return {"fits": needs <= room, "needs_bytes": needs, "seconds": 1.0}

    named = [{"what": "c", "flags": ["--c", "1"]}, {"what": "c again", "flags": ["--c", "2"]}]
    named += [{"what": one, "flags": [f"--{one}"]} for one in "abd"]
    return advise(named, again), tried


def test_advice_recommends_only_what_it_rehearsed() -> None:
    rows, tried = _remedies(99)
    assert [row["fits"] for row in rows if "refused" not in row] == [True] * 4
    assert len(tried) == 5  # one is enough: nothing is combined
    rows, tried = _remedies(48)
    assert [tuple(row["flags"]) for row in rows] == tried
    assert tried[5:] == [("--c", "1", "--b"), ("--c", "1", "--b", "--a")]
    text = table([{"flags": [], "fits": False, "needs_bytes": 100, "seconds": 1.0}, *rows])
    best, *_ = (line for line in text.splitlines() if "yes" in line)
    assert best.endswith("--c 1 --b --a")
    assert "--d is not for it" in text
    rows, tried = _remedies(10)
    assert not any(row.get("fits") for row in rows)


def test_time_follows_the_network_that_was_given() -> None:
    rank = _rank(0, ("all_reduce", 10**9, -1)) | {"work": {"matmul": [1, 1e15, 0.0]}}
    rank |= {"schedule": {"stages": 4, "chunks": 1, "microbatches": 12}}
    device = devices.find("h100-80g")
    slow, fast = (estimate(rank, device, Network(link=gb * 1e9)) for gb in (70.0, 700.0))
    # 2 GB, of which a ring of two sends each half twice
    assert slow.communicating == pytest.approx(2e9 / (0.7 * 70e9), rel=0.01)
    assert fast.communicating == pytest.approx(slow.communicating / 10, rel=0.01)
    assert slow.waiting == pytest.approx(slow.computing / 4)
    assert slow.low <= slow.seconds <= slow.high
    apart = estimate(rank, device, Network(network=35e9, per_node=1))
    assert apart.communicating == pytest.approx(2 * slow.communicating, rel=0.01)
    late = estimate(rank, device, Network(link=70e9, latency=1.0))
    assert late.communicating == pytest.approx(slow.communicating + 1, rel=0.01)


def test_the_host_takes_its_time() -> None:
    """An optimizer there, and copies of gradients and weights."""
    options = "lr", "beta1", "beta2", "weight_decay", "eps"
    rank = _rank(0, ("all_reduce", 1, -1)) | {"schedule": {}}
    with FakeTensorMode(), Rehearsal("cuda", 0) as mode:
        there, here = (torch.empty(10**9, device=device) for device in ("cuda", "cpu"))
        before = mode.work.rows()
        here.copy_(there)
        step = torch.ones(1)
        four, flags = ([here] for _ in range(4)), {"amsgrad": False, "maximize": False}
        torch._fused_adamw_(*four, [], [step], **dict.fromkeys(options, 0.1), **flags)
        rank["work"] = less(mode.work.kinds, before)
    found = estimate(rank, devices.find("h200"), Network())
    assert found.communicating == pytest.approx(4e9 / 50e9, rel=0.01)
    assert found.computing == pytest.approx(4 * 4e9 / 50e9, rel=0.01)


def test_what_an_npu_would_not_take_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    from accel_bridge.apps.rehearse.backend import RehearsedBackend
    from accel_bridge.kernels import ATTENTION, AttentionOptions
    from accel_bridge.plugins.manager import load_plugins

    monkeypatch.setenv("ACCEL_BRIDGE_ASCEND_CHIP", "910B:8.5.0")
    backends = {found.item.name: found.item for found in load_plugins().backends()}
    notes: list[str] = []
    session = SimpleNamespace(note=notes.append)
    backend = RehearsedBackend(
        backends["cpu"],
        backends["cpu"],
        devices.find("910b-64g"),
        cast("Any", session),
        backends["ascend"],
    )
    attention = backend.kernels()[ATTENTION]
    for size, found in ((128, 0), (1024, 1)):
        query = torch.empty(4, 1, 2, size, device="meta")
        attention.supports(query, query, query, AttentionOptions(layout="SBHD"))
        assert len(notes) == found
    assert "head size is 1 to 768, not 1024: on Ascend 910B the reference" in notes[0]


@pytest.mark.parametrize("width", [16, 24])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_attention_has_the_values_width(dtype: torch.dtype, width: int) -> None:
    """Heads of latent attention are wider in the query than in the value."""
    with FakeTensorMode():
        query, key = (torch.empty(2, 4, 8, 24, dtype=dtype) for _ in range(2))
        value = torch.empty(2, 4, 8, width, dtype=dtype)
        assert replaced.attention(query, key, value, is_causal=True).shape == value.shape


def test_the_arithmetic_of_attention_is_of_the_keys_that_are_seen() -> None:
    """All, half of them, and a window's: by FlashAttention, by cuDNN, and by FlexAttention."""
    flash = torch.ops.aten._flash_attention_forward
    cudnn = torch.ops.aten._scaled_dot_product_cudnn_attention
    found = []
    mask = create_block_mask(lambda b, n, i, j: (j <= i) & (j > i - 512), 1, 1, 4096, 4096, "cpu")
    with FakeTensorMode(allow_non_fake_inputs=True), Rehearsal("cpu", 0) as mode:
        query = torch.empty(1, 2, 4096, 64, dtype=torch.bfloat16)
        packed = query.transpose(1, 2)
        sizes = None, None, 4096, 4096, 0.0
        for call in (
            lambda: cudnn(query, query, query, None, True),
            lambda: cudnn(query, query, query, None, True, 0.0, True),
            lambda: flash(packed, packed, packed, *sizes, True, False, window_size_left=-1),
            lambda: flash(packed, packed, packed, *sizes, False, False, window_size_left=511),
            lambda: replaced.flex_attention(query, query, query, block_mask=mask),
        ):
            before = mode.work.rows()
            call()
            found.append(less(mode.work.kinds, before)["attention"][1])
    whole = 2 * 4096 * 4096 * (2 * 64 + 2 * 64)
    # FlexAttention's tiles that the edge of the window cuts are whole.
    assert found[:4] == [whole, whole // 2, whole // 2, whole // 8]
    assert found[4] == pytest.approx(whole / 8 * 1.2, rel=0.05)


@pytest.mark.parametrize("capacity", [3, 4, 6])
def test_experts_with_a_capacity_take_tokens_that_chose_them(capacity: int) -> None:
    """Megatron's router: each token takes two of four experts, each expert so many tokens."""
    with FakeTensorMode(), Rehearsal("cpu", 0):
        scores = torch.rand(8, 4)
        _, columns = torch.topk(scores, 2, dim=1)
        taken = torch.zeros_like(scores).scatter(1, columns, 1)
        _, rows = torch.topk(scores, capacity, dim=0)
        mask = torch.zeros_like(scores).scatter(0, rows, 1)
        assert mask.sum(0).tolist() == [capacity] * 4
        assert (mask * taken).sum(0).tolist() == [min(capacity, 4)] * 4


def test_a_pass_that_releases_what_the_one_before_held_and_holds_nothing() -> None:
    """As where a recomputed router's tensors are gone when the backward pass ends."""
    held: dict[Key, Any] = {}
    with FakeTensorMode(), Rehearsal("cpu", 0) as mode:
        passes = [Pass(mode)]
        module = SimpleNamespace(tensor=torch.empty(64))
        passes[-1].end({}, [], held)
        for _ in range(2):
            passes.append(Pass(mode))
            module.tensor = None
            torch.empty(64)
            passes[-1].end({}, passes[:-1], held)
    assert [UNKNOWN in one.events for one in passes] == [False, True, False]


def test_what_was_assumed_once_is_assumed_again() -> None:
    """As where Megatron 0.12 asserts that all its counts of tokens are the same."""
    with FakeTensorMode(), Rehearsal("cpu", 0):
        count = torch.empty((), dtype=torch.int64)
        counts = [torch.clone(count) for _ in range(2)]
        assert all(one.item() == counts[0] for one in counts)
        counts[0] += 1
        assert counts[0].item() != counts[1]
        counts[0].copy_(torch.empty((), dtype=torch.int64))
        assert counts[0].item() == 1


def test_a_rank_that_failed_speaks_for_itself() -> None:
    tail = [
        "[rank3]: accel-bridge: error: rank 3: The model cannot be built.",
        "[rank3]:   evidence: ValueError at a.py:1",
        "[rank3]:   next:     a smaller one",
    ]
    said = (": The model cannot be built.", ["ValueError at a.py:1"], "a smaller one")
    assert _said(["noise", *tail]) == said
    assert _said(["Killed"])[:2] == (".", ["Killed"])
    assert _said(["    f(x)", "    ^^^^", "KeyError: 7"])[:2] == (": KeyError: 7", ["f(x)"])


def test_ranks_that_nobody_stands_for() -> None:
    rank = {"rank": 0, "world": 8, "stands_for": [0, 1], "files": [["a.distcp", 10**9]]}
    outcome = Outcome(devices.find("h200"), [rank], [])
    assert checkpoint(outcome)[0] == "a checkpoint writes about 2.0 GB without 6 other ranks':"
    rank |= {"parameters": 1, "peak_bytes": 1, "needs_bytes": 1, "fits": True}
    assert _rank_rows(outcome)[-1][:3] == ["others", "6", "not rehearsed"]
    rank["stands_for"] = list(range(8))
    assert checkpoint(outcome)[0] == "a checkpoint writes about 8.0 GB:"


def test_a_vocabulary_that_is_not_here(tmp_path: Path) -> None:
    """Its size is the command's, the type's, or an error that says so."""
    notes: list[str] = []
    session = cast(rehearsal.Session, SimpleNamespace(note=notes.append, directory=tmp_path))

    def size(kind: str | None, given: int | None, default: str | None = None) -> int:
        args = SimpleNamespace(tokenizer_type=kind, vocab_size=given, vocab_file="absent.txt")
        rehearsal._without_tokenizer(args, session)
        assert args.vocab_file is None
        rehearsal._own_tokenizer(args, session, kind or default)
        if args.vocab_file is not None:  # of marks, which BERT's data set asks for
            return len(Path(args.vocab_file).read_text().splitlines())
        return int(args.vocab_size) + 1  # the end of a document is one more

    assert size("GPT2BPETokenizer", None) == size("GPT2BPETokenizer", 50256) == 50257
    assert size("GPTSentencePieceTokenizer", 256_000) == 256_000
    assert size(None, None, "BertWordPieceLowerCase") == 30522
    assert size("HuggingFaceTokenizer", 128_256) == 128_256  # no hub is asked
    with pytest.raises(BridgeError, match="nothing tells its size"):
        size("GPTSentencePieceTokenizer", None)
    hub = {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "deepseek-ai/DeepSeek-V3"}
    rehearsal._without_tokenizer(SimpleNamespace(**hub), session)
    assert notes[-1].endswith("with --vocab-size N it is not asked for")


def test_a_fake_tensor_is_pickled_as_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Transformer Engine does what FP8 keeps beside the weights."""
    monkeypatch.setattr(FakeTensor, "__reduce_ex__", replaced.reduce)
    with FakeTensorMode():
        data = pickle.dumps(torch.empty(100, 10))
        assert 4000 < len(data) < 5000
        assert pickle.loads(data).shape == (100, 10)

        class SafeUnpickler(pickle.Unpickler):
            def find_class(self, module: str, name: str) -> Any:
                raise pickle.UnpicklingError(name)

        module = cast(ModuleType, SimpleNamespace(SafeUnpickler=SafeUnpickler))
        rehearsal._pickles(module, cast(rehearsal.Session, None))
        assert SafeUnpickler(io.BytesIO(data)).load().shape == (100, 10)
