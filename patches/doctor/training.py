"""Checks of a training's arguments: layout, memory, checkpoints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from accel_bridge.errors import BridgeError
from accel_bridge.patches.checkpoints import TRACKER, check_checkpoint, check_tokenizer
from accel_bridge.patches.doctor.parsing import WORDS
from accel_bridge.patching.host import flag_of
from accel_bridge.plugins.checks import (
    Check,
    Finding,
    Machine,
    Run,
    Verdict,
    fails,
    of_error,
    ok,
    warning,
)

_SUBJECT: Final = "Training"
_GIB: Final = 2**30
#: Bytes of a parameter in a checkpoint: bf16 weights, fp32 weights and two moments of Adam.
_SAVED: Final = 14

_TP: Final = "tensor_model_parallel_size"
_PP: Final = "pipeline_model_parallel_size"
_CP: Final = "context_parallel_size"
_EP: Final = "expert_model_parallel_size"


class _Numbers:
    """The numbers among the arguments, with Megatron's defaults for sizes."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def size(self, name: str) -> int:
        """A size of the layout; 1 where it is not given."""
        found = self._run.argument(name, 1)
        return found if isinstance(found, int) and found > 0 else 1

    def number(self, name: str) -> int | None:
        found = self._run.argument(name)
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    def rest(self, name: str, divisor: int) -> str | None:
        """``--name 10`` where it cannot be divided so; None where it can, or is not known."""
        value = self.number(name)
        return None if value is None or value % divisor == 0 else f"{flag_of(name)} {value}"


_ENDS: Final = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
#: Arguments that divide the layers among the stages otherwise than evenly.
_UNEVEN: Final = (
    "pipeline_model_parallel_layout",
    *_ENDS,
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "hybrid_layer_pattern",
    "hybrid_override_pattern",
    "noop_layers",
    "num_layer_list",
)


def _layout(machine: Machine) -> Iterator[Finding]:
    """What must be divisible. Megatron stops at the first that is not; this names them all."""
    run = machine.run
    if run is None or run.parsed is None:
        return
    numbers = _Numbers(run)
    tp, pp, cp = (numbers.size(name) for name in (_TP, _PP, _CP))
    refused = any(finding.verdict is Verdict.FAILS for finding in run.parsed.findings)
    if run.parsed.by != WORDS and not refused:
        # It asserts everything else before a model is built.
        yield from _divided(numbers, (("ffn_hidden_size", tp, flag_of(_TP)),), set())
        yield from _pattern(run, pp)
        yield from _layers(run, numbers)
        return
    model = tp * pp * cp
    shown = f"{flag_of(_TP)} {tp} {flag_of(_PP)} {pp} {flag_of(_CP)} {cp}"
    if run.ranks % model:
        yield fails(
            f"{run.ranks} rank{'s' * (run.ranks != 1)} cannot be divided into groups of {model}",
            f"{run.processes} ranks on {run.machines} machine{'s' * (run.machines != 1)}; {shown}",
            next=f"--nproc-per-node {model} (times --nnodes a multiple of {model}), or smaller "
            "parallel sizes",
        )
    data = max(1, run.ranks // model)
    micro = numbers.size("micro_batch_size")
    if run.ranks % model == 0 and (rest := numbers.rest("global_batch_size", micro * data)):
        yield fails(
            "the batch cannot be divided among the ranks",
            f"{rest}; --micro-batch-size {micro} x {data} data parallel ranks = {micro * data}",
            next=f"--global-batch-size with a multiple of {micro * data}",
        )
    yield from _divided(
        numbers,
        (
            ("hidden_size", numbers.size("num_attention_heads"), "--num-attention-heads"),
            ("num_attention_heads", tp, flag_of(_TP)),
            ("ffn_hidden_size", tp, flag_of(_TP)),
            ("seq_length", 2 * cp if cp > 1 else 1, f"twice {flag_of(_CP)}"),
            ("seq_length", tp if run.argument("sequence_parallel") else 1, flag_of(_TP)),
            ("num_experts", numbers.size(_EP), flag_of(_EP)),
        ),
        # With a size of their own, heads need not fill the hidden size.
        without={"hidden_size"} if _has_own_heads(run) else set(),
    )
    groups = numbers.number("num_query_groups") if run.argument("group_query_attention") else None
    if groups is not None and groups % tp and tp % groups:
        yield fails(
            "the query groups cannot be divided among tensor parallel ranks",
            f"--num-query-groups {groups}; {flag_of(_TP)} {tp}",
            next=f"{flag_of(_TP)} with a divisor of {groups}",
        )
    yield from _pattern(run, pp)
    yield from _layers(run, numbers)
    if not any(run.argument(name) for name in _UNEVEN):
        virtual = numbers.number("virtual_pipeline_model_parallel_size") or 1
        yield from _divided(
            numbers, (("num_layers", pp * virtual, f"{flag_of(_PP)} x virtual stages"),), set()
        )
    sequence, most = numbers.number("seq_length"), numbers.number("max_position_embeddings")
    if sequence is not None and most is not None and sequence > most:
        yield fails(
            "the sequences are longer than the model has positions",
            f"--seq-length {sequence}; --max-position-embeddings {most}",
            next=f"--max-position-embeddings {sequence}",
        )


def _pattern(run: Run, stages: int) -> Iterator[Finding]:
    """Whether a hybrid model's layers can be divided among the pipeline stages."""
    pattern = run.argument("hybrid_layer_pattern")
    if not isinstance(pattern, str) or any(run.argument(name) for name in _ENDS):
        return
    layers = pattern.partition("/")[0]  # of multi-token prediction after it
    segments = layers.split("|")
    number, what = len(segments), "segments between |"
    if number == 1:
        number, what = len(layers), "layers and no |"
    if number % stages:
        yield fails(
            "the layers cannot be divided among the pipeline stages",
            f"--hybrid-layer-pattern {pattern}: {number} {what}; {flag_of(_PP)} {stages}",
            next=f"divide the pattern into {stages} segments, or a multiple, with |",
        )


def _layers(run: Run, numbers: _Numbers) -> Iterator[Finding]:
    """What the layers of a hybrid model ask for; Megatron says it as it builds or runs each."""
    pattern = run.argument("hybrid_layer_pattern")
    if not isinstance(pattern, str):
        return
    tp, cp = numbers.size(_TP), numbers.size(_CP)
    convolves = run.argument("swiglu") or run.argument("deterministic_mode")
    for symbol, missing, flag in (
        ("E", numbers.number("num_experts") is None, "--num-experts"),
        ("G", not convolves, "--swiglu"),
        ("D", run.argument("apply_rope_fusion"), "--no-rope-fusion"),
        ("D", run.argument("add_bias_linear"), "--disable-bias-linear"),
        ("D", tp > 1 and not run.argument("sequence_parallel"), "--sequence-parallel"),
    ):
        if missing and symbol in pattern:
            yield fails(
                f"layers {symbol} of the pattern need {flag}",
                f"--hybrid-layer-pattern {pattern}; without {flag}",
                next=f"{flag}, or a pattern without {symbol}",
            )
    inner = 2 * (numbers.number("hidden_size") or 0) // numbers.size("mamba_head_dim")
    for symbol, heads, groups, least, flags in (
        (
            "M",
            numbers.number("mamba_num_heads") or inner,
            numbers.number("mamba_num_groups"),
            tp,
            "--mamba-num-heads and --mamba-num-groups",
        ),
        (
            "G",
            numbers.number("linear_num_value_heads"),
            numbers.number("linear_num_key_heads"),
            tp * cp,
            "--linear-num-value-heads and --linear-num-key-heads",
        ),
    ):
        if symbol not in pattern or not heads or not groups:
            continue
        if heads % groups or heads % (tp * cp) or groups % least:
            yield fails(
                f"the heads of layers {symbol} cannot be divided as asked",
                f"{heads} heads in {groups} groups; {flag_of(_TP)} {tp} {flag_of(_CP)} {cp}",
                next=f"{flags}: heads a multiple of groups and {tp * cp}, groups of {least}",
            )


def _has_own_heads(run: Run) -> bool:
    return bool(run.argument("kv_channels") or run.argument("multi_latent_attention"))


def _divided(
    numbers: _Numbers, rules: tuple[tuple[str, int, str], ...], without: set[str]
) -> Iterator[Finding]:
    for name, divisor, by in rules:
        if name not in without and divisor > 1 and (rest := numbers.rest(name, divisor)):
            yield fails(
                f"{rest} is no multiple of {divisor}",
                f"{by}: {divisor}",
                next=f"{flag_of(name)} with a multiple of {divisor}",
            )


def _memory(machine: Machine) -> Iterator[Finding]:
    run = machine.run
    needed = run.parsed.bytes_needed if run is not None and run.parsed is not None else None
    if run is None or needed is None or not machine.memory:
        return
    shared = machine.backend is not None and machine.backend.features.tensors_on_host
    wanted = needed * run.processes if shared else needed
    used = machine.memory if shared else machine.memory[: run.processes]
    least = min(used, key=lambda one: one.free)
    evidence = [
        f"Megatron's own estimate for a rank: {needed / _GIB:.1f} GiB of weights, gradients, "
        "optimizer and activations",
        f"the device with least: {least.free / _GIB:.1f} GiB free of {least.total / _GIB:.1f}",
    ]
    if shared and run.processes > 1:
        evidence.append(f"{run.processes} ranks share it: {wanted / _GIB:.1f} GiB")
    fix = (
        "a smaller --micro-batch-size, --use-distributed-optimizer, --recompute-granularity "
        "selective, or more --tensor-model-parallel-size"
    )
    if wanted > least.total:
        yield fails("the model does not fit into the devices' memory", *evidence, next=fix)
    elif wanted > least.free:
        yield fails(
            "the model does not fit into the memory that is free: something else uses the rest",
            *evidence,
            next=f"end what uses it, or {fix}",
        )
    elif wanted > 0.9 * least.free:
        yield warning(
            "the model fills the memory nearly: the estimate leaves out workspaces and fragments",
            *evidence,
            next=fix,
        )
    else:
        yield ok("the model fits into memory", *evidence)


def _directories(machine: Machine) -> Iterator[Finding]:
    """Where the training would write."""
    run = machine.run
    for name in ("save", "tensorboard_dir", "data_cache_path", "wandb_save_dir"):
        directory = run.argument(name) if run is not None else None
        if run is None or not isinstance(directory, str) or not directory or "://" in directory:
            continue
        there = machine.nearest(Path(directory))
        if not there.is_dir():
            yield fails(
                f"{flag_of(name)} {directory} cannot be a directory",
                f"{there} is a file",
                next=f"give {flag_of(name)} another directory",
            )
        elif not machine.access(there, os.W_OK | os.X_OK):
            yield fails(
                f"{flag_of(name)} {directory} cannot be written",
                f"{there} belongs to user {there.stat().st_uid}; this is user {os.getuid()}",
                next=f"give {flag_of(name)} a directory that you may write",
            )
        elif name == "save":
            yield from _room(machine, run, directory, there)


def _room(machine: Machine, run: Run, directory: str, there: Path) -> Iterator[Finding]:
    parameters, (free, _) = run.argument("parameters"), machine.disk(there)
    if not isinstance(parameters, int):
        return
    size = parameters * (2 if run.argument("no_save_optim") else _SAVED)
    evidence = (
        f"--save {directory}: {free / _GIB:.1f} GiB free; a checkpoint of "
        f"{parameters / 1e9:.2f} billion parameters takes about {size / _GIB:.1f} GiB"
    )
    if free < size:
        yield fails(
            "the disk has no room for one checkpoint",
            evidence,
            next=f"free some (df -h {there}), give --save another disk, or --no-save-optim",
        )
    elif free < 2 * size:
        yield warning(
            "the disk has room for one checkpoint, and not for the next beside it",
            evidence,
            next=f"free some (df -h {there}), or give --save another disk",
        )
    else:
        yield ok("the disk has room for checkpoints", evidence)


def _inputs(machine: Machine) -> Iterator[Finding]:
    """The tokenizer's files and the checkpoint that is loaded."""
    run = machine.run
    if run is None or run.parsed is None:
        return
    args: Any = SimpleNamespace(**run.parsed.arguments)
    for check in (check_tokenizer, check_checkpoint):
        try:
            check(args)
        except BridgeError as error:
            yield of_error(error)
    load = run.argument("load")
    if not isinstance(load, str) or "://" in load or load == run.argument("save"):
        return
    directory = machine.at(str(Path(load).absolute()))
    if not (directory / TRACKER).is_file() and not run.argument("exit_on_missing_checkpoint"):
        yield warning(
            f"there is no checkpoint in --load {load}: Megatron starts from scratch",
            f"no {directory / TRACKER}",
            next="give an earlier --save's directory; --exit-on-missing-checkpoint stops instead",
        )


CHECKS: Final = (
    Check(
        "layout",
        _SUBJECT,
        "ranks, batch, heads, layers, experts and sequence that cannot be divided as asked",
        _layout,
        with_run=True,
    ),
    Check(
        "memory",
        _SUBJECT,
        "less free memory than Megatron's own estimate",
        _memory,
        with_run=True,
    ),
    Check(
        "outputs",
        _SUBJECT,
        "--save, --tensorboard-dir and --data-cache-path that cannot be written, or without room",
        _directories,
        with_run=True,
    ),
    Check(
        "inputs",
        _SUBJECT,
        "tokenizer files and checkpoints that are named and not there",
        _inputs,
        with_run=True,
    ),
)
