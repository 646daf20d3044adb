"""Extensions that a script compiles for CUDA while it runs (torch.utils.cpp_extension).

Without CUDA torch refuses them with an OSError, which scripts expect; behind the redirection it
would look for the architectures of GPUs that are not there, or compile for minutes what cannot run.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from accel_bridge.device._context import Context
from accel_bridge.process.import_hook import ImportHook

_MODULE: Final = "torch.utils.cpp_extension"
#: Its functions that compile at once.
BUILDERS: Final = ("load", "load_inline")


def redirect_extensions(context: Context) -> None:
    """Refuse CUDA extensions, from the moment on at which somebody imports torch's compiler."""

    def executed(name: str, module: ModuleType) -> None:
        for builder in BUILDERS:
            context.wrap(module, builder, functools.partial(_without_cuda, context.spec.type))

    module = sys.modules.get(_MODULE)
    if module is not None:
        executed(_MODULE, module)
    else:
        hook = ImportHook({_MODULE}, executed, lambda: None)
        context.journal.set(_Switch(hook), "on", True)


class _Switch:
    """Installs a hook while ``on`` is set: the journal puts attributes back."""

    def __init__(self, hook: ImportHook) -> None:
        self._hook = hook

    @property
    def on(self) -> bool:
        """Whether the hook is installed."""
        return self._hook in sys.meta_path

    @on.setter
    def on(self, value: bool) -> None:
        self._hook.install()

    @on.deleter
    def on(self) -> None:
        self._hook.remove()


def _without_cuda(device: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def build(name: str, *args: Any, **kwargs: Any) -> Any:
        sources = kwargs.get("sources", args[0] if args and original.__name__ == "load" else ())
        cuda = kwargs.get("with_cuda")
        if cuda is None:
            files = [sources] if isinstance(sources, str) else list(sources)
            cuda = bool(kwargs.get("cuda_sources")) or any(str(f).endswith(".cu") for f in files)
        if cuda:
            raise OSError(f"the CUDA extension {name!r} is not built: the device is {device!r}")
        return original(name, *args, **kwargs)

    return build
