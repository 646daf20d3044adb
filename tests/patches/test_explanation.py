"""What an error of Megatron is told as: the stage, what was demanded, the flags."""

from __future__ import annotations

import argparse
import io
import types
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from end_to_end.launcher import train

from accel_bridge.errors import BridgeError
from accel_bridge.patches import _advice_table
from accel_bridge.patches.advice import _make_quiet, _of_uncaught, advise
from accel_bridge.patches.argument_values import _FORMATS, refused
from accel_bridge.patches.arguments import REFUSED, SERVED
from accel_bridge.patches.help_text import explain_complaints
from accel_bridge.patching import host
from accel_bridge.patching.host import flag_of, know_flags, written
from accel_bridge.process.endings import explain_uncaught, explanation, of_uncaught

ARGS = SimpleNamespace(
    micro_batch_size=2, hidden_size=64, num_attention_heads=5, save=None, load="here"
)


def raised(
    directory: Path,
    name: str,
    body: str,
    args: object = ARGS,
    module_name: str = "megatron.training.some",
) -> BaseException:
    """The error of a function of that name in a file below a directory ``megatron``."""
    file = directory / "megatron" / "training" / "some.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"def {name}(args):\n    {body}\n")
    module = types.ModuleType(module_name)
    exec(compile(file.read_text(), str(file), "exec"), vars(module))
    try:
        vars(module)[name](args)
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def told_of(error: BaseException, args: object = None) -> BridgeError:
    """What is said of the error in the place of its traceback."""
    advise(error, args)
    found = explanation(error)
    assert found is not None
    return found


@pytest.fixture
def parser(monkeypatch: pytest.MonkeyPatch) -> argparse.ArgumentParser:
    """A parser whose flags are the known ones."""
    monkeypatch.setattr(host, "_ACTIONS", [])
    parser = argparse.ArgumentParser()
    know_flags(parser)
    return parser


def test_a_bare_assertion_names_its_flags(tmp_path: Path) -> None:
    body = "assert args.hidden_size % args.num_attention_heads == 0"
    error = raised(tmp_path, "validate_args", body)
    told = told_of(error)
    assert told.what.startswith("Megatron does not accept these arguments: hidden_size %")
    assert "megatron/training/some.py:2" in told.evidence[0]
    assert told.evidence[1] == "--hidden-size 64 --num-attention-heads 5"
    assert told.next.startswith("change --hidden-size, --num-attention-heads until")


def test_a_framework_with_a_directory_of_that_name_is_not_megatron(tmp_path: Path) -> None:
    """SkyRL's workers lie in one; their users want the traceback, and no word about Megatron."""
    error = raised(tmp_path, "train", "import absent_package", module_name="workers.megatron.some")
    advise(error, None)
    assert explanation(error) is None


@pytest.mark.megatron
@pytest.mark.filterwarnings("ignore")
def test_every_argument_of_megatron_is_named_as_its_parser_takes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some sixty are written otherwise than they are called."""
    from megatron.training.arguments import add_megatron_arguments

    monkeypatch.setattr(host, "_ACTIONS", [])
    parser: argparse.ArgumentParser = add_megatron_arguments(argparse.ArgumentParser())
    know_flags(parser)
    known = parser._option_string_actions
    names = {action.dest for action in parser._actions}
    for name in names:
        assert known[flag_of(name)].dest == name
        for value in (True, False):
            flag = written(name, value)
            if known[flag_of(name)].nargs == 0 and name != "help" and "without" not in flag:
                assert getattr(parser.parse_args([flag]), name) is value
    assert written("apply_rope_fusion", False) == "--no-rope-fusion"
    for rule in (*REFUSED, *SERVED, *_FORMATS):
        assert rule.flag in known or rule.name not in names


def test_a_block_is_not_the_error_of_its_with(tmp_path: Path) -> None:
    """Transformer Engine refuses a precision where its context begins."""
    body = "with args.context:\n        # of seq_length\n        print(args.hidden_size)"
    args = SimpleNamespace(**vars(ARGS), context=io.StringIO())
    args.context.close()
    error = raised(tmp_path, "train", body, args)
    advise(error, args)
    told = explanation(error)
    assert told is not None
    assert told.evidence[0].endswith("some.py:2: with args.context:")
    assert told.next.startswith("fix what it says")


@pytest.mark.parametrize(
    ("body", "next"),
    [
        ("assert args.micro_batch_size is not None", "give --micro-batch-size"),
        ("assert args.use_flash_attn", "give --use-flash-attn"),
        ("assert args.hidden_size == 32", "change --hidden-size until hidden_size == 32"),
    ],
)
def test_one_argument_is_asked_for_without_a_circle(
    body: str, next: str, tmp_path: Path, parser: argparse.ArgumentParser
) -> None:
    parser.add_argument("--micro-batch-size")
    parser.add_argument("--use-flash-attn", action="store_true")
    parser.add_argument("--hidden-size", type=int, default=64)
    args = parser.parse_args([])
    error = raised(tmp_path, "validate_args", body, args)
    assert told_of(error, args).next.startswith(f"{next}; ")


@pytest.mark.parametrize(
    ("body", "next"),
    [
        ("raise ValueError('dp_reshardable: use --ckpt-fully-parallel-save')", "--no-load-optim"),
        ("raise KeyError('optimizer.state.exp_avg.weight')", "--use-distributed-optimizer"),
        ("raise KeyError('optimizer')", "--no-load-optim"),
        ("raise KeyError('distrib_optim_sharding_type')", "--no-load-optim"),
        ("raise RuntimeError('Could not find parameter group {}')", "--no-load-optim"),
        ("raise RuntimeError('Global shape mismatch for loaded [8]')", "model's arguments"),
        (
            'raise RuntimeError("KeyError: \\"optimizer.state.exp not in [\'a\']")',
            "--no-load-optim",
        ),
        ("raise KeyError('args')", "--ckpt-step"),
    ],
)
def test_a_whole_checkpoint_of_another_run_is_not_called_damaged(
    body: str, next: str, tmp_path: Path
) -> None:
    error = raised(tmp_path, "load_checkpoint", body)
    told = told_of(error)
    assert next in told.next
    assert ("whole" in told.next) is (next == "--ckpt-step")


def test_a_rank_that_does_not_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = [(1, 77, "T"), (2, 78, "R"), (3, 79, "Z")]
    monkeypatch.setattr(_advice_table, "neighbours", lambda: iter(ranks))
    error = raised(tmp_path, "train", "raise RuntimeError('Timed out waiting 6000ms for recv')")
    assert told_of(error).evidence[-2:] == (
        "rank 1 (pid 77) does not run: stopped by a signal",
        "rank 3 (pid 79) does not run: ended",
    )


@pytest.mark.parametrize(
    ("name", "body", "what"),
    [
        ("load_checkpoint", "raise KeyError('optimizer')", "The checkpoint cannot be loaded"),
        ("load_checkpoint", "open('/no/such/file')", "The checkpoint cannot be loaded"),
        ("setup_model_and_optimizer", "raise ValueError('no')", "The model cannot be built"),
        ("train", "raise OSError(28, 'No space left on device')", "the disk is full"),
        ("train", "raise RuntimeError('Connection closed by peer')", "this rank lost"),
        ("train", "raise RuntimeError('Timed out waiting 6000ms for recv')", "this rank waited"),
        ("save_checkpoint", "raise TypeError('not NoneType')", "training stopped: a loss"),
        (
            "validate_args",
            "raise AssertionError('world size (2) is not divisible by 4')",
            "the num",
        ),
    ],
)
def test_stages_and_known_errors(tmp_path: Path, name: str, body: str, what: str) -> None:
    error = raised(tmp_path, name, body)
    told = told_of(error, ARGS)
    assert told.what.startswith(what)
    assert told.evidence
    assert "NoneType" not in told.evidence[0]  # what Megatron makes of an absent --save
    assert told.next


def test_an_error_that_came_through_no_patched_function(tmp_path: Path) -> None:
    """It is explained where it would end the process; a user's own stays raw."""
    error = raised(tmp_path, "load_yaml", "raise AttributeError('no yaml_cfg')")
    assert explanation(error) is None
    explain_uncaught(_of_uncaught)
    told = of_uncaught(error)
    assert told is not None
    assert "no yaml_cfg" in told.what
    assert of_uncaught(ValueError("mine")) is None
    assert of_uncaught(KeyboardInterrupt()) is None
    full = of_uncaught(MemoryError())
    assert full is not None
    assert "memory is full" in full.what


@pytest.mark.parametrize(
    ("words", "evidence"),
    [
        (["--layers", "1e9"], "--layers: how deep it is"),
        (["--layer", "2"], "Megatron has no --layer; did you mean '--layers'?"),
        (["--layers"], "expected one argument"),
        (["--kind", "x\x1b[31m" * 900], "invalid choice"),
    ],
    ids=["value", "name", "none", "choice"],
)
def test_complaints_about_arguments(
    words: list[str], evidence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Megatron's usage has a thousand lines; status and exception are those of argparse."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--layers", type=int, help="how deep\n it is")
    parser.add_argument("--kind", choices=["a", "b"])
    explain_complaints(parser)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(words)
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith("accel-bridge: error: ")
    assert evidence in said
    assert "usage:" not in said
    assert "\x1b" not in said
    assert len(said) < 1500


@pytest.mark.parametrize("named", [["no.such", "thing"], ["only"], "word", ["a", "b", "c"]])
def test_named_modules_that_lead_nowhere(named: Any) -> None:
    told = refused(named, ImportError("No module named 'no'"))
    assert "--spec" in told.next


def test_three_parts_in_another_librarys_error_are_told() -> None:
    error = AssertionError("MXFP8 is not here\n  evidence: no kernel\n  next:     choose another")
    told = explanation(error)
    assert told is not None
    assert (told.what, told.evidence, told.next) == (
        "MXFP8 is not here", ("no kernel",), "choose another",
    )  # fmt: skip
    assert explanation(AssertionError("evidence: none")) is None


@pytest.mark.parametrize("debug", [False, True])
def test_the_timer_around_a_forward_pass_logs_no_traceback(
    debug: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCEL_BRIDGE_LOG", "debug" if debug else "info")
    seen: list[Any] = []

    def upstream(self: object, ex_type: Any, ex_val: Any, ex_tb: Any) -> bool:
        seen.append(ex_type)
        return False

    left = _make_quiet(SimpleNamespace(original=upstream))  # type: ignore[arg-type]
    assert left(None, ValueError, ValueError("x"), None) is False
    assert seen == [ValueError if debug else None]


LARGE = SimpleNamespace(
    micro_batch_size=4,
    seq_length=4096,
    recompute_granularity=None,
    use_distributed_optimizer=True,
    tensor_model_parallel_size=1,
)


def note(error: BaseException, args: object = LARGE) -> str:
    advise(error, args)
    return "\n".join(getattr(error, "__notes__", ()))


def test_a_device_without_memory() -> None:
    for error in (torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("NPU out of memory")):
        text = note(error)
        assert (
            "evidence: --micro-batch-size 4 --seq-length 4096 --use-distributed-optimizer "
            "--tensor-model-parallel-size 1\n" in text
        )
        assert "next:     a smaller --micro-batch-size" in text


def test_a_machine_without_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50)
    assert "this machine's memory is full" in note(caught.value)
    full = type("OutOfMemoryError", (Exception,), {})  # Ray's
    said = "1 worker(s) were killed due to the node running low on memory."
    assert "this machine's memory is full" in note(full(said))


def test_no_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed.distributed_c10d, "is_nccl_available", lambda: False)
    store = torch.distributed.HashStore()
    with pytest.raises(RuntimeError) as caught:
        torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
    assert "has no NCCL" in note(caught.value)


@pytest.mark.parametrize(
    "message",
    [
        "Number of layers (3) must be evenly divisible by pipeline-model-parallel-size (2) when no "
        "pipe separators are specified in the pattern.",
        "The number of pipe-delimited segments (3) in hybrid_layer_pattern must be evenly "
        "divisible by pipeline_model_parallel_size (2).",
    ],
)
def test_a_pattern_that_is_not_divided_among_the_stages(message: str) -> None:
    """Megatron's own words, of a rank that builds its part of a hybrid model."""
    args = SimpleNamespace(hybrid_layer_pattern="M*-", pipeline_model_parallel_size=2)
    text = note(ValueError(message), args)
    assert "--hybrid-layer-pattern M*- --pipeline-model-parallel-size 2" in text
    assert "into as many segments as stages" in text


def test_no_attention_backend_names_the_flags_that_bear_on_it() -> None:
    backend = Enum("AttnBackend", ["unfused"]).unfused  # as Megatron has it
    args = SimpleNamespace(attention_backend=backend, context_parallel_size=2)
    error = ValueError("No dot product attention backend is available for the provided inputs.")
    assert "--attention-backend unfused --context-parallel-size 2" in note(error, args)


@pytest.mark.megatron
def test_it_is_printed_in_place_of_the_traceback_of_a_run() -> None:
    """A vocabulary that no machine has the memory for; the traceback comes with debug."""
    run = train("--vocab-size", str(2**44))
    assert run.returncode != 0
    lines = run.output.splitlines()
    start = "accel-bridge: error: this machine's memory is full"
    found = next(i for i, line in enumerate(lines) if line.startswith(start))
    assert "can't allocate memory" in lines[found + 1]
    assert "evidence: --micro-batch-size 2" in lines[found + 2]
    assert lines[found + 3].startswith("  next:")
    assert "Traceback" not in run.output
