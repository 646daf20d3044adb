"""Handing an NPU over to MindSpeed or MegatronAdaptor, if made for the installed Megatron.

Each changes Megatron by itself when its module is imported, if that happens before Megatron. It is
never imported before the decision: importing MindSpeed's parses ``sys.argv``, replaces torch
functions and puts shims for other libraries in place.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

from packaging.requirements import Requirement

from accel_bridge.errors import PatchError
from accel_bridge.patches._installed import megatron_version
from accel_bridge.plugin import Adaptor, Backend, Delegation, Patch, Variable, one_of
from accel_bridge.plugins.installed import owners

# The variable with which the user decides about MindSpeed.

Mode = Literal["auto", "off", "require"]

MINDSPEED: Final[Variable[Mode]] = Variable(
    "ACCEL_BRIDGE_MINDSPEED",
    "auto",
    "auto, off or require",
    "hands an NPU over to MindSpeed: auto does so if it is installed and made for the installed "
    "Megatron (else to MegatronAdaptor, likewise), require insists on MindSpeed, off keeps "
    "accel_bridge's own kernels",
    one_of("auto", "off", "require"),
)


ADAPTOR: Final = "mindspeed"
MODULE: Final = "mindspeed.megatron_adaptor"
TITLE: Final = "MindSpeed"

#: The other road: an adaptor of few lines beside TransformerEngineNPU.
LIGHT_MODULE: Final = "megatron_adaptor"
LIGHT_TITLE: Final = "MegatronAdaptor"

#: What scripts import in its first lines, for the effect: MindSpeed and what is built like it.
IMPORTED: Final = ("mindspeed", "mindspeed_llm", "megatron_adaptor")
#: Empty packages of those names.
SHIMS: Final = Path(__file__).with_name("shims")

#: Version of MindSpeed (major.minor, the same as that of its Megatron) -> where this is documented.
#: Its branch core_r0.18.0 calls itself 0.12.1 and needs two more packages.
RELEASES: Final = {
    "0.12": "branches 2.1.0 to 26.1.0_core_r0.12.1: setup.py says 0.12.1, README: Mcore 0.12.1",
    "0.15": "branch core_r0.15.3: setup.py says 0.15.3, README: Mcore 0.15.3",
    "0.16": "branch core_r0.16.0: setup.py says 0.16.0, README: Mcore 0.16.0",
}
#: The same for MegatronAdaptor, whose package does not say it.
LIGHT_RELEASES: Final = {
    "0.17": "announced in May 2026 for Megatron core 0.17.0",
    "0.18": "modelscope/ms-swift#10087, verl-project/verl#7142",
}
#: Patches that are still needed with MindSpeed; ``requires`` says whether they fit its Megatron.
KEPT: Final = frozenset(
    {
        "local-tokenizer-files",
        "dataset-helpers",
        "dataset-without-tokens",
        "checkpoint-extra-state",
        "async-checkpoint-copy",
        "record-step",
        "record-gradients",
        "error-advice",
    }
)
#: What must not be Megatron's or torch's own any more: (target, modules that the object must not
#: come from). MindSpeed's own ``is_applied`` says yes even if Megatron holds the old objects.
VALUES: Final = (
    ("megatron.training.arguments:parse_args", "megatron."),
    ("megatron.core.optimizer:Adam", "torch."),
)


def delegations(backend: Backend, mode: Mode) -> list[Delegation]:
    """The decision about MindSpeed; empty if it was turned off or is not for ``backend``."""
    required = f"{MINDSPEED.name}=require" if mode == "require" else ""
    if mode == "off":
        return []
    if ADAPTOR in backend.adaptors:
        megatron = megatron_version()
        found = [_decide(find_version(), megatron, backend, required)]
        # A MindSpeed that needs it (core_r0.18.0) imports it by itself.
        if not required and _installed(LIGHT_MODULE):
            found.append(_decide_light(nvidia_transformer_engine(), megatron, backend))
        return found
    if not required:
        return []
    return [
        Delegation(
            adaptor=TITLE,
            taken=False,
            why="it only supports Ascend NPUs",
            next=f"unset {MINDSPEED.name}: the {backend.name} backend needs no other adaptor",
            required=required,
        )
    ]


def adaptors(backend: Backend, mode: Mode) -> list[Adaptor]:
    """What scripts import to hand the device over, where nobody takes it."""
    found = delegations(backend, mode)
    if any(one.taken for one in found):
        return []
    whys = {one.adaptor: one.why for one in found}
    why = whys.get(TITLE, f"{MINDSPEED.name}=off")
    if ADAPTOR not in backend.adaptors:
        why = "it only supports Ascend NPUs"
    light = {LIGHT_MODULE: whys.get(LIGHT_TITLE, why)}
    return [Adaptor(name, SHIMS, light.get(name, why)) for name in IMPORTED]


def find_version() -> str | None:
    """Version of the mindspeed that an import would find, or ``unknown``; None without one."""
    spec = importlib.util.find_spec(ADAPTOR)
    if spec is None:
        return None
    for directory in spec.submodule_search_locations or ():
        # A checkout on the path has no metadata and shadows an installed MindSpeed.
        setup = Path(directory).parent / "setup.py"
        if setup.is_file() and (
            found := re.search(r"^__version__ = ['\"]([\w.]+)", setup.read_text(), re.MULTILINE)
        ):
            return found[1]
    try:
        return importlib.metadata.version(ADAPTOR)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _decide(
    version: str | None, megatron: str | None, backend: Backend, required: str
) -> Delegation:
    def no(why: str, next: str) -> Delegation:
        evidence = f"mindspeed {version or 'not installed'}, megatron-core {megatron or 'missing'}"
        return Delegation(
            adaptor=TITLE,
            taken=False,
            why=why,
            evidence=(evidence,),
            next=f"{next}, or unset {MINDSPEED.name}" if required else next,
            required=required,
        )

    made_for = ", ".join(RELEASES)
    if version is None:
        return no("it is not installed", "install MindSpeed and the Megatron that it is made for")
    if _release(version) not in RELEASES:
        return no(
            f"MindSpeed {version} is not one of the supported releases ({made_for})",
            "use one of these releases",
        )
    if megatron is None or _release(megatron) != _release(version):
        return no(
            f"MindSpeed {version} is made for megatron-core {_release(version)}, "
            f"not {megatron or 'a missing one'}",
            f'pip install "megatron-core=={_release(version)}.*"',
        )
    if early := _too_early(MODULE):
        return no(*early)
    why = f"MindSpeed {version} is made for megatron-core {megatron}"
    return _taken(TITLE, MODULE, why, megatron, backend, required, start)


def _decide_light(nvidia: str | None, megatron: str | None, backend: Backend) -> Delegation:
    """MegatronAdaptor.

    :param nvidia: NVIDIA's distribution of Transformer Engine, which must not be there.
    """

    def no(why: str, next: str) -> Delegation:
        evidence = f"megatron_adaptor, megatron-core {megatron or 'missing'}"
        return Delegation(
            adaptor=LIGHT_TITLE, taken=False, why=why, evidence=(evidence,), next=next
        )

    if megatron is None or _release(megatron) not in LIGHT_RELEASES:
        return no(
            f"MegatronAdaptor is made for megatron-core {', '.join(LIGHT_RELEASES)}, "
            f"not {megatron or 'a missing one'}",
            f'pip install "megatron-core=={list(LIGHT_RELEASES)[-1]}.*"',
        )
    if nvidia is not None or not _installed("transformer_engine"):
        return no(
            "it needs TransformerEngineNPU, and transformer_engine is "
            + (f"NVIDIA's ({nvidia})" if nvidia else "not installed"),
            f"pip uninstall {nvidia}, and install TransformerEngineNPU"
            if nvidia
            else "install TransformerEngineNPU",
        )
    if early := _too_early(LIGHT_MODULE):
        return no(*early)
    why = f"MegatronAdaptor is made for megatron-core {megatron}"
    return _taken(LIGHT_TITLE, LIGHT_MODULE, why, megatron, backend, "", start_light)


def nvidia_transformer_engine() -> str | None:
    """The distribution of NVIDIA's Transformer Engine, if an import would find that one.

    A checkout on the path has no metadata and shadows an installed one.
    """
    spec = importlib.util.find_spec("transformer_engine")
    if spec is None or spec.origin is None:
        return None
    site = Path(spec.origin).parents[1]
    for name in sorted(owners("transformer_engine")):
        plain = name.lower().replace("_", "-")
        nvidia = plain.startswith("transformer-engine") and "npu" not in plain
        if nvidia and Path(str(importlib.metadata.distribution(name).locate_file(""))) == site:
            return plain
    return None


def _installed(module: str) -> bool:
    """Whether an import would find it; our own empty module is not it."""
    spec = importlib.util.find_spec(module)
    return spec is not None and SHIMS not in Path(spec.origin or "").parents


def _too_early(module: str) -> tuple[str, str] | None:
    """Why an adaptor cannot change Megatron any more, and what to do."""
    early = sorted(name for name in sys.modules if name.startswith("megatron."))
    if module in sys.modules or not early:  # if it is imported, so is Megatron, by it
        return None
    return (
        f"Megatron was imported first ({early[0]}) and would keep its own functions",
        "start the script with `accel-bridge run SCRIPT`",
    )


def _taken(
    title: str,
    module: str,
    why: str,
    megatron: str,
    backend: Backend,
    required: str,
    begin: Callable[[], None],
) -> Delegation:
    from accel_bridge.patches.mindspeed import script_flags
    from accel_bridge.patches.plugin import accel_bridge_patches

    own = [*accel_bridge_patches(backend), *script_flags.PATCHES]
    left_out = reasons(own, megatron, title)
    done = module in sys.modules
    if done:
        why += ", and was imported first"
    if misfits := sorted(KEPT & left_out.keys()):
        why += f"; left out because they are for another Megatron: {', '.join(misfits)}"
    return Delegation(
        adaptor=title,
        taken=True,
        why=why,
        required=required,
        start=begin,
        done=done,
        covers=left_out.get,
    )


def _release(version: str) -> str:
    return ".".join(version.split(".")[:2])


def reasons(patches: Iterable[Patch], megatron: str, title: str = TITLE) -> dict[str, str]:
    """Why accel_bridge's own ``patches`` are left out under an adaptor, by id; others stay."""
    result = {}
    for patch in patches:
        if patch.id not in KEPT:
            result[patch.id] = f"{title} has it"
        elif patch.requires is not None:
            # This is expected, so there is no warning (in strict mode, no error): these patches
            # follow the newest Megatron, and adaptors do not.
            wanted = Requirement(patch.requires)
            if not wanted.specifier.contains(megatron, prereleases=True):
                result[patch.id] = f"it is for {patch.requires}, but {title}'s is {megatron}"
    return result


def start() -> None:
    """Import MindSpeed's adaptor, and check by values that Megatron got its functions.

    :raises PatchError: the adaptor raises, exits, or leaves Megatron unchanged.
    """
    _import(TITLE, MODULE)
    wrong = [target for target, foreign in VALUES if _origin(target).startswith(foreign)]
    if wrong:
        kept = [f"unchanged: {', '.join(wrong)}"]
        raise _failed(TITLE, MODULE, "Megatron kept its own functions", kept)


def start_light() -> None:
    """Import MegatronAdaptor; which of Megatron's objects it replaces is not documented.

    :raises PatchError: it raises or exits.
    """
    _import(LIGHT_TITLE, LIGHT_MODULE)


def _import(title: str, module: str) -> None:
    try:
        # Its output is left alone: it keeps sys.stderr for later and needs a real file there.
        with _without_help():
            importlib.import_module(module)
    except SystemExit as error:
        # argparse exits while it handles the error that says which argument is wrong.
        reason = str(error.__context__ or "what it printed is above")
        what = f"it ended the program with status {error.code}"
        raise _failed(title, module, what, [reason]) from error
    except Exception as error:
        raise _failed(title, module, f"it raised {type(error).__name__}", [str(error)]) from error


def _failed(title: str, module: str, what: str, evidence: list[str]) -> PatchError:
    return PatchError(
        f"{title} could not take over: {what}.",
        evidence=[f"import {module}", *evidence],
        next=f"{MINDSPEED.name}=off uses accel_bridge's own kernels",
    )


@contextlib.contextmanager
def _without_help() -> Iterator[None]:
    """sys.argv without the words that make MindSpeed's parser print its help and exit."""
    before = sys.argv
    sys.argv = [word for word in before if word not in ("-h", "--help")]
    try:
        yield
    finally:
        sys.argv = before


def _origin(target: str) -> str:
    """The module that defines a function's code or a class, followed by a dot."""
    module, _, name = target.partition(":")
    value: Callable[..., Any] | type = getattr(importlib.import_module(module), name)
    # functools.wraps copies __module__, but not the globals.
    spaces = getattr(value, "__globals__", None)
    return f"{spaces['__name__'] if spaces else value.__module__}."
