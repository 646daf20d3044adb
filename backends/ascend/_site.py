"""Variables that Ascend sites set for torch_npu and CANN: what each value does, and wrong ones.

torch_npu warns, ignores or ends at a value that it does not know, depending on the variable.
Source: Ascend/pytorch, docs/zh/api/environment_variable (August 2026).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from accel_bridge.plugins.checks import Finding, fails, warning

#: Of a value: why it is wrong, or nothing.
Rule = Callable[[str], str]
_SOURCE: Final = "Ascend/pytorch, docs/zh/api/environment_variable"


def _words(*words: str) -> Rule:
    return lambda text: "" if text in words else f"it takes {', '.join(words)}"


def _number(low: float, high: float, *, whole: bool = True) -> Rule:
    def rule(text: str) -> str:
        good = re.fullmatch(r"\d+" if whole else r"\d*\.?\d+", text)
        return "" if good and low <= float(text) <= high else f"it takes {low:g} to {high:g}"

    return rule


def _any_power(text: str) -> str:
    parts = text.strip("[]").split(",")
    good = all(re.fullmatch(r"(\d+:|>:)?\d+", part.strip()) for part in parts)
    return "" if good else "it takes a number, or [256:1,512:2,>:4]"


_SWITCH: Final = _words("0", "1")
_TRUTH: Final = _words("True", "False")
_MANY: Final = 1 << 40

#: Keys of PYTORCH_NPU_ALLOC_CONF.
ALLOCATOR: Final[Mapping[str, Rule]] = {
    "max_split_size_mb": _number(21, _MANY),
    "garbage_collection_threshold": _number(0.000001, 0.999999, whole=False),
    "expandable_segments": _TRUTH,
    "base_addr_aligned_kb": _number(0, 16),
    "page_size": _words("1g", "1G"),
    "segment_size_mb": _number(20, 512),
    "large_segment_size_mb": _number(11, _MANY),
    "roundup_power2_divisions": _any_power,
    "multi_stream_lazy_reclaim": _TRUTH,
    "pinned_use_background_threads": _TRUTH,
    "pin_memory_expandable_segments": _TRUTH,
    "pinned_mem_register": _TRUTH,
    "per_process_memory_fraction": _number(0, 1, whole=False),
}


def _allocator(text: str) -> str:
    # A comma inside brackets belongs to the value.
    for part in re.split(r",(?![^\[]*\])", text):
        key, colon, value = part.strip().partition(":")
        if key not in ALLOCATOR:
            return f"{key!r} is none of {', '.join(ALLOCATOR)}"
        if problem := ALLOCATOR[key](value.strip()) if colon else "it has no value":
            return f"{key}: {problem}"
    return ""


def _affinity(text: str) -> str:
    mode, *rest = (part.strip() for part in text.split(","))
    mode = mode.removeprefix("mode:")
    if mode not in ("0", "1", "2"):
        return "its first part, the mode, is 0, 1 or 2"
    cores = os.cpu_count() or 1
    for part in rest:
        found = re.fullmatch(r"npu\d+:(\d+)-(\d+)", part)
        if found is None and not re.fullmatch(r"(force|npu_affine):[01]", part):
            return f"{part!r} is none of npuN:FIRST-LAST, force:0 or 1, npu_affine:0 or 1"
        if found and not int(found[1]) <= int(found[2]) < cores:
            return f"{part!r}: the cores here are 0 to {cores - 1}"
    return ""


@dataclass(frozen=True, slots=True)
class SiteVariable:
    """A variable of torch_npu or CANN.

    :param rule: why a value is wrong, or nothing.
    :param help: what it sets, with its default in brackets.
    :param effects: value -> what it does; for the values worth a word.
    """

    name: str
    rule: Rule
    help: str
    effects: Mapping[str, str]

    def explain(self, value: str) -> str:
        """What the value does, or why it is wrong."""
        if problem := self.rule(value):
            return f"WRONG: {problem}"
        return self.effects.get(value, self.help)


VARIABLES: Final = (
    SiteVariable(
        "TASK_QUEUE_ENABLE",
        _words("0", "1", "2"),
        "a second thread launches operators (1)",
        {
            "0": "each operator is launched by the thread that calls it: slower",
            "1": "a second thread launches operators (default)",
            "2": "the second thread also allocates work space: fastest, with a higher peak of "
            "memory",
        },
    ),
    SiteVariable(
        "ASCEND_LAUNCH_BLOCKING",
        _SWITCH,
        "each operator is waited for (0)",
        {"1": "each operator is waited for: to find the line of an error, not to train"},
    ),
    SiteVariable(
        "CPU_AFFINITY_CONF",
        _affinity,
        "binds the threads of each NPU to cores; mode 2 binds each hot thread to one",
        {"0": "threads are not bound to cores (default)"},
    ),
    SiteVariable(
        "PYTORCH_NPU_ALLOC_CONF",
        _allocator,
        "the caching allocator",
        {
            "expandable_segments:True": "blocks of memory grow: less fragmentation where sizes "
            "change"
        },
    ),
    SiteVariable("PYTORCH_ALLOC_CONF", _allocator, "the caching allocator", {}),
    SiteVariable("PER_STREAM_QUEUE", _SWITCH, "a launching thread for each stream (0)", {}),
    SiteVariable(
        "MULTI_STREAM_MEMORY_REUSE",
        _words("0", "1", "2", "3"),
        "when memory of collectives is used again (1)",
        {
            "0": "memory of collectives is kept until they end: a higher peak",
            "2": "tensors of collectives live longer; not recommended",
        },
    ),
    SiteVariable(
        "PYTORCH_NO_NPU_MEMORY_CACHING",
        _SWITCH,
        "no caching of memory (0)",
        {"1": "each allocation goes to the driver: to find errors, not to train"},
    ),
    SiteVariable(
        "INF_NAN_MODE_ENABLE",
        _SWITCH,
        "infinities are kept (1)",
        {
            "0": "an overflow becomes the largest number and NaN becomes 0: float16's loss scaling "
            "does not see it"
        },
    ),
    SiteVariable("COMBINED_ENABLE", _SWITCH, "joins two copies of strided tensors (0)", {}),
    SiteVariable("STREAMS_PER_DEVICE", _words("8", "32"), "streams in the pool (32)", {}),
    SiteVariable(
        "ACL_OP_COMPILER_CACHE_MODE",
        _words("enable", "disable", "force"),
        "the cache of compiled operators (enable)",
        {"disable": "operators are compiled anew in each run"},
    ),
    SiteVariable(
        "ACL_DEVICE_SYNC_TIMEOUT", _number(1, 2147483), "seconds to wait for the device", {}
    ),
    SiteVariable(
        "HCCL_EVENT_TIMEOUT", _number(0, 2147483647), "seconds to wait for an event (1868)", {}
    ),
    SiteVariable(
        "TORCH_HCCL_BLOCKING_WAIT",
        _SWITCH,
        "wait() holds up the host (0)",
        {"1": "each wait() holds up the host: slower"},
    ),
    SiteVariable(
        "TORCH_NPU_USE_COMPATIBLE_IMPL",
        _SWITCH,
        "gelu, matmul and max_pool as PyTorch computes them (0)",
        {},
    ),
)


def explanations(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Of each variable that is set: what its value does, or why it is wrong."""
    return {
        variable.name: variable.explain(value)
        for variable in VARIABLES
        if (value := environ.get(variable.name, "").strip())
    }


def findings(environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Values that torch_npu does not know, and pairs of variables that contradict each other."""
    on = {name: environ.get(name, "").strip() for name in (v.name for v in VARIABLES)}
    for name, said in explanations(environ).items():
        if said.startswith("WRONG: "):
            yield fails(
                f"{name} has a value that torch_npu does not know",
                f"{name}={on[name]}: {said.removeprefix('WRONG: ')}",
                next=f"unset {name}, or correct it ({_SOURCE})",
            )
    if on["PYTORCH_ALLOC_CONF"] and on["PYTORCH_NPU_ALLOC_CONF"]:
        yield fails(
            "PYTORCH_ALLOC_CONF and PYTORCH_NPU_ALLOC_CONF are both set: torch_npu ends at its "
            "import",
            f"{on['PYTORCH_ALLOC_CONF']} and {on['PYTORCH_NPU_ALLOC_CONF']}",
            next="unset PYTORCH_NPU_ALLOC_CONF   (before PyTorch 2.10: PYTORCH_ALLOC_CONF)",
        )
    if on["ASCEND_LAUNCH_BLOCKING"] == "1":
        queue = on["TASK_QUEUE_ENABLE"]
        yield warning(
            "every operator is waited for, which makes training several times slower",
            "ASCEND_LAUNCH_BLOCKING=1"
            + (f"; TASK_QUEUE_ENABLE={queue} has no effect with it" if queue else ""),
            next="unset ASCEND_LAUNCH_BLOCKING once the error is found",
        )
    if on["PER_STREAM_QUEUE"] == "1" and on["TASK_QUEUE_ENABLE"] == "0":
        yield warning(
            "PER_STREAM_QUEUE has no effect without a queue",
            "PER_STREAM_QUEUE=1, TASK_QUEUE_ENABLE=0",
            next="export TASK_QUEUE_ENABLE=1",
        )
