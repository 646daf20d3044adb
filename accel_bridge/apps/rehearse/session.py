"""One rehearsed rank: from its first process group to the end of its last step, and
what it leaves.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import ModuleType
from typing import Any, Final, NoReturn

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh

from accel_bridge.apps.rehearse import devices, memory, replaced, values
from accel_bridge.apps.rehearse.devices import TYPE
from accel_bridge.apps.rehearse.memory import Ledger, simulate
from accel_bridge.apps.rehearse.microbatches import Microbatches
from accel_bridge.apps.rehearse.mode import Rehearsal, launched
from accel_bridge.apps.rehearse.plan import WAITED, Plan
from accel_bridge.device import Context
from accel_bridge.process import log
from accel_bridge.process.import_hook import now_or_when_imported


def result(session: Any, mode: Rehearsal, seconds: dict[str, Any]) -> dict[str, Any]:
    """The file of a rank.

    :param session: whose it is (:class:`~accel_bridge.apps.rehearse.session.Session`).
    """
    ledger = mode.ledger
    classes = memory.classify(ledger)
    usage = simulate(ledger.events, ledger.sizes)
    step, phase, module, operation = ledger.peak_mark
    last = ledger.steps[-1] if ledger.steps else 0
    return {
        "rank": session.rank,
        "world": dist.get_world_size() if dist.is_initialized() else 1,
        "groups": session.groups,
        "parameters": session.parameters,
        "peak_bytes": usage.allocated,
        "reserved_bytes": usage.reserved,
        "peak": {"step": step, "phase": phase, "module": module, "operation": operation},
        "memory": memory.composition(ledger, classes, ledger.peak_event),
        "activations": memory.by_module(ledger, classes, ledger.peak_event),
        "curve": memory.curve(ledger, classes, last),
        "after_steps": session.step_peaks,
        "own_groups": mode.collectives.groups,
        "calls": [call.row() for call in mode.collectives.calls],
        "sent": mode.collectives.sent,
        "communicators": sorted({call.group for call in mode.collectives.calls}),
        "work": mode.work.kinds,
        "assumed": Counter(mode.assumed).most_common(20),
        "notes": session.notes,
        "remedies": session.remedies,
        "schedule": session.schedule,
        "seconds": seconds,
    }


#: cuBLAS's workspace: torch's ``getChosenWorkspaceSize``, for Hopper and later, and before.
_WORKSPACE: Final = {True: 32 * 2**20, False: 8192 * 1024 + 128 * 1024}


#: torch's process group that sends nothing, for tensors of the host and of the device.
_FAKE: Final = f"cpu:fake,{TYPE}:fake"


class _FakeTensorMode(FakeTensorMode):
    """torch's own, which otherwise asks ``torch.cuda`` for a device, and gets the rehearsed one."""

    @property
    def avoid_device_init(self) -> bool:
        return True


class Session:
    """What happens in a rank, for the patches of a framework and for the report.

    :param plan: the rehearsal.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        #: For files that a framework's patches put in the place of what is not here.
        self.directory = plan.directory
        self.device = devices.find(plan.device)
        self.mode: Rehearsal | None = None
        self.steps = plan.steps
        #: Set by a framework's patches, which tell where its steps begin and end.
        self.has_steps = False
        self.notes: list[str] = []
        #: What a framework's patches know that may save memory: ``what`` and ``flags`` each.
        self.remedies: list[dict[str, Any]] = []
        #: Likewise: ``stages`` of the pipeline, ``chunks`` of each, ``microbatches``, and how many
        #: of these are ``run``.
        self.schedule: dict[str, int] = {}
        self.microbatches = Microbatches(self, plan.microbatches)
        #: Likewise: names and bytes of the files of a checkpoint, if there would be one.
        self.plan_files: Callable[[], list[list[Any]]] | None = None
        self.groups: list[dict[str, Any]] = []
        #: Functions that name the tensors which a framework keeps: (class, tensors).
        self.keepers: list[Callable[[], Iterable[tuple[str, Iterable[Any]]]]] = []
        #: Rehearsed rank -> what it sends.
        self._senders: dict[int, dict[str, Any]] = {}
        self._started = time.perf_counter()
        self._entered = 0.0
        self._step_started = 0.0
        self.step_seconds: list[float] = []
        self.step_peaks: list[int] = []

    @property
    def rank(self) -> int:
        """This process's; 0 of a program that has no ranks."""
        return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))

    @property
    def ledger(self) -> Ledger | None:
        """The device's memory, once the modes are on."""
        return self.mode.ledger if self.mode is not None else None

    def note(self, line: str) -> None:
        """Something that the report must say aloud, once."""
        if line not in self.notes:
            self.notes.append(line)
            log.say(f"rehearsal: {line}")

    # --- what is replaced -------------------------------------------------------------------------

    def install(self, context: Context) -> None:
        """A part of the device's redirection, the last."""
        replace = context.journal.set
        for module in (dist, dist.distributed_c10d):
            replace(module, "init_process_group", self._init(module.init_process_group))
            replace(module, "new_group", self._new_group(module.new_group))
            for name, function in replaced.OBJECTS.items():
                replace(module, name, function)
            replace(module, "barrier", replaced.nothing)
            replace(module, "monitored_barrier", replaced.nothing)
        replace(torch.utils, "swap_tensors", replaced.swap)
        replace(FakeTensor, "__reduce_ex__", replaced.reduce)
        replace(torch.Tensor, "_make_wrapper_subclass", staticmethod(replaced.wrapper))
        replace(torch.nn.Module, "_apply", replaced.apply(torch.nn.Module._apply))
        replace(FakeTensor, "__torch_dispatch__", replaced.dispatch(FakeTensor.__torch_dispatch__))
        replace(torch, "isfinite", values.isfinite)
        replace(torch.Tensor, "isfinite", values.isfinite)
        replace(torch.nn.functional, "scaled_dot_product_attention", replaced.attention)
        loader = torch.utils.data.dataloader._BaseDataLoaderIter
        for name in ("__init__", "__next__"):  # it draws a seed, and data
            replace(loader, name, replaced.really(getattr(loader, name)))
        for name in ("__init__", "__getitem__", "_flatten"):  # a mesh is of numbers, which are read
            if hasattr(DeviceMesh, name):
                replace(DeviceMesh, name, replaced.really(getattr(DeviceMesh, name)))
        replace(torch.UntypedStorage, "resize_", self._resize(torch.UntypedStorage.resize_))
        replace(torch.UntypedStorage, "data_ptr", replaced.address(torch.UntypedStorage.data_ptr))
        owners: tuple[tuple[Any, str], ...] = (
            *((torch, "tensor"), (torch, "as_tensor"), (torch, "asarray")),
            (torch.Tensor, "new_tensor"),
        )
        for owner, name in owners:
            replace(owner, name, replaced.from_fakes(getattr(owner, name)))
        self._without_launches()
        self._before_ranks()

    def _before_ranks(self) -> None:
        """A program may put tensors on the device before it has a process group."""
        library = torch.library.Library("aten", "IMPL")

        def first(operator: Any) -> Callable[..., Any]:
            def made(*args: Any, **kwargs: Any) -> Any:
                assert self.mode is None, "a tensor of the device that is not fake"
                self.enter()
                return operator(*args, **kwargs)

            return made

        aten = torch.ops.aten
        library.impl("empty.memory_format", first(aten.empty.memory_format), "PrivateUse1")
        library.impl("empty_strided", first(aten.empty_strided.default), "PrivateUse1")
        # torch knows the shape of a new result only.
        library.impl("_scaled_mm.out", lambda *_, out, **__: out, "Meta")
        self._library = library  # its functions go with it

    def _without_launches(self) -> None:
        """Triton's kernels are launched nowhere."""

        def run(kernel: Any, *args: Any, **kwargs: Any) -> None:
            if self.mode is not None:
                launched(self.mode, kernel, args, kwargs)

        def executed(name: str, module: ModuleType) -> None:
            if name in classes:
                getattr(module, classes[name]).run = run
            else:
                module.flex_attention = replaced.flex_attention  # type: ignore[attr-defined]

        classes = {"triton.runtime.jit": "JITFunction", "triton.runtime.autotuner": "Autotuner"}
        names = (*classes, "torch.nn.attention.flex_attention")
        now_or_when_imported(names, executed).install()

    def _init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> None:
            if dist.is_initialized():
                raise RuntimeError("trying to initialize the default process group twice!")
            from torch.testing._internal.distributed.fake_pg import FakeStore

            rank, world = replaced.place(kwargs)
            with unset_fake_temporarily():
                original(_FAKE, store=FakeStore(), rank=rank, world_size=world)
            if self.mode is None:
                self.enter()

        return init_process_group

    def _new_group(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def new_group(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
            what = kwargs.get("group_desc") or ""
            with unset_fake_temporarily():
                made = original(ranks, backend=_FAKE, group_desc=kwargs.get("group_desc"))
            all_ranks = list(range(dist.get_world_size())) if ranks is None else sorted(ranks)
            self.groups.append({"what": what, "ranks": all_ranks})
            return made

        return new_group

    def _resize(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def resize_(storage: Any, size: int) -> Any:
            answer = original(storage, size)
            mode = self.mode
            if mode is not None and storage.device.type == "meta":
                mode.ledger.resized(storage, mode.mark())
            return answer

        return resize_

    # --- the rank's life --------------------------------------------------------------------------

    def enter(self) -> None:
        """From here on every tensor is fake."""
        hopper = self.device.capability >= (9, 0)
        self.mode = mode = Rehearsal(TYPE, _WORKSPACE[hopper])
        mode.wants = self._wants
        mode.collectives.received = self._received
        if not self.has_steps:
            mode.begin_step()
        values.install(mode.guess)
        mode.watch_modules()
        _FakeTensorMode(allow_non_fake_inputs=True).__enter__()
        mode.__enter__()  # type: ignore[no-untyped-call]
        self._entered = time.perf_counter()
        atexit.register(self._leave_early)
        optimizer = importlib.import_module("torch.optim.optimizer")
        optimizer.register_optimizer_step_post_hook(self._optimizer_stepped)

    def _received(self, sender: int, broadcast: str) -> Any:
        if sender not in self._senders and (found := self.plan.load(f"rank.{sender}")) is not None:
            self._senders[sender] = found["sent"]
        return self._senders.get(sender, {}).get(broadcast)

    def _wants(self, sender: int) -> None:
        """Another rank's values are read: end, and begin again when it was rehearsed.

        One that was, and left none, knows no more.
        """
        waited = os.environ.get(WAITED, "").split(",")
        if sender not in self._senders and str(sender) not in waited:
            self.plan.write(f"wants.{self.rank}", {"rank": sender})
            sys.stdout.flush()
            os._exit(0)

    def _leave_early(self) -> None:
        """The program ends before its last step: which values it read is left for the report."""
        if self.mode is not None:
            sites = [place for place, _ in self.mode.assumed.most_common(3)]
            assumed = {"sites": sites, "notes": self.notes, "steps": len(self.step_seconds)}
            self.plan.write(f"assumed.{self.rank}", assumed)

    def _optimizer_stepped(self, *args: Any) -> None:
        """Without a framework that tells its steps, each step of an optimizer ends one."""
        if not self.has_steps:
            self.end_step()
            self.begin_step()

    def again(self, how: str, why: str) -> NoReturn:
        """Begin anew, with more of the microbatches."""
        plan = replace(self.plan, microbatches=how, why=why)
        sys.stdout.flush()
        sys.stderr.flush()
        argv = [sys.executable, *sys.orig_argv[1:]]
        os.execve(argv[0], argv, {**os.environ, **plan.environment()})

    def begin_step(self) -> None:
        assert self.mode is not None
        self._step_started = time.perf_counter()
        self.mode.begin_step()

    def end_step(self) -> None:
        """A training step has ended; the last one ends the process."""
        assert self.mode is not None
        self.step_seconds.append(time.perf_counter() - self._step_started)
        self.step_peaks.append(self.mode.ledger.now)
        if self.mode.step >= self.steps:
            self.finish()

    def optimizing(self, on: bool) -> None:
        if self.mode is not None:
            self.mode.optimizing = on

    def finish(self) -> None:
        """Write what was found, and end: nothing that follows is part of the rehearsal."""
        mode = self.mode
        assert mode is not None
        nvidia = self.device.kernels == "cuda" and not self.device.limits
        for line, names_faster in sorted(log.FALLBACKS.items()) if nvidia else ():
            faster = "NVIDIA's Transformer Engine may be faster, with less memory"
            self.note(line if names_faster else f"{line}; {faster}")
        self._label(mode)
        seconds = {
            "start": self._entered - self._started,
            "rehearsal": time.perf_counter() - self._entered,
            "steps": self.step_seconds,
        }
        with unset_fake_temporarily():
            data = result(self, mode, seconds)
        data["files"] = self._files()
        with unset_fake_temporarily():
            self.plan.write(f"rank.{self.rank}", data)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def _files(self) -> list[list[Any]]:
        """The files of a checkpoint that this rank would write."""
        if self.plan_files is None:
            return []
        try:
            return self.plan_files()
        except Exception as error:
            traceback.print_exc()
            self.note(f"no plan of the checkpoint: {type(error).__name__}: {error}")
            return []

    def _label(self, mode: Rehearsal) -> None:
        """Name what the training keeps: its parameters, their gradients, the optimizer's states."""
        label = mode.ledger.label
        for keeper in self.keepers:
            for what, tensors in keeper():
                for one in tensors:
                    if isinstance(one, FakeTensor):
                        label(one.untyped_storage(), what)
        objects = gc.get_objects()
        modules = [one for one in objects if issubclass(type(one), torch.nn.Module)]
        # Some modules give the names other meanings.
        found = [p for one in modules for p in one._parameters.values() if p is not None]
        parameters = {id(p): p for p in found}
        for parameter in parameters.values():
            for storage in _storages(parameter):
                label(storage, "weights")
            main = getattr(parameter, "main_grad", None)
            if isinstance(main, FakeTensor):
                label(main.untyped_storage(), "main gradients")
            if parameter.grad is not None:
                label(parameter.grad.untyped_storage(), "gradients")
        for one in modules:
            for buffer in one._buffers.values():
                if isinstance(buffer, FakeTensor):
                    label(buffer.untyped_storage(), "weights")
        for one in objects:
            if issubclass(type(one), torch.optim.Optimizer):
                tensors = [t for state in one.state.values() for t in _tensors(state)]
                tensors += [p for group in one.param_groups for p in group["params"]]
                for storage in (one for tensor in tensors for one in _storages(tensor)):
                    label(storage, "optimizer")
        self.parameters = sum(p.numel() for p in parameters.values())


def _storages(tensor: torch.Tensor) -> list[Any]:
    """The memory of a tensor, or of the parts of a quantized or sharded one, which has none."""
    tensor = getattr(tensor, "_local_tensor", tensor)
    if isinstance(tensor, FakeTensor):
        return [tensor.untyped_storage()]
    parts = (part for name, part in vars(tensor).items() if name.startswith("_"))
    return [part.untyped_storage() for part in parts if isinstance(part, FakeTensor)]


def _tensors(state: Any) -> list[torch.Tensor]:
    if isinstance(state, dict):
        return [one for one in state.values() if isinstance(one, torch.Tensor)]
    return []
