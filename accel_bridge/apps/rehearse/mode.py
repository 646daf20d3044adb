"""The dispatch mode above PyTorch's FakeTensorMode: it sees every operation of a rehearsed rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final, cast

import torch
from torch._C import _current_autograd_node as current_node
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from accel_bridge.apps.rehearse import values
from accel_bridge.apps.rehearse.collectives import Collectives, site
from accel_bridge.apps.rehearse.estimate import MODULES
from accel_bridge.apps.rehearse.memory import Ledger
from accel_bridge.apps.rehearse.work import Work, temporary

_READ: Final = torch.ops.aten._local_scalar_dense.default
_DEVICE: Final = torch.ops.prim.device.default
_MODULE: Final = "rehearsed module"
Mark = tuple[int, str, str, str]


class Rehearsal(TorchDispatchMode):
    """Writes down what a rank would do.

    :param device: torch device type of the rehearsed device.
    :param workspace: bytes that cuBLAS keeps for each thread that multiplies.
    """

    def __init__(self, device: str, workspace: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ledger = Ledger()
        self.collectives = Collectives()
        self.work = Work()
        self.assumed: Counter[str] = Counter()
        self.step = 0
        #: Told of a rank whose values are read.
        self.wants: Callable[[int], None] = lambda rank: None
        #: Set while the optimizer runs.
        self.optimizing = False
        self._device = device
        self._workspace = workspace
        self._multiplying: set[bool] = set()
        self._modules: list[str] = []
        self._names: dict[int, str] = {}
        self._backward_module = ""
        self._operation = ""

    # --- operations ---------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "c10d":
            self._operation = "c10d"
            return self.collectives.call(func, args)
        if func is _DEVICE:  # asked thousands of times in a step
            return args[0].fake_device
        if func is _READ:
            return self._read(args[0])
        try:
            out = func(*args, **kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException):
            out = self._by_values(func, args, kwargs)
        name = func._opname
        self._operation = name
        if isinstance(out, FakeTensor):
            self.see(out)
        elif isinstance(out, (tuple, list)):
            for one in out:
                if isinstance(one, FakeTensor):
                    self.see(one)
        values.follow(func, args, kwargs, out)
        if self.work.operation(func, name, args, kwargs, out):
            self._keep_workspace()
        if size := temporary(name, args):
            self.pass_by(size)
        return out

    def see(self, tensor: FakeTensor) -> None:
        """A tensor: its memory counts if it is on the device and new."""
        if tensor.fake_device.type == self._device:
            self.ledger.see(tensor.untyped_storage(), self.mark)

    def pass_by(self, size: int) -> None:
        """Memory that an operation takes while it runs."""
        self.ledger.release(self.ledger.allocate(size, self.mark()))

    def _keep_workspace(self) -> None:
        """The forward and the backward pass run in two threads, and cuBLAS keeps one for each."""
        backward = current_node() is not None
        if backward not in self._multiplying:
            self._multiplying.add(backward)
            self.ledger.allocate(self._workspace, self.mark(), "workspace")

    def _read(self, tensor: torch.Tensor) -> Any:
        found = values.known(tensor)
        if found is None:
            self.guess(tensor)
            found = values.assume(tensor)
        with values.unset_fake_temporarily():
            return found.item()

    def guess(self, tensor: torch.Tensor) -> None:
        """The program reads a value that nobody knows."""
        if (sender := values.sender(tensor)) is not None:
            self.wants(sender)
        self.assumed[site()] += 1

    def _by_values(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        real = values.shape_by_values(func, args, kwargs)
        if real is None:
            raise
        device = next(
            one.device for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)
        )

        def fake(tensor: torch.Tensor) -> torch.Tensor:
            made = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
            if not tensor.dtype.is_floating_point:
                values.give(made, tensor)
            return made

        return tree_map_only(torch.Tensor, fake, real)

    # --- where ------------------------------------------------------------------------------------

    def mark(self) -> Mark:
        """(step, phase, module, operation) of this moment."""
        node = current_node()
        if node is not None:
            module = cast(dict[str, str], node.metadata).get(_MODULE)
            if module is not None:
                self._backward_module = module
            # Recomputation runs modules within the backward pass.
            inner = self._modules[-1] if self._modules else self._backward_module
            return self.step, "backward", inner, self._operation
        self._backward_module = ""
        if self.optimizing:
            return self.step, "optimizer", "", self._operation
        module = self._modules[-1] if self._modules else ""
        return (
            self.step,
            "forward" if self._modules or self.step else "setup",
            module,
            (self._operation),
        )

    def watch_modules(self) -> None:
        """Know which module runs."""
        torch.nn.modules.module.register_module_forward_pre_hook(self._enter)
        torch.nn.modules.module.register_module_forward_hook(self._leave, always_call=True)

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        name = self._names.get(id(module))
        if name is None:
            if not self._modules:
                for path, one in module.named_modules():
                    self._names[id(one)] = path or type(one).__name__
            name = self._names.setdefault(id(module), type(module).__name__)
        self._modules.append(name)
        self.work.add(MODULES, 0, 0)

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        name = self._modules.pop() if self._modules else ""
        for one in output if isinstance(output, tuple) else (output,):
            if isinstance(one, torch.Tensor) and one.grad_fn is not None:
                cast(dict[str, str], one.grad_fn.metadata).setdefault(_MODULE, name)

    # --- steps ----------------------------------------------------------------------------------

    def begin_step(self) -> None:
        self.step += 1
        self.collectives.step = self.step
        self.ledger.steps.append(len(self.ledger.events))
        self.work = Work()


def launched(mode: Rehearsal, kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """A Triton kernel would be launched: it reads or writes its tensors once."""
    arguments = (*args, *kwargs.values())
    size = sum(
        one.numel() * one.element_size() for one in arguments if isinstance(one, torch.Tensor)
    )
    facts, count = {}, getattr(kernel, "launch_metadata", None)
    if count is not None:
        named = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
        facts = count((), SimpleNamespace(name=kernel.__name__), named)
    mode.work.launch(facts, size)
    for one in arguments:
        # What is only zeros is what a kernel adds to.
        if isinstance(one, FakeTensor) and (found := values.known(one)) is not None:
            with values.unset_fake_temporarily():
                zeros = not bool(found.any())
            if zeros:
                values.forget(one)
