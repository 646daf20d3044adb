"""Errors that are known, with the flags that bear on each and what fixes it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from accel_bridge.errors import BridgeError
from accel_bridge.patches._explanation import message_of
from accel_bridge.patching.host import written
from accel_bridge.process.endings import GOES_ON
from accel_bridge.process.ranks import neighbours


@dataclass(frozen=True, slots=True)
class Advice:
    """What is said of one kind of error.

    :param error: pattern of ``type: message``.
    :param what: what happened.
    :param flags: Megatron's arguments that bear on it: their values are the evidence.
    :param next: what fixes it.
    :param ranks: the states of this machine's other ranks are evidence too.
    """

    error: re.Pattern[str]
    what: str
    flags: tuple[str, ...]
    next: str
    ranks: bool = False

    def explain(self, said: str, args: Any) -> BridgeError:
        """The three parts.

        :param said: the first line of evidence, such as :func:`said_by` an error.
        """
        given = {flag: getattr(args, flag, None) for flag in self.flags}
        words = [
            written(flag, value)
            for flag, value in given.items()
            if value is not None and value is not False
        ]
        evidence = [said, " ".join(words)] if words else [said]
        if self.ranks:
            evidence += [
                f"rank {rank} (pid {pid}) does not run: {_STATES[state]}"
                for rank, pid, state in neighbours()
                if state in _STATES
            ]
        return BridgeError(self.what, evidence=evidence, next=self.next)


def said_by(error: BaseException) -> str:
    """An error's type and the beginning of its message."""
    return f"{type(error).__name__}: {message_of(error)[:300]}"


#: States of a process that computes nothing.
_STATES: Final = {"T": "stopped by a signal", "t": "stopped by a debugger", "Z": "ended"}

#: What Megatron's rerun state machine ends with: a loss that is not a number, or a spike.
VALIDATION: Final = Advice(
    re.compile(""),
    "training stopped: a loss or gradient is NaN, infinite or out of bounds",
    ("lr", "min_lr", "clip_grad", "loss_scale", "fp16", "save"),
    "try a smaller --lr or a longer --lr-warmup-iters; --no-check-for-nan-in-loss-and-grad goes "
    "on regardless; with --save the state before it is kept",
)

ADVICE: Final = (
    Advice(
        # Ray's OutOfMemoryError is about the machine.
        re.compile("DefaultCPUAllocator: can't allocate memory|node running low on memory"),
        "this machine's memory is full",
        ("micro_batch_size", "seq_length", "num_layers", "hidden_size", "num_workers"),
        "a smaller --micro-batch-size or model, or fewer processes on this machine",
    ),
    Advice(
        re.compile(r"OutOfMemoryError|out of memory", re.IGNORECASE),
        "the device's memory is full",
        (
            "micro_batch_size",
            "seq_length",
            "recompute_granularity",
            "use_distributed_optimizer",
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
        ),
        "a smaller --micro-batch-size with the same --global-batch-size gives the same training; "
        "then --recompute-granularity selective, or full with --recompute-method uniform "
        "--recompute-num-layers 1; then --use-distributed-optimizer or more "
        "--tensor-model-parallel-size on several devices",
    ),
    Advice(
        re.compile("doesn't have NCCL built in"),
        "this build of torch has no NCCL, with which GPUs talk to one another",
        ("distributed_backend",),
        "install torch's CUDA build for Linux, or try with --distributed-backend gloo (slow)",
    ),
    Advice(
        re.compile(
            r"No space left on device|Errno 28|Errno 122|File too large|PytorchStreamWriter"
        ),
        "the disk is full, or a quota or limit of file sizes is reached",
        ("save", "data_cache_path", "tensorboard_dir"),
        "free some room (`df -h`, `ulimit -f`); the checkpoint before is whole, and the same "
        "command goes on from there when it has --load",
    ),
    Advice(
        re.compile(r"Timed out waiting|[Tt]imed? ?out.*(Store|recv|send|op)|Watchdog caught"),
        "this rank waited in vain for another one",
        ("distributed_timeout_minutes", "distributed_backend"),
        f"look at the rank that does not run, or raise --distributed-timeout-minutes; {GOES_ON}",
        ranks=True,
    ),
    Advice(
        re.compile(r"Connection (closed|reset) by peer|Broken pipe|Connection refused"),
        "this rank lost its connection to another one, which has ended",
        ("distributed_backend",),
        f"see the other rank's own message; {GOES_ON}",
        ranks=True,
    ),
    Advice(
        re.compile(r"world size \(\d+\) is not divisible|world_size.*divisible", re.IGNORECASE),
        "the number of ranks does not fit the layout",
        (
            "world_size",
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "context_parallel_size",
            "expert_model_parallel_size",
            "expert_tensor_parallel_size",
        ),
        "start a multiple (--nproc-per-node times --nnodes) of the product of tensor, pipeline and "
        "context parallel sizes, and of expert, expert tensor and pipeline ones; or make these "
        "smaller",
    ),
    Advice(
        re.compile("no pipe separators|pipe-delimited segments"),
        "the layers of the pattern cannot be divided among the pipeline stages",
        ("hybrid_layer_pattern", "pipeline_model_parallel_size"),
        "divide the --hybrid-layer-pattern into as many segments as stages, or a multiple, with |",
    ),
    Advice(
        re.compile(r"batch.size.*divisible by.*(micro|batch)|contiguous micro-b", re.IGNORECASE),
        "the batch cannot be divided among the ranks",
        ("global_batch_size", "micro_batch_size", "data_parallel_size"),
        "give a --global-batch-size that is a multiple of --micro-batch-size times the data "
        "parallel size (ranks divided by tensor, pipeline and context parallel sizes); with "
        "virtual stages, of at least as many micro batches as stages",
    ),
    Advice(
        re.compile(r"selected index k out of range"),
        "more are to be chosen than there are to choose from",
        (
            "moe_router_topk",
            "num_experts",
            "moe_router_group_topk",
            "moe_router_num_groups",
        ),
        "give a --moe-router-topk of at most --num-experts, and a --moe-router-group-topk of at "
        "most --moe-router-num-groups",
    ),
    Advice(
        re.compile("No dot product attention backend is available"),
        "no attention backend can do what these flags ask for",
        (
            "attention_backend",
            "context_parallel_size",
            "cp_comm_type",
            "window_size",
            "softmax_type",
            "attention_dropout",
            "multi_latent_attention",
            "fp8_dot_product_attention",
            "deterministic_mode",
        ),
        "leave out --attention-backend, or the flag that no backend takes with the others; "
        "NVTE_DEBUG=1 NVTE_DEBUG_LEVEL=2 prints each one's reason",
    ),
    Advice(
        # An NPU names the operator, a CPU the index, a GPU its assertion.
        re.compile(r"operator name is aclnnEmbedding|index out of range in self|srcSelectDimSize"),
        "a token or a position is outside the embedding's table",
        (
            "vocab_size",
            "padded_vocab_size",
            "seq_length",
            "max_position_embeddings",
            "data_path",
            "mock_data",
        ),
        "give the tokenizer that made the data, or a --vocab-size above their largest token "
        "(--mock-data of Megatron 0.12 to 0.15 has tokens up to 4096), and a "
        "--max-position-embeddings of at least --seq-length",
    ),
    Advice(
        re.compile(r"AnnealingScheduler|OptimizerParamScheduler: class input value"),
        "the checkpoint was trained with another schedule",
        ("train_iters", "train_samples", "lr", "min_lr", "lr_decay_iters", "lr_decay_style"),
        # Every Megatron has these spellings. Another --train-iters is another schedule, since
        # weight decay goes by it, whatever --lr-decay-iters says.
        "give the schedule of the checkpoint's run, or choose: --override-opt_param-scheduler "
        "takes these arguments (for another --train-iters, say), "
        "--use-checkpoint-opt_param-scheduler the checkpoint's",
    ),
)
