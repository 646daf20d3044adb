"""A Megatron run being recorded: what the recorder must know about model, optimizer and
layout, and how its own training loop is followed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

import torch
from megatron.core import parallel_state
from megatron.training import get_args

from accel_bridge import __version__, current
from accel_bridge.errors import BridgeError
from accel_bridge.kernels import watch_kernels
from accel_bridge.patches._failure import Failure
from accel_bridge.patches.modules import recorded_identity, recorded_weights
from accel_bridge.patching.host import Host
from accel_bridge.recording import (
    Capsule,
    Plan,
    Recording,
    current_plan,
    machine,
    write,
    write_capsule,
)
from accel_bridge.recording.recorder import (
    RankRecord,
    Recorder,
    Slice,
    Watched,
    capsule_of,
    gather,
    merge,
)


def own_parts(
    wrapped: Any,
) -> Iterable[tuple[torch.nn.Parameter, torch.Tensor, torch.Tensor]]:
    """(parameter, weight, gradient), the part that this rank's distributed optimizer owns.

    After the reduce-scatter the rest of a bucket holds unreduced gradients, and with overlapped
    gathers stale weights. Where a parameter begins is the buffer's to say: 0.12's buckets do not,
    and 0.16's leave out the padding.
    """
    starts = {
        parameter: start
        for buffer in (*wrapped.buffers, *wrapped.expert_parallel_buffers)
        for parameter, (start, *_) in buffer.param_index_map.items()
    }
    for group in (*wrapped.bucket_groups, *wrapped.expert_parallel_bucket_groups):
        ranks = group.intra_distributed_optimizer_instance_size
        rank = group.intra_distributed_optimizer_instance_rank
        for bucket in group.buckets:
            size = bucket.grad_data.numel() // ranks
            for parameter in bucket.params_list:
                first = starts[parameter] - bucket.offset
                last = first + parameter.numel()
                start, end = max(first, rank * size), min(last, (rank + 1) * size)
                if start < end:
                    weight = parameter.data.reshape(-1)[start - first : end - first]
                    yield parameter, weight, bucket.grad_data[start:end]


#: Modules that compute nothing by themselves.
IDENTITIES = ("IdentityOp", "IdentityFuncOp")
#: Inputs of the core attention that are watched: rotary embedding and bias come before it.
ATTENTION_INPUTS = ("query", "key", "value")

#: Parameters of a grouped GEMM, numbered by the experts of the rank.
_GROUPED = tuple(f"linear_fc{number}.{kind}" for number in (1, 2) for kind in ("weight", "bias"))
#: Modules of experts whose outputs the token dispatcher sums over tensor-parallel ranks.
_PARTIAL = re.compile(r"\.experts(\.local_experts\.\d+)?(\.linear_fc2)?$")


class RecordedRun:
    """One rank's view of a recorded run.

    :param model: the list of wrapped model chunks.
    :param args: the run's arguments; Megatron's names.
    """

    def __init__(self, host: Host, model: Sequence[torch.nn.Module], args: Any) -> None:
        plan = current_plan()
        assert plan is not None
        self.plan: Plan = plan
        self._host = host
        self._args = args
        self._wrapped = model
        self._chunks = [unwrap(chunk) for chunk in model]
        self._names = [global_names(chunk) for chunk in self._chunks]
        self.notes: list[str] = []
        self._predicting = False
        self._set_weights()
        self.weights = recorded_weights.fingerprint(self._chunks)
        self.about = self._about()
        self.recorder = Recorder(
            plan,
            list(self._watched()),
            self._slices,
            torch.cuda.synchronize,
            counts_data=parallel_state.get_tensor_model_parallel_rank() == 0,
        )
        self._watch_batches()
        self._last = 0
        if self.recorder.tape is not None:
            watch_kernels(self.recorder.tape.contract)

    def _set_weights(self) -> None:
        """Set the weights that the run starts with, and note where they are from."""
        self.notes.append("initial weights: those of the program that trains")

    def _recording(self, records: Sequence[RankRecord], weights: Iterable[int]) -> Recording:
        """What is written, from the records and weights' fingerprints of all ranks."""
        steps, observations = merge(records)
        return Recording(
            identity=recorded_identity.identity(self._args, sum(weights) % (1 << 64)),
            precision=recorded_identity.precision(self._args),
            layout=recorded_identity.layout(self._args),
            about=self.about,
            notes=tuple(self.notes),
            steps=steps,
            observations=observations,
            arguments=recorded_identity.plain_arguments(self._args),
            environment=machine(),
            patches=_ledger(),
        )

    def _save(self, recording: Recording) -> str:
        """Write the file; one line about it."""
        size = write(recording, Path(self.plan.out))
        return (
            f"recorded {len(recording.steps)} steps in {self.plan.out} ({size / 1e6:.2f} MB, "
            f"{recording.seconds:.3f} s/step)"
        )

    def capsule_ready(self, step: int) -> None:
        """Write the capsule after its step; a run for nothing else ends here, on every rank."""
        tape = self.recorder.tape
        if tape is None or step != self.plan.capsule_step:
            return
        watch_kernels(None)
        self.recorder.tape = None
        tapes, found = gather(tape.tape), gather(tape.found)
        failure = None
        if torch.distributed.get_rank() == 0:
            try:
                self._host.say(self._save_capsule(capsule_of(tapes), any(found)))
            except BridgeError as error:
                failure = error
        if failure is not None:
            raise failure
        if not self.plan.out:
            self.leave()

    def leave(self) -> NoReturn:
        """End the training, on every rank: the plan asks for no more."""
        torch.distributed.barrier()
        raise SystemExit(0)

    def _save_capsule(self, found: Any, known: bool) -> str:
        values, ranks = found
        if not known or not any(ranks):
            names = sorted({name for name, _ in self.recorder.modules if name})
            raise BridgeError(
                f"No module {self.plan.capsule!r} ran at step {self.plan.capsule_step}.",
                evidence=f"modules: {', '.join(names[:40])}",
                next="--module NAME names one of them, or step, loss, gradients or optimizer",
            )
        capsule = Capsule(
            module=self.plan.capsule,
            step=self.plan.capsule_step,
            precision=recorded_identity.precision(self._args),
            layout=recorded_identity.layout(self._args),
            about=self.about,
            values=values,
            ranks=ranks,
            arguments=recorded_identity.plain_arguments(self._args),
            environment=machine(),
            patches=_ledger(),
        )
        size = write_capsule(capsule, Path(self.plan.capsule_out))
        return (
            f"{sum(map(len, ranks))} operators of {capsule.module} at step {capsule.step} in "
            f"{self.plan.capsule_out} ({size / 1e6:.2f} MB{capsule.partly})"
        )

    def _about(self) -> dict[str, str]:
        backend = self._host.backend
        return {
            "device": backend.title,
            "device name": str(torch.cuda.get_device_name()),
            "processes": str(torch.distributed.get_world_size()),
            "accel_bridge": __version__,
            "torch": torch.__version__,
            "transformer_impl": str(self._args.transformer_impl),
            "recorded": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }

    def _activation_scale(self) -> float:
        """Factor from a rank's gradients of activations to those of the mean loss.

        Megatron divides the loss by tokens and micro batches of the rank, and averages the
        gradients of weights over data and context parallel ranks; with
        ``--calculate-per-token-loss`` it divides them by all tokens instead.
        """
        if self._args.calculate_per_token_loss:
            return 1.0 / int(self._args.global_batch_size * self._args.seq_length)
        return 1.0 / int(parallel_state.get_data_parallel_world_size(with_context_parallel=True))

    def _stage(self, chunk: torch.nn.Module) -> int:
        virtual = getattr(chunk, "vp_stage", None) or 0
        pipeline = parallel_state.get_pipeline_model_parallel_world_size()
        return int(virtual * pipeline + parallel_state.get_pipeline_model_parallel_rank())

    def _watched(self) -> Iterator[Watched]:
        for chunk, names in zip(self._chunks, self._names, strict=True):
            stage = self._stage(chunk)
            for name, module in chunk.named_modules():
                if type(module).__name__ in IDENTITIES or _spans_stages(module):
                    continue
                if _PARTIAL.search(name) and _expert_ranks() > 1:
                    continue
                inputs = ATTENTION_INPUTS if name.endswith(".core_attention") else ()
                called = rename(name, names)
                # Megatron embeds predicted tokens on another stage, or in the same one again.
                if called.partition(".")[0] == "embedding":
                    yield Watched(called, stage, module, inputs, lambda: not self._predicting)
                else:
                    yield Watched(called, stage, module, inputs)

    def _watch_batches(self) -> None:
        def read(module: torch.nn.Module, inputs: Any, keywords: dict[str, Any]) -> None:
            if module.training and not self._predicting:
                tokens, positions = keywords["input_ids"], keywords.get("position_ids")
                if positions is None or positions.shape != tokens.shape:
                    positions = torch.arange(tokens.numel(), device=tokens.device).view_as(tokens)
                self.recorder.batch(tokens, positions)

        def begins(module: torch.nn.Module, inputs: Any) -> None:
            self._predicting = True

        def ends(module: torch.nn.Module, inputs: Any, output: Any) -> None:
            self._predicting = False

        for chunk in self._chunks:
            embedding = getattr(chunk, "embedding", None)
            if embedding is not None and getattr(chunk, "pre_process", False):
                embedding.register_forward_pre_hook(read, with_kwargs=True)
            if isinstance(mtp := getattr(chunk, "mtp", None), torch.nn.Module):
                mtp.register_forward_pre_hook(begins)
                mtp.register_forward_hook(ends, always_call=True)

    def _slices(self) -> Iterator[Slice]:
        for wrapped, chunk, names in zip(self._wrapped, self._chunks, self._names, strict=True):
            local = {parameter: name for name, parameter in chunk.named_parameters()}
            stage = self._stage(chunk)
            split = self._args.use_distributed_optimizer and hasattr(wrapped, "bucket_groups")
            parts = own_parts(wrapped) if split else _whole(chunk)
            for parameter, weight, gradient in parts:
                if _is_copy(parameter, chunk):
                    continue
                name = rename(local[parameter], names)
                whole = weight.numel() == parameter.numel()
                shape = parameter.shape if whole else weight.shape
                yield Slice(name, stage, weight.view(shape), gradient.view(shape), whole)


def global_names(chunk: torch.nn.Module) -> dict[str, str]:
    """Local prefix -> global prefix, for layers of a pipeline stage and experts of a rank."""
    renamed = {}
    for name, module in chunk.named_modules():
        indices = getattr(module, "local_expert_indices", None)
        if indices is not None:
            for place, index in enumerate(indices):
                local = f"{name}.experts.local_experts"
                renamed[f"{local}.{place}."] = f"{local}.{index}."
                for part in _GROUPED:
                    local = f"{name}.experts.{part}"
                    renamed[f"{local}{place}."] = f"{local}{index}."
        if isinstance(module, torch.nn.ModuleList):
            for place, layer in enumerate(module):
                number = getattr(layer, "layer_number", None)
                if isinstance(number, int):
                    renamed[f"{name}.{place}."] = f"{name}.{number - 1}."
    return renamed


def rename(name: str, names: dict[str, str]) -> str:
    """The global name of a module or parameter: replaces each prefix that has a global one."""
    local, renamed, rest = f"{name}.", "", ""
    for prefix in sorted(names, key=len):
        # Prefixes are local throughout, so a longer one continues where a shorter one ended.
        if local.startswith(prefix):
            shorter = max(
                (other for other in names if prefix.startswith(other) and other != prefix),
                key=len,
                default="",
            )
            renamed += names[prefix][len(shorter) :]
            rest = local[len(prefix) :]
    return (renamed + rest if renamed else local)[:-1]


def _expert_ranks() -> int:
    """Tensor-parallel ranks of an expert."""
    return int(parallel_state.get_expert_tensor_parallel_world_size() or 1)


def _spans_stages(module: torch.nn.Module) -> bool:
    """Whether it is the model or a block of layers: each stage has one, with other content."""
    return hasattr(module, "pre_process")


def unwrap(chunk: Any) -> torch.nn.Module:
    """The model inside DistributedDataParallel and Float16Module."""
    while hasattr(chunk, "module"):
        chunk = chunk.module
    assert isinstance(chunk, torch.nn.Module)
    return chunk


def _is_copy(parameter: torch.nn.Parameter, chunk: torch.nn.Module) -> bool:
    """Whether it is the last stage's copy of the word embeddings, which the first stage has too."""
    shared = getattr(parameter, "shared_embedding", False)
    return bool(shared) and not getattr(chunk, "pre_process", False)


def _whole(
    chunk: torch.nn.Module,
) -> Iterable[tuple[torch.nn.Parameter, torch.Tensor, torch.Tensor]]:
    """(parameter, weight, gradient): every rank holds the reduced gradients."""
    for parameter in chunk.parameters():
        if parameter.requires_grad and hasattr(parameter, "main_grad"):
            yield parameter, parameter.data, parameter.main_grad


def _ledger() -> tuple[dict[str, str], ...]:
    bridge = current()
    assert bridge is not None
    return tuple(
        {
            "id": status.patch.id,
            "target": status.patch.target,
            "state": status.state.value,
            "reason": status.reason,
        }
        for status in bridge.statuses
    )


class TrainingRun(RecordedRun):
    """A run whose steps are calls of Megatron's ``train_step``.

    :param model: Megatron's list of wrapped model chunks.
    :param optimizer: Megatron's optimizer.
    :param failure: keeps why the file could not be written, where somebody waits for that.
    """

    def __init__(
        self, host: Host, model: list[torch.nn.Module], optimizer: Any, failure: Failure
    ) -> None:
        self._optimizer = optimizer
        self._failure = failure
        self._last = 0
        super().__init__(host, model, get_args())

    def begin(self, iteration: int | None) -> None:
        """A step begins; Megatron counts from 0 and may leave the count out."""
        self._last = self._last + 1 if iteration is None else iteration + 1
        loss_scale = float(self._optimizer.get_loss_scale())
        self.recorder.begin(
            self._last,
            gradient_scale=self._activation_scale() / loss_scale,
            weight_gradient_scale=1.0 / loss_scale,
        )

    def end(self, losses: dict[str, torch.Tensor], gradient_norm: float | None) -> None:
        """The step has ended; the last one writes the file.

        :param losses: Megatron's losses of the step, empty on all but the last stage.
        """
        loss = float(losses["lm loss"]) if "lm loss" in losses else None
        norm = float("nan") if gradient_norm is None else float(gradient_norm)
        self.recorder.end(loss, norm)
        self.capsule_ready(self._last)
        if self._last in (self._args.train_iters, self.plan.last):
            self._write()
            if self._last == self.plan.last:
                self.leave()

    def _write(self) -> None:
        records = gather(self.recorder.record)
        weights: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(weights, self.weights)
        if torch.distributed.get_rank() == 0:
            try:
                self._host.say(self._save(self._recording(records, weights)))
            except BridgeError as error:
                if not self._failure.waits:
                    raise
                self._failure.error = error

    def _set_weights(self) -> None:
        args = self._args
        if getattr(args, "use_megatron_fsdp", False):
            raise BridgeError(
                "Megatron-FSDP's weights cannot be recorded: no rank holds a whole part of them.",
                evidence="--use-megatron-fsdp",
                next="record with --use-torch-fsdp2, or with --use-distributed-optimizer alone",
            )
        given = args.load or args.pretrained_checkpoint
        if given:
            self.notes.append("initial weights: from a checkpoint")
            return
        recorded_weights.draw_weights(self._chunks, args.init_method_std, args.num_layers)
        self._optimizer.reload_model_params()
        note = "initial weights: drawn by parameter name, the same on every machine and layout"
        self.notes.append(note)
        self._host.say(f"{note} (--load takes those of a checkpoint)")
