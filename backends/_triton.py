"""Triton's kernels on a device that Triton has no compiler for: its interpreter runs them in NumPy.

Whatever decorated a function, and when: the functions are compiled, or interpreted, where they are
launched. Slow, but right: what is fast here comes from the backend's own kernels.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial, partialmethod
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from accel_bridge.backends._triton_numbers import take_numbers
from accel_bridge.device import Context
from accel_bridge.process import log

#: Devices that Triton itself compiles for. A driver of another one (triton-cpu, triton-ascend) is
#: the one for this backend, and is left alone.
_GPUS: Final = frozenset({"nvidia", "amd", "intel"})
_SAID: Final = (
    "Triton kernels run in Triton's interpreter on this device: right, but slow; "
    "leave out what asks for them where time matters"
)


def interpreted_triton(context: Context) -> None:
    """A part of the redirection: launches of Triton kernels go to Triton's interpreter."""
    interpreter = _Interpreter(context)
    context.when_imported(
        {
            "triton.runtime.jit": interpreter.take_launches,
            "triton.runtime.autotuner": interpreter.take_tuning,
            "triton.runtime.interpreter": partial(take_numbers, context),
            "triton.backends.nvidia.driver": interpreter.take_driver,
        }
    )


class _Interpreter:
    """Launches kernels in the interpreter of the installed Triton."""

    def __init__(self, context: Context) -> None:
        self._context = context
        # The interpreter rebinds names of triton.language while it runs.
        self._lock = threading.RLock()
        self._running = threading.local()

    def take_launches(self, jit: ModuleType) -> None:
        """Replace what launches and calls the functions of ``triton.runtime.jit``."""
        if _has_own_driver():
            return
        function, replace = jit.JITFunction, self._context.journal.set
        call = function.__call__

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
            if not warmup:
                self._launch(kernel, grid, args, kwargs)

        def called(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            # Outside of a kernel Triton's own message says that this is no function of the host.
            inside = getattr(self._running, "launches", 0)
            return (_rewritten(kernel) if inside else partial(call, kernel))(*args, **kwargs)

        replace(function, "run", run)
        replace(function, "__call__", called)

    def take_tuning(self, autotuner: ModuleType) -> None:
        """The first configuration that fits is taken: there is nothing to measure."""
        if not _has_own_driver():
            self._context.journal.set(autotuner.Autotuner, "_bench", lambda *_, **__: [0.0] * 3)

    def take_driver(self, driver: ModuleType) -> None:
        """NVIDIA's driver asks torch.cuda whether there is a device, and would load libcuda."""
        inactive = staticmethod(lambda: False)
        self._context.journal.set(driver.CudaDriver, "is_active", inactive)

    def _launch(self, kernel: Any, grid: Any, args: Any, kwargs: Any) -> None:
        from triton.runtime import interpreter

        log.warn_once(_SAID)
        with self._lock:
            self._running.launches = getattr(self._running, "launches", 0) + 1
            outer = interpreter._patch_lang
            interpreter._patch_lang = lambda fn: _rebound(outer)
            try:
                executor = interpreter.GridExecutor(
                    _rewritten(kernel), kernel.arg_names, grid, kernel.pre_run_hooks
                )
                executor(*args, **kwargs)
            finally:
                interpreter._patch_lang = outer
                self._running.launches -= 1


def _has_own_driver() -> bool:
    """Whether Triton has a driver for this very device."""
    from triton.backends import backends

    return any(
        name not in _GPUS and backend.driver.is_active() for name, backend in backends.items()
    )


def _rewritten(kernel: Any) -> Callable[..., Any]:
    """The kernel's function as the interpreter executes it."""
    from triton.runtime.interpreter import InterpretedFunction

    known: dict[Callable[..., Any], Callable[..., Any]] = InterpretedFunction.rewritten_fn
    if kernel.fn not in known:
        known[kernel.fn] = InterpretedFunction(kernel.fn).rewrite()
    return known[kernel.fn]


def _rebound(patch: Callable[[Any], Any]) -> Any:
    """Names of triton.language on the interpreter's builder; the result's ``restore`` ends it.

    Once for a launch, for all functions that the kernel calls, wherever they are defined.
    """
    import triton.language as tl
    from triton.runtime.jit import JITFunction

    scope = patch(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))

    def counted(first: Any, last: Any = None, step: Any = 1, **_: Any) -> Iterator[Any]:
        """``tl.range``, whose numbers are tensors to the compiler: ``i.to(tl.int64)``."""
        from triton.runtime.interpreter import interpreter_semantic as semantic

        numbers = range(first) if last is None else range(first, last, step)
        return (semantic.to_tensor(number, False) for number in numbers)

    for module in (tl, tl.core):
        scope.set_attr(module, "range", counted)
    # Up to 3.6 Triton asks NumPy for the number in an array of one, which NumPy 2.5 refuses.
    scope.set_attr(tl.tensor, "__index__", lambda self: int(self.handle.data.item()))
    # `x.sum()` for `tl.sum(x)`: Triton's compiler resolves it by itself.
    for name, function in list(vars(tl.tensor).items()):
        if isinstance(function, JITFunction):
            scope.set_attr(tl.tensor, name, partialmethod(function))
    return scope
