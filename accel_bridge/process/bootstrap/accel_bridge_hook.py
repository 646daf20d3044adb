"""Waits for the first import of PyTorch or of what stands on it, then activates the bridge.

This file is loaded when a Python starts below ``accel-bridge run``, whatever its version and its
packages, and with ``ACCEL_BRIDGE_AUTO=1``. It imports nothing before it is needed, and nothing of
accel_bridge that may be missing.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as typing's, whose import costs a millisecond
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

#: Top-level modules whose import activates the bridge: PyTorch, Megatron, those that keep a list
#: of the installed packages from their own import on, the adaptors that scripts for Ascend import,
#: and every library that has a shim (a test compares them).
NAMES = frozenset(
    """
    torch transformers diffusers torch_npu megatron mindspeed mindspeed_llm megatron_adaptor
    transformer_engine transformer_engine_torch apex amp_C flash_attn mamba_ssm causal_conv1d fla
    selective_scan_cuda causal_conv1d_cuda fast_hadamard_transform grouped_gemm
    fused_layer_norm_cuda fused_weight_gradient_mlp_cuda scaled_masked_softmax_cuda
    scaled_softmax_cuda scaled_upper_triang_masked_softmax_cuda
    """.split()
)
#: The socket of ``accel-bridge run``, which notices a Python that does without us.
WATCH = "_ACCEL_BRIDGE_WATCH"


class Hook:
    """The finder that waits. It leaves ``sys.meta_path`` when its work is done."""

    def find_spec(
        self, fullname: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None for what is no import of one of :data:`NAMES`, else the spec that others find."""
        if fullname not in NAMES or not _is_import():
            return None
        import importlib.util

        if importlib.util.find_spec("torch") is None:
            return None  # the import fails by itself, or the program does without
        stand_down()
        try:
            _activate(fullname)
        except BaseException:
            arm()  # who catches this must not go on without the bridge
            raise
        # The activation has put other finders in place, and imported PyTorch itself.
        loaded = sys.modules.get(fullname)
        if loaded is None:
            return importlib.util.find_spec(fullname)
        # For a module that its finder has imported, importlib takes the module's own spec.
        loader = _Loaded(loaded)
        loaded.__spec__ = importlib.util.spec_from_loader(fullname, loader)  # type: ignore[arg-type]
        return loaded.__spec__


class _Loaded:
    """Gives an import that is under way the module that was imported meanwhile."""

    def __init__(self, module: ModuleType) -> None:
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec


_hook = Hook()


def arm() -> None:
    """Wait, unless PyTorch is imported already."""
    if "torch" not in sys.modules and _hook not in sys.meta_path:
        sys.meta_path.insert(0, _hook)


def stand_down() -> None:
    """Wait no more: a program of accel_bridge itself knows when to activate."""
    if _hook in sys.meta_path:
        sys.meta_path.remove(_hook)
    _tell()


def _tell() -> None:
    """Let ``accel-bridge run`` know that this process was reached."""
    import os

    word, _, place = os.environ.get(WATCH, "").partition(" ")
    if place:
        import socket

        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as teller:
                teller.setblocking(False)
                message = f"{word} {os.getpid()}".encode()
                teller.sendto(message, place.replace("@", "\0", 1))
        except OSError:
            pass  # it has ended, or this is another machine


def _activate(fullname: str) -> None:
    """Activate the bridge; where accel_bridge is missing, say so in one line."""
    try:
        from accel_bridge.bridge.child import activate_here
    except ImportError as error:
        import os

        if os.environ.get("RANK", "0") == "0":
            print(
                f"[accel_bridge] warning: {sys.executable} imports {fullname} without the bridge: "
                f"{error}; install accel_bridge and what it needs there",
                file=sys.stderr,
                flush=True,
            )
    else:
        activate_here()


def _is_import() -> bool:
    """Whether an import statement asks; ``importlib.util.find_spec`` only looks."""
    # _is_import, find_spec, importlib's own _find_spec, and what called that.
    return sys._getframe(3).f_code.co_name == "_find_and_load_unlocked"
