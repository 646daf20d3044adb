"""What a rehearsal must know of Megatron: its steps, its arguments, what its optimizer keeps."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import os
from collections.abc import Callable, Iterable
from types import ModuleType, SimpleNamespace
from typing import Any, Final, Protocol

from accel_bridge.errors import BridgeError
from accel_bridge.patches.checkpoint_plan import files
from accel_bridge.patches.checkpoints import TRACKER
from accel_bridge.process.import_hook import ImportHook
from accel_bridge.process.parser import is_number


class Session(Protocol):
    """The rehearsal of a rank, as ``accel_bridge.apps.rehearse`` has it."""

    directory: str
    steps: int
    has_steps: bool
    remedies: list[dict[str, Any]]
    schedule: dict[str, int]
    plan_files: Callable[[], list[list[Any]]] | None
    keepers: list[Callable[[], Iterable[tuple[str, Iterable[Any]]]]]
    microbatches: Any

    def note(self, line: str) -> None:
        """Something to say aloud."""

    def begin_step(self) -> None:
        """A training step begins."""

    def end_step(self) -> None:
        """It has ended; the last one ends the process."""

    def optimizing(self, on: bool) -> None:
        """The optimizer begins or ends."""


#: Where the user's ``--save`` is kept while Megatron has none.
_SAVE: Final = "_accel_bridge_rehearsed_save"
#: Likewise the path of a vocabulary that is not here.
_ABSENT: Final = "_accel_bridge_absent_vocabulary"
_VOCABULARIES: Final = ("vocab_file", "merge_file", "tokenizer_model")


def attach(session: Session) -> None:
    """Watch Megatron's modules as they are imported."""
    fsdp = "megatron.core.distributed.fsdp.src.megatron_fsdp"
    steps: dict[str, Callable[[ModuleType, Session], None]] = {
        f"{fsdp}.param_and_grad_buffer": _gradients,
        f"{fsdp}.uneven_dtensor": _shards,
        "megatron.core.nccl_allocator": _user_buffers,
        "megatron.core.safe_globals": _pickles,
        "megatron.core.pipeline_parallel.p2p_communication": _stages,
        "megatron.core.pipeline_parallel.schedules": _schedules,
        "megatron.core.datasets.blended_megatron_dataset_builder": _data_sets,
        "megatron.training.datasets.sft_dataset": _conversations,
        "megatron.training.training": _training,
        "megatron.training.arguments": _arguments,
        "megatron.core.optimizer.optimizer": _optimizer,
        "megatron.core.optimizer.distrib_optimizer": _optimizer,
        "megatron.core.pipeline_parallel.fine_grained_activation_offload": _offloading,
        "transformer_engine.pytorch.cpu_offload_v1": _marking,
    }
    ImportHook(steps, lambda name, module: steps[name](module, session)).install()


def _data_sets(module: ModuleType, session: Session) -> None:
    """Rank 0 writes a data set's index for all: here whichever is rehearsed first."""
    import torch

    cls = module.BlendedMegatronDatasetBuilder
    build, get_rank = cls.build, torch.distributed.get_rank

    @functools.wraps(build)
    def built(self: Any) -> Any:
        torch.distributed.get_rank = lambda group=None: 0 if group is None else get_rank(group)
        try:
            return build(self)
        finally:
            torch.distributed.get_rank = get_rank

    cls.build = built


def _conversations(module: ModuleType, session: Session) -> None:
    """In the place of those that are not here: four to a sequence, of one length."""
    import torch

    cls, really = module.SFTDataset, module.SFTLowLevelDataset
    item = cls.__getitem__

    @functools.wraps(item)
    def packed(self: Any, idx: int) -> Any:
        if isinstance(self.dataset, list):
            tokens = torch.ones(self.config.sequence_length // 4, dtype=torch.int64)
            tokens[-1] = 0
            self.config.tokenizer = SimpleNamespace(
                eod=0, pad=0, tokenize_conversation=lambda *_, **__: (tokens, tokens)
            )
        return item(self, idx)

    absent = [[{"role": "system"}] * 4] * 64
    module.SFTLowLevelDataset = lambda path: really(path) if path else absent  # type: ignore[attr-defined]
    cls.__getitem__ = packed


def _schedules(module: ModuleType, session: Session) -> None:
    """Of a step's microbatches only those are run that tell about the others."""
    few = session.microbatches
    for name in _SCHEDULES:
        setattr(module, name, _scheduled(getattr(module, name), session))
    forward_step, backward_step = module.forward_step, module.backward_step
    signature = inspect.signature(forward_step)

    @functools.wraps(forward_step)
    def forward(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments["input_tensor"]
        given = given if isinstance(given, list) else [given]
        few.inputs = [one for one in given if one is not None]
        return forward_step(*args, **kwargs)

    @functools.wraps(backward_step)
    def backward(*args: Any, **kwargs: Any) -> Any:
        gradients = backward_step(*args, **kwargs)
        few.backward_ended(gradients)
        return gradients

    module.forward_step, module.backward_step = forward, backward  # type: ignore[attr-defined]


_SCHEDULES: Final = (
    "forward_backward_no_pipelining",
    "forward_backward_pipelining_with_interleaving",
    "forward_backward_pipelining_without_interleaving",
)
#: Arguments with which a microbatch's operations depend on what others have left on the device.
_BETWEEN: Final = ("fine_grained_activation_offloading", "cpu_offloading")


def _scheduled(original: Callable[..., Any], session: Session) -> Callable[..., Any]:
    @functools.wraps(original)
    def schedule(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("forward_only"):
            return original(*args, **kwargs)
        from megatron.core.utils import get_model_config

        model, few, number = kwargs["model"], session.microbatches, kwargs["num_microbatches"]
        models = model if isinstance(model, list) else [model]
        config, chunks = get_model_config(models[0]), len(models)
        stages = config.pipeline_model_parallel_size
        if getattr(config, "defer_embedding_wgrad_compute", False):
            few.how = "all"
            session.note("all microbatches are run: the output layer's gradients wait for the last")
        elif few.how == "few" and any(getattr(config, name, False) for name in _BETWEEN):
            few.how = "whole"
            session.note("no microbatch is copied: what one moves to the host another waits for")
        group = getattr(config, "microbatch_group_size_per_vp_stage", None) or stages
        run = few.begin(number, stages, chunks, group if chunks > 1 else 1)
        session.schedule = {"stages": stages, "chunks": chunks, "microbatches": number, "run": run}
        kwargs["num_microbatches"] = run
        kwargs["forward_step_func"] = functools.partial(few.forward, kwargs["forward_step_func"])
        answer = original(*args, **kwargs)
        few.end(answer)
        return answer

    return schedule


def _stages(module: ModuleType, session: Session) -> None:
    """Stages tell each other how large their tensors are, where some are larger: those that pass
    on what an earlier stage predicts of further tokens (MTP), in the last chunk of each rank.
    """
    cls = getattr(module, "P2PCommunicator", None)  # None before 0.14
    upstream = getattr(cls, "_communicate_shapes", None)
    if cls is None or upstream is None:
        return

    @functools.wraps(upstream)
    def shapes(self: Any, *args: Any, **kwargs: Any) -> Any:
        upstream(self, *args, **kwargs)
        config, usual = self.config, list(_of_callers("tensor_shape") or (0,))
        layout = getattr(config.pipeline_model_parallel_layout, "layout", None)
        if not (getattr(config, "mtp_standalone", False) and layout):
            return usual, usual
        last = len(layout[0]) - 1
        rank = self.pp_group.rank()
        predicts = next(i for i, one in enumerate(layout) if any("mtp" in str(t) for t in one[-1]))
        larger = [usual[0] * (1 + config.mtp_num_layers), *usual[1:]]
        forward = _of_callers("next_forward_model_chunk_id", 0) == last
        backward = _of_callers("next_backward_model_chunk_id", last) == last
        return (
            larger if forward and rank > predicts else usual,
            larger if backward and rank >= predicts else usual,
        )

    cls._communicate_shapes = shapes


def _of_callers(name: str, default: Any = None) -> Any:
    """A variable of the nearest caller that has one of this name."""
    frame = inspect.currentframe()
    while frame is not None:
        if name in frame.f_locals:
            return frame.f_locals[name]
        frame = frame.f_back
    return default


def _pickles(module: ModuleType, session: Session) -> None:
    """Megatron takes its own pickles apart for a checkpoint; fake tensors have a class of ours."""
    if hasattr(module, "SafeUnpickler"):  # from 0.17
        del module.SafeUnpickler.find_class


def _user_buffers(module: ModuleType, session: Session) -> None:
    """NCCL's own memory is counted as PyTorch's; nothing is compiled, nothing registered."""

    def nothing(*args: Any, **kwargs: Any) -> Any:
        return contextlib.nullcontext()

    for name in _USER_BUFFERS:
        if hasattr(module, name):
            setattr(module, name, nothing)


_USER_BUFFERS: Final = (
    *("init", "create_nccl_mem_pool", "register_mem_pool", "deregister_mem_pool", "nccl_mem"),
    *("MultiGroupMemPoolAllocator", "MemPoolAllocatorWithoutRegistration"),
)


def _offloading(module: ModuleType, session: Session) -> None:
    """Moves activations, but none that torch.compile traces: so it takes all fake tensors."""
    import torch

    class Torch:
        _subclasses = SimpleNamespace(
            fake_tensor=SimpleNamespace(FakeTensor=()),
            functional_tensor=SimpleNamespace(FunctionalTensor=()),
        )

        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

    module.torch = Torch()  # type: ignore[attr-defined]


def _marking(module: ModuleType, session: Session) -> None:
    """Marks what may be moved: tensors by their exact type, and all others by their parts."""
    from torch._subclasses import FakeTensor

    upstream = module.mark_activation_offload

    @functools.wraps(upstream)
    def mark_activation_offload(*tensors: Any, offload: bool = True) -> None:
        fake = [one for one in tensors if type(one) is FakeTensor]
        for one in fake:
            setattr(one, "activation_offloading" if offload else "_TE_do_not_offload", True)
        upstream(*(one for one in tensors if type(one) is not FakeTensor), offload=offload)

    module.mark_activation_offload = mark_activation_offload  # type: ignore[attr-defined]


class _Saved:
    """A tensor that a function saves for its backward pass, or what it takes to make it again."""

    def __init__(self, tensor: Any, kept: bool) -> None:
        self.tensor, self.kept = tensor, kept
        self.given: tuple[Any, ...] = ()

    def drop(self, given: tuple[Any, ...]) -> None:
        """It is computed again from ``given``."""
        one = self.tensor
        self.tensor = (one.shape, one.stride(), one.dtype, one.device)
        self.given = given


def as_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with the memory that ``torch.compile`` keeps for its backward pass.

    It keeps arguments, results and dropout's masks; what lies between is computed again.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    def take(saved: Any) -> torch.Tensor:
        if isinstance(saved.tensor, torch.Tensor):
            return saved.tensor
        shape, stride, dtype, device = saved.tensor
        return torch.empty_strided(shape, stride, dtype=dtype, device=device)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return function(*args, **kwargs)
        all_saved: list[_Saved] = []

        def keep(tensor: torch.Tensor) -> _Saved:
            # A result that its own graph held would never be freed.
            all_saved.append(_Saved(tensor if tensor.is_leaf else tensor.detach(), tensor.is_leaf))
            return all_saved[-1]

        with torch.autograd.graph.saved_tensors_hooks(keep, take):
            results = function(*args, **kwargs)
        given = tuple(one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor))
        made = [one for one in tree_leaves(results) if isinstance(one, torch.Tensor)]
        storages = {one.untyped_storage()._cdata for one in (*given, *made)}
        for one in all_saved:
            kept = one.kept or one.tensor.dtype == torch.bool
            if not kept and one.tensor.untyped_storage()._cdata not in storages:
                one.drop(given)
        return results

    return call


def _training(module: ModuleType, session: Session) -> None:
    session.has_steps = True
    train_step, samples = module.train_step, module.get_train_valid_test_num_samples
    signature = inspect.signature(train_step)

    @functools.wraps(train_step)
    def step(*args: Any, **kwargs: Any) -> Any:
        from megatron.training import get_args

        given = get_args()
        if save := getattr(given, _SAVE, None):
            bound = signature.bind(*args, **kwargs).arguments
            session.plan_files = functools.partial(files, given, save, bound)
        session.begin_step()
        answer = train_step(*args, **kwargs)
        session.end_step()
        return answer

    @functools.wraps(samples)
    def few(*args: Any, **kwargs: Any) -> Any:
        # Indices of a data set are built for all samples of a training. Old loaders refuse a
        # validation set without any.
        from megatron.training import get_args

        size = get_args().global_batch_size
        others = samples(*args, **kwargs)[1:]
        return (size * (session.steps + 2), *(one if one is None else size for one in others))

    module.train_step = step  # type: ignore[attr-defined]
    module.get_train_valid_test_num_samples = few  # type: ignore[attr-defined]


def _gradients(module: ModuleType, session: Session) -> None:
    """Megatron-FSDP's are in buffers that no parameter names."""

    def kept() -> Iterable[tuple[str, Iterable[Any]]]:
        all_of_them = [one for one in gc.get_objects() if type(one) is module.ParamAndGradBuffer]
        buffers = [group.main_grad_buffer for one in all_of_them for group in one.parameter_groups]
        yield "main gradients", [one.data for one in buffers if one is not None]

    session.keepers.append(kept)


def _shards(module: ModuleType, session: Session) -> None:
    # Megatron-FSDP compares what the ranks state of their shards, which is one rank's here.
    module.validate_uneven_dtensor = lambda dtensor: None  # type: ignore[attr-defined]


def _arguments(module: ModuleType, session: Session) -> None:
    validate = module.validate_args

    @functools.wraps(validate)
    def validated(args: Any, *rest: Any, **kwargs: Any) -> Any:
        _adapt(args, session)
        _no_checkpoint(args, session)
        defaults = rest[0] if rest else kwargs.get("defaults", {})
        kind = getattr(args, "tokenizer_type", None) or (defaults or {}).get("tokenizer_type")
        _own_tokenizer(args, session, kind)
        if _has_sentences(kind) and getattr(args, "mock_data", False):
            _sentences(args, session)
        answer = validate(args, *rest, **kwargs)
        setattr(args, _SAVE, args.save)
        _set(args, _SAVES)
        _shorten(args, session)
        session.remedies = _remedies(args)
        return answer

    module.validate_args = validated  # type: ignore[attr-defined]
    parse = module.parse_args

    @functools.wraps(parse)
    def parsed(*rest: Any, **kwargs: Any) -> Any:
        args = parse(*rest, **kwargs)
        _adapt(args, session)  # before anyone looks whether its files are there
        _without_tokenizer(args, session)
        if not _has_checkpoint_args(args, session):
            _no_checkpoint(args, session)
        return args

    module.parse_args = parsed  # type: ignore[attr-defined]


#: What would write files, talk to others, or needs a device: argument -> its value here.
_OFF: Final = {
    "num_workers": 0,
    "tensorboard_dir": None,
    "wandb_project": "",
    "eval_iters": 0,
    "log_throughput": False,
    "use_mp_args_checkpoint_args": False,
    "enable_one_logger": False,
    "enable_ft_package": False,
    "profile": False,
    "check_for_nan_in_loss_and_grad": False,
}
#: Likewise, after Megatron has looked whether they go together.
_SAVES: Final = {
    "save": None,
    "save_interval": None,
    "async_save": False,
    "non_persistent_save_interval": None,
}

#: Arguments that name data, and files that list more of it.
_DATA: Final = ("data_path", "train_data_path", "valid_data_path", "test_data_path")
_LISTS: Final = ("data_args_path", "per_split_data_args_path")
#: Arguments that name a checkpoint to begin with.
_LOADS: Final = ("load", "pretrained_checkpoint")


def _set(args: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        if hasattr(args, name):
            setattr(args, name, value)


def _adapt(args: Any, session: Session) -> None:
    _set(args, _OFF)
    if getattr(args, "tp_comm_overlap", False):
        args.tp_comm_overlap = False
        session.note(
            "--tp-comm-overlap wants NVIDIA's compiled Transformer Engine there; its buffers and "
            "its overlap are not counted"
        )
    named = [one for name in _DATA for one in getattr(args, name, None) or []]
    index = "" if getattr(args, "sft", False) else ".idx"
    paths = [f"{one}{index}" for one in named if not is_number(one)]
    paths += [path for path in (getattr(args, name, None) for name in _LISTS) if path]
    absent = [one for one in paths if not os.path.exists(one)]
    if absent:
        session.note(f"mock data, for {absent[0]} is not on this machine")
        _without_data(args)


def _without_data(args: Any) -> None:
    _set(args, dict.fromkeys((*_DATA, *_LISTS)))
    args.mock_data = True


def _has_checkpoint_args(args: Any, session: Session) -> bool:
    """Whether the checkpoint must be opened for the arguments that it was made with."""
    if not getattr(args, "use_checkpoint_args", False):
        return False
    named = [getattr(args, name, None) for name in _LOADS]
    if any(one and os.path.isfile(os.path.join(one, TRACKER)) for one in named):
        return True
    args.use_checkpoint_args = False
    session.note("--use-checkpoint-args changes nothing, for the checkpoint is not on this machine")
    return False


def _no_checkpoint(args: Any, session: Session) -> None:
    if any(getattr(args, name, None) for name in _LOADS):
        _set(args, dict.fromkeys(_LOADS))
        session.note("no checkpoint is loaded: its values change neither memory nor time")


def _shorten(args: Any, session: Session) -> None:
    """A training that ends sooner than the rehearsal would is rehearsed as long as it is.

    One whose batch grows is rehearsed with the last, which is the largest.
    """
    if getattr(args, "rampup_batch_size", None):
        args.rampup_batch_size = None
        session.note(f"the batch is {args.global_batch_size}, to which --rampup-batch-size grows")
    if schedule := getattr(args, "step_batch_size_schedule", None):
        from megatron.core.num_microbatches_calculator import StepBatchsizeNumMicroBatchesCalculator

        steps = StepBatchsizeNumMicroBatchesCalculator._parse_schedule(schedule, args.seq_length)
        args.global_batch_size = max(size for _, size in steps)
        args.step_batch_size_schedule = None
        note = f"the batch is {args.global_batch_size}, the largest of --step-batch-size-schedule"
        session.note(note)
    length = args.train_iters or (args.train_samples or 0) // args.global_batch_size
    if 0 < length < session.steps:
        session.note(f"the training ends after step {length}: no later one is rehearsed")
        session.steps = length


def _remedies(args: Any) -> list[dict[str, Any]]:
    """What may save memory with these arguments, the cheapest first; each will be tried."""
    found: list[dict[str, Any]] = []

    def add(what: str, flags: str) -> None:
        found.append({"what": what, "flags": flags.split()})

    tensor, pipeline = args.tensor_model_parallel_size, args.pipeline_model_parallel_size
    replicas = args.data_parallel_size
    sharded = "" if args.use_distributed_optimizer else "--use-distributed-optimizer "
    recompute = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    if replicas > 1 and sharded:
        add("optimizer sharded over the replicas", sharded)
    if args.recompute_granularity is None:
        add("recompute attention", "--recompute-granularity selective")
        inner = "moe" if args.num_experts else "mlp"
        if hasattr(args, "recompute_modules"):
            flags = f"--recompute-granularity selective --recompute-modules core_attn {inner}"
            add(f"recompute attention and {inner}", flags)
        add("recompute every layer", recompute)
        if replicas > 1 and sharded:
            add("optimizer sharded, every layer recomputed", sharded + recompute)
    if args.micro_batch_size > 1:
        add("micro batches of one", "--micro-batch-size 1")
    if replicas % 2 == 0:
        grouped = args.group_query_attention  # without it the number of groups is 1, or None
        heads = args.num_query_groups if grouped else args.num_attention_heads
        if heads % (2 * tensor) == 0:
            add(
                "more tensor parallel",
                f"--tensor-model-parallel-size {2 * tensor} --sequence-parallel",
            )
        if args.num_layers % (2 * pipeline) == 0 and not getattr(
            args, "num_layers_per_virtual_pipeline_stage", None
        ):
            add("more pipeline stages", f"--pipeline-model-parallel-size {2 * pipeline}")
        context = args.context_parallel_size
        if args.seq_length % (4 * context) == 0:
            add("longer context parallel", f"--context-parallel-size {2 * context}")
        experts, parallel = args.num_experts, args.expert_model_parallel_size
        if experts and experts % (2 * parallel) == 0:
            add("more expert parallel", f"--expert-model-parallel-size {2 * parallel}")
    if hasattr(args, "optimizer_cpu_offload") and not args.optimizer_cpu_offload:
        add(
            "optimizer on the host",
            sharded + "--optimizer-cpu-offload "
            "--optimizer-offload-fraction 1.0 --use-precision-aware-optimizer",
        )
    if args.bf16 and not args.fp8:
        add("GEMMs in FP8", "--fp8-format hybrid")
    return found


#: Tokens of the vocabularies that come with a type; others' are in their file only.
_SIZES: Final = {
    "GPT2BPETokenizer": 50257,
    "BertWordPieceLowerCase": 30522,
    "BertWordPieceCase": 28996,
    "Llama2Tokenizer": 32000,
}


def _without_tokenizer(args: Any, session: Session) -> None:
    """Vocabularies that are not on this machine are put aside, before anyone looks for them."""
    kind = getattr(args, "tokenizer_type", None)
    given = {name: getattr(args, name, None) for name in _VOCABULARIES}
    named = {name: path for name, path in given.items() if path}
    sized = getattr(args, "vocab_size", None) is not None
    absent = [path for path in named.values() if not os.path.exists(path)]
    asked = [path for path in absent if _from_hub(path, kind, sized)]
    if asked:
        session.note(f"{asked[0]} comes from its hub; with --vocab-size N it is not asked for")
    elif absent:
        setattr(args, _ABSENT, absent[0])
        _set(args, dict.fromkeys(named))


def _own_tokenizer(args: Any, session: Session, kind: str | None) -> None:
    """In the place of a vocabulary that is not here: its size is all that is needed."""
    absent = getattr(args, _ABSENT, None)
    if absent is None:
        return
    given = getattr(args, "vocab_size", None)
    # Megatron's is without the end of a document, which other vocabularies have in them.
    more = kind == "GPT2BPETokenizer"
    size = _SIZES.get(kind or "") if given is None else given + more
    if size is None:
        raise BridgeError(
            f"the vocabulary {absent} is not on this machine, and nothing tells its size.",
            evidence=f"--tokenizer-type {kind} without --vocab-size",
            next="add --vocab-size N to the command: a rehearsal needs no more; or copy the file",
        )
    if _has_sentences(kind):
        args.vocab_file = os.path.join(session.directory, f"vocab.{_rank()}.txt")
        with open(args.vocab_file, "w") as file:
            marks = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
            file.write("\n".join((*marks, *(f"w{n}" for n in range(len(marks), size)))))
    else:
        args.tokenizer_type, args.vocab_size = "NullTokenizer", size - 1
        if kind == "SFTTokenizer":  # no other makes tokens of conversations
            _without_data(args)
    session.note(f"a vocabulary of {size:,}, for {absent} is not on this machine")


def _rank() -> str:
    return os.environ.get("RANK", "0")


def _has_sentences(kind: str | None) -> bool:
    """BERT's and T5's, whose data sets have no mock, and want a vocabulary's marks."""
    return (kind or "").startswith("BertWordPiece")


def _sentences(args: Any, session: Session) -> None:
    """Documents of sentences in the place of data that is not here."""
    import numpy
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    prefix = os.path.join(session.directory, f"sentences.{_rank()}")
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=numpy.int32)
    for _ in range(100):
        builder.add_document(torch.arange(5, 5 + 8 * 64), [64] * 8)
    builder.finalize(f"{prefix}.idx")
    args.data_path, args.split, args.mock_data = [prefix], "1,1,1", False


def _from_hub(path: str, kind: str | None, sized: bool) -> bool:
    """Whether it may be the name of a model on a hub, which is asked for what nobody tells."""
    if kind not in ("HuggingFaceTokenizer", "SFTTokenizer", "MultimodalTokenizer"):
        return False
    if sized and kind != "MultimodalTokenizer":
        return False
    return not path.startswith((".", "/", "~")) and path.count("/") <= 1


def _optimizer(module: ModuleType, session: Session) -> None:
    """The optimizer's own phase of a step."""
    for cls in list(vars(module).values()):
        if isinstance(cls, type) and cls.__module__ == module.__name__ and "step" in vars(cls):
            cls.step = _phase(vars(cls)["step"], session)  # type: ignore[attr-defined]


def _phase(original: Callable[..., Any], session: Session) -> Callable[..., Any]:
    @functools.wraps(original)
    def step(*args: Any, **kwargs: Any) -> Any:
        session.optimizing(True)
        try:
            return original(*args, **kwargs)
        finally:
            session.optimizing(False)

    return step
