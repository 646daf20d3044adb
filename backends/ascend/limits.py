"""What the fused operators of torch_npu take: one table, by operator, chip and CANN release.

The backend's kernels ask it before each call, the doctor and rehearsals before a training, and the
emulator refuses what it does not allow (as a file, :func:`as_file`). docs/ascend.md shows it. Every
row restates a fact of the public page that it names; where two pages differ, the stricter holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from accel_bridge.plugin import Variable

if TYPE_CHECKING:
    from accel_bridge.plugins.checks import Run

#: Chips: Atlas A2, Atlas A3, Ascend 950PR and 950DT -> the name that torch_npu gives one of each.
CHIPS: Final = {"910B": "Ascend910B1", "910C": "Ascend910_9391", "950": "Ascend950DT_9571"}
#: CANN releases that change a row, oldest first.
RELEASES: Final = ("8.0.0", "8.2.RC1", "8.3.RC1", "8.5.0")

_FLOATS: Final = ("float16", "bfloat16", "float32")
_HALVES: Final = _FLOATS[:2]
_BEFORE_950: Final = ("910B", "910C")

_ACLNN: Final = "https://gitcode.com/cann/ops-transformer/blob/master/"
_ATTENTION: Final = f"{_ACLNN}attention/flash_attention_score/docs/aclnnFlashAttentionScore.md"
_ATTENTION_800: Final = (
    "https://hiascend.com/document/detail/zh/canncommercial/800/apiref/aolapi/context/"
    "aclnnFlashAttentionScore.md"
)
_PACKED: Final = f"{_ACLNN}attention/flash_attention_score/docs/aclnnFlashAttentionVarLenScore.md"
_ROTARY: Final = (
    f"{_ACLNN}posembedding/rotary_position_embedding/docs/aclnnRotaryPositionEmbedding.md"
)
_SUMS: Final = f"{_ACLNN}gmm/grouped_matmul_add/docs/aclnnGroupedMatmulAdd.md"
_GATHER: Final = f"{_ACLNN}mc2/all_gather_matmul/docs/aclnnAllGatherMatmul.md"
_SCATTER: Final = f"{_ACLNN}mc2/matmul_reduce_scatter/docs/aclnnMatmulReduceScatter.md"
_REDUCE: Final = f"{_ACLNN}mc2/matmul_all_reduce/docs/aclnnMatmulAllReduce.md"

#: The directory of pages whose own names are in Chinese brackets: rms_norm, swiglu.
_BETA: Final = "https://gitcode.com/Ascend/op-plugin/tree/26.1.0/docs/zh/custom_APIs/torch_npu"


def _op_plugin(operator: str, branch: str = "26.1.0") -> str:
    """op-plugin's page of an operator."""
    directory = "zh/custom_APIs/torch_npu" if branch == "26.1.0" else "context"
    return f"https://gitcode.com/Ascend/op-plugin/blob/{branch}/docs/{directory}/torch_npu-{operator}.md"


@dataclass(frozen=True, slots=True)
class Limit:
    """One row: what one argument of one operator may be.

    :param operator: name in ``torch.ops.npu``.
    :param key: name of the row, for those who ask.
    :param what: the argument, in words.
    :param low: smallest number, inclusive.
    :param high: largest number, inclusive.
    :param divisor: what the number must be a multiple of.
    :param names: instead of a range, all that is allowed.
    :param chips: where it holds; another chip has another row, or no such limit.
    :param since: the CANN release that brought it; it replaces the row before.
    :param source: the public page.
    """

    operator: str
    key: str
    what: str
    low: int = 0
    high: int = 0
    divisor: int = 1
    names: tuple[str, ...] = ()
    chips: tuple[str, ...] = tuple(CHIPS)
    since: str = RELEASES[0]
    source: str = ""

    @property
    def allowed(self) -> str:
        """The range or the names, in words."""
        if self.names:
            return " or ".join(filter(None, (", ".join(self.names[:-1]), self.names[-1])))
        if self.low == self.high:
            return str(self.low)
        multiple = f", a multiple of {self.divisor}" if self.divisor > 1 else ""
        return f"{self.low} to {self.high}{multiple}"

    @property
    def text(self) -> str:
        """The rule in words."""
        return f"{self.what} is {self.allowed}"

    def allows(self, value: int | str) -> bool:
        """Whether the operator takes it."""
        if self.names:
            return str(value) in self.names
        return self.low <= int(value) <= self.high and int(value) % self.divisor == 0

    def objection(self, value: int | str) -> str | None:
        """None if ``value`` is allowed, else the rule that it breaks."""
        return None if self.allows(value) else f"{self.operator}: {self.text}, not {value}"

    def edges(self) -> tuple[list[int | str], list[int | str]]:
        """The outermost values that are allowed, and those just beyond them."""
        if self.names:
            other = "int32" if "float32" in self.names or "bool" in self.names else "float32"
            return list(self.names), [other if self.key.endswith("dtype") else "another"]
        outside: list[int | str] = [self.low - self.divisor, self.high + self.divisor]
        if self.divisor > 1:
            outside += [self.low + 1, self.high - 1]
        return [self.low, self.high], outside


_FA: Final = "npu_fusion_attention"
_WIDTHS: Final = "the key's head size above the value's"
_SINKS: Final = "number of softmax sinks of a head"
_PACKED_SOFTMAX: Final = "1 for a softmax packed like TND's query, else 0:"
_RANKS: Final = "number of ranks"
_TWO: Final = ("2", "4", "8")
_A3: Final = (*_TWO, "16", "32")


def _gemms() -> Iterator[Limit]:
    """GEMMs with the collective before or after them."""
    for operator in ("npu_all_gather_base_mm", "npu_mm_reduce_scatter_base"):
        page = _op_plugin(operator)
        yield Limit(operator, "dtype", "dtype", names=_HALVES, source=page)
        yield Limit(operator, "inner", "the summed dimension", 256, 65_534, source=page)
        yield Limit(operator, "comm_turn", "comm_turn", source=page)
        yield Limit(operator, "ranks", _RANKS, names=_TWO, chips=("910B",), source=page)
        yield Limit(operator, "ranks", _RANKS, names=_A3, chips=("910C",), source=page)
        what = "number of biases other than 0"
        yield Limit(operator, "bias", what, chips=_BEFORE_950, source=page)
        page = _GATHER if operator == "npu_all_gather_base_mm" else _SCATTER
        yield Limit(operator, "ranks", _RANKS, names=(*_A3, "64"), chips=("950",), source=page)
    operator = "npu_mm_all_reduce_base"
    page = _op_plugin(operator)
    yield Limit(operator, "dtype", "dtype", names=_HALVES, source=page)
    yield Limit(operator, "operation", "reduce_op", names=("sum",), source=page)
    yield Limit(operator, "ranks", _RANKS, names=("1", *_TWO), chips=("910B",), source=page)
    yield Limit(operator, "ranks", _RANKS, names=("none",), chips=("910C",), source=page)
    yield Limit(operator, "ranks", _RANKS, names=("1", *_A3, "64"), chips=("950",), source=_REDUCE)


#: The table. Of two rows of one operator, key and chip, the later release's holds from then on.
LIMITS: Final = (
    Limit(_FA, "dtype", "dtype", names=_FLOATS, source=_ATTENTION),
    Limit(
        *(_FA, "layout", "input_layout"),
        names=("BSH", "SBH", "BSND", "BNSD", "TND"),
        source=_op_plugin(_FA),
    ),
    Limit(_FA, "mode", "sparse_mode", 0, 6, source=_ATTENTION),
    Limit(
        *(_FA, "packed_mode", "sparse_mode of TND"),
        names=("0", "1", "2", "3", "4", "6", "7", "8"),
        source=_PACKED,
    ),
    Limit(_FA, "mask_dtype", "dtype of atten_mask", names=("bool", "uint8"), source=_ATTENTION),
    Limit(_FA, "batch", "batch size", 1, 2_000_000, source=_ATTENTION),
    Limit(_FA, "sequence", "sequence length", 1, 1_000_000, source=_ATTENTION),
    Limit(_FA, "heads", "number of query heads", 1, 256, source=_ATTENTION),
    Limit(_FA, "head_size", "head size", 1, 512, source=_ATTENTION_800),
    Limit(
        *(_FA, "head_size", "head size", 1, 768), since="8.2.RC1", source=_op_plugin(_FA, "7.1.0")
    ),
    Limit(_FA, "value_size", _WIDTHS, source=_ATTENTION_800),
    Limit(_FA, "value_size", _WIDTHS, 0, 767, since="8.2.RC1", source=_op_plugin(_FA, "7.1.0")),
    Limit(_FA, "packed_tokens", "number of packed tokens (TND)", 1, 1_000_000, source=_PACKED),
    Limit(_FA, "documents", "number of packed sequences (TND)", 1, 1024, source=_op_plugin(_FA)),
    Limit(_FA, "prefixes", "batch size with prefix", 1, 32, source=_op_plugin(_FA)),
    Limit(_FA, "sink", _SINKS, source=_op_plugin(_FA)),
    Limit(_FA, "sink", _SINKS, 0, 1, since="8.5.0", source=_op_plugin(_FA)),
    Limit(_FA, "packed_softmax", _PACKED_SOFTMAX, source=_op_plugin(_FA)),
    Limit(_FA, "packed_softmax", _PACKED_SOFTMAX, 0, 1, since="8.3.RC1", source=_op_plugin(_FA)),
    Limit("npu_rotary_mul", "dtype", "dtype", names=_FLOATS, source=_ROTARY),
    Limit(
        *("npu_rotary_mul", "size", "rotated size", 2, 894, 2), chips=_BEFORE_950, source=_ROTARY
    ),
    Limit("npu_rotary_mul", "size", "rotated size", 2, 1024, 2, chips=("950",), source=_ROTARY),
    Limit(
        *("npu_rotary_mul", "product", "batch x heads (interleave)", 1, 999),
        chips=_BEFORE_950,
        source=_ROTARY,
    ),
    Limit(
        *("npu_rotary_mul", "side", "batch, and heads (half)", 1, 999),
        chips=_BEFORE_950,
        source=_ROTARY,
    ),
    Limit(
        *("npu_scaled_masked_softmax", "dtype", "dtype"),
        names=_FLOATS,
        source=_op_plugin("npu_scaled_masked_softmax"),
    ),
    Limit(
        *("npu_scaled_masked_softmax", "side", "queries, and keys", 32, 4096, 32),
        source=_op_plugin("npu_scaled_masked_softmax"),
    ),
    Limit(
        *("npu_grouped_matmul", "dtype", "dtype of the first operand"),
        names=(*_FLOATS, "int8"),
        source=_op_plugin("npu_grouped_matmul"),
    ),
    Limit(
        *("npu_grouped_matmul", "groups", "number of groups", 1, 1024),
        source=_op_plugin("npu_grouped_matmul"),
    ),
    Limit(
        *("npu_grouped_matmul", "inner", "last dimension of an operand", 1, 65_535),
        chips=_BEFORE_950,
        source=_op_plugin("npu_grouped_matmul"),
    ),
    Limit("npu_grouped_matmul_add_", "dtype", "dtype", names=_HALVES, source=_SUMS),
    Limit(
        *("npu_grouped_matmul_add_", "sum_dtype", "dtype of the sum"),
        names=("float32",),
        source=_SUMS,
    ),
    Limit("npu_grouped_matmul_add_", "groups", "number of groups", 1, 1024, source=_SUMS),
    Limit(
        *("npu_grouped_matmul_add_", "inner", "last dimension of an operand", 1, 65_535),
        chips=_BEFORE_950,
        source=_SUMS,
    ),
    Limit("npu_rms_norm", "dtype", "dtype", names=_FLOATS, source=_BETA),
    Limit("npu_swiglu", "dtype", "dtype", names=_FLOATS, source=_BETA),
    Limit(
        *("npu_cross_entropy_loss", "rows", "number of tokens", 1, 200_000),
        source=_op_plugin("npu_cross_entropy_loss"),
    ),
    *_gemms(),
)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rows that hold on one chip with one CANN.

    :param chip: a key of :data:`CHIPS`.
    :param cann: a release, as CANN spells it.
    """

    chip: str
    cann: str

    @property
    def limits(self) -> Mapping[tuple[str, str], Limit]:
        """(operator, key) -> the row."""
        return _rows(self.chip, self.cann)

    def objection(self, operator: str, *pairs: tuple[str, Any]) -> str | None:
        """The first broken rule, or None.

        :param pairs: key of a row, and the value that a call has; a torch dtype counts as its name.
        """
        limits = self.limits
        for key, value in pairs:
            row = limits.get((operator, key))
            plain = value if isinstance(value, int) else str(value).removeprefix("torch.")
            if row is not None and (found := row.objection(plain)) is not None:
                return found
        return None

    def dtype_objection(self, operator: str, *tensors: Any) -> str | None:
        """The rule that a tensor's dtype breaks, or None."""
        return self.objection(operator, *(("dtype", tensor.dtype) for tensor in tensors))

    def as_file(self) -> str:
        """One line for each row, its fields separated by tabs: what the emulator reads.

        Operator, key, smallest, largest, divisor, names (commas), rule, page.
        """
        fields = (
            (*key, *map(str, (row.low, row.high, row.divisor)), ",".join(row.names), row.text)
            for key, row in self.limits.items()
        )
        sources = (row.source for row in self.limits.values())
        where = f"{self.chip}, CANN {self.cann}"
        return "".join(
            "\t".join((*row, f"{where}; {source}")) + "\n"
            for row, source in zip(fields, sources, strict=True)
        )


def released(release: str) -> tuple[int, ...]:
    """A release of CANN as numbers: ``8.3.RC1``, ``8.5.0 EMULATED``."""
    return tuple(int(part) for part in re.findall(r"\d+", release.partition("RC")[0])[:2])


@cache
def _rows(chip: str, cann: str) -> Mapping[tuple[str, str], Limit]:
    found: dict[tuple[str, str], Limit] = {}
    for row in LIMITS:
        if chip in row.chips and released(row.since) <= released(cann):
            found[row.operator, row.key] = row
    return found


def _chip(text: str) -> tuple[str, str]:
    if not text:
        return "", ""
    chip, _, cann = text.partition(":")
    if chip.upper() not in CHIPS:
        raise ValueError(f"a chip is {', '.join(CHIPS)}")
    if cann and not released(cann):
        raise ValueError("a release of CANN is like 8.5.0")
    return chip.upper(), cann


CHIP: Final = Variable(
    "ACCEL_BRIDGE_ASCEND_CHIP",
    "",
    "910B, 910C or 950, and :RELEASE of CANN",
    "names the NPU whose limits apply; if unset, they are those of the machine",
    _chip,
)


def chip_of(name: str) -> str:
    """The chip that ``npu-smi`` or torch_npu calls so; 910B where the name says nothing.

    >>> chip_of("Ascend910_9391"), chip_of("910B3"), chip_of("Ascend950DT_9571")
    ('910C', '910B', '950')
    """
    if "950" in name:
        return "950"
    return "910C" if "910_93" in name or "910C" in name.upper() else "910B"


@cache
def here() -> Rules:
    """Of the NPU that this process computes on, or that :data:`CHIP` names."""
    import torch

    from accel_bridge.backends.ascend._probe import AscendProbe

    chip, cann = CHIP.read()
    npu: Any = getattr(torch, "npu", None)
    if not chip:
        chip = chip_of(npu.get_device_name(0) if npu and npu.is_available() else "")
    found = AscendProbe().cann()
    stated = found[1].split()[0] if found and released(found[1]) else RELEASES[-1]
    return Rules(chip, cann or stated)


def of_training(rules: Rules, run: Run) -> list[str]:
    """The rules that the arguments of a training break: those operators do not serve it."""

    def number(name: str) -> int:
        found = run.argument(name, 0)
        return found if isinstance(found, int) else 0

    ranks = number("tensor_model_parallel_size") or 1
    heads, hidden = number("num_attention_heads"), number("hidden_size")
    size = number("kv_channels") or (hidden // heads if heads else 0)
    asked: list[tuple[str, str, int]] = [
        (_FA, "heads", heads // ranks),
        (_FA, "head_size", size),
        (_FA, "sequence", number("seq_length")),
        ("npu_rotary_mul", "size", _rotated(run, size)),
        ("npu_grouped_matmul", "groups", number("num_experts")),
        ("npu_grouped_matmul", "inner", hidden),
    ]
    if run.argument("use_ascend_mc2") or run.argument("tp_comm_overlap"):
        for operator in ("npu_all_gather_base_mm", "npu_mm_reduce_scatter_base"):
            asked += [(operator, "ranks", ranks), (operator, "inner", hidden // ranks)]
    found = (rules.objection(operator, (key, value)) for operator, key, value in asked if value)
    return [objection for objection in found if objection is not None]


def _rotated(run: Run, size: int) -> int:
    if run.argument("position_embedding_type") != "rope":
        return 0
    percent = run.argument("rotary_percent", 1.0)
    return int(size * percent) if isinstance(percent, int | float) else size


@dataclass(frozen=True, slots=True)
class Condition:
    """A rule that is not one argument's range.

    :param kept: how the kernels obey it.
    :param refused: the emulator's refusal, by its name in tests/ascend/operators/refusals.py; or,
        after a dash, why it accepts such calls.
    """

    operator: str
    text: str
    kept: str
    refused: str
    source: str = ""


CONDITIONS: Final = (
    Condition(
        "all of them",
        "no float64",
        "it goes to the reference",
        "- torch_npu turns float64 into float32",
    ),
    Condition(
        _FA,
        "without atten_mask attention is full, whatever sparse_mode, pre_tockens and next_tockens",
        "asserted: a mode other than 0, or a band, is never sent without its mask",
        "- without a mask the call is defined",
        _ATTENTION,
    ),
    Condition(
        _FA,
        "atten_mask: True = hidden; BNSS, B1SS, 11SS or SS",
        "masks are expanded to one of these; a mask per head to every batch row",
        "mask_size",
        _ATTENTION,
    ),
    Condition(
        _FA,
        "sparse_mode 2 (causal from the top left), 3 (from the bottom right) and 4 (band) take the "
        "2048 x 2048 upper triangle",
        "one triangle per device, made once",
        "mask_of_mode_2",
        _op_plugin(_FA),
    ),
    Condition(
        _FA,
        "sparse_mode 4 counts pre_tockens and next_tockens from the bottom right; both inclusive",
        "bands that count from the top left are shifted by sk - sq; a band with a negative side "
        "goes through mode 0 and a whole mask",
        "no_band",
        _op_plugin(_FA),
    ),
    Condition(
        _FA,
        "sparse_mode 0: atten_mask must agree with pre_tockens and next_tockens",
        "whole masks are sent with both unlimited",
        "band",
        _ATTENTION,
    ),
    Condition(
        _FA,
        "TND: cumulative lengths without the leading 0; no mask but SS; no whole row hidden",
        "the 0 is removed; the contract refuses explicit masks; sequences with queries but no "
        "keys go to the reference",
        "packed_rows",
        _PACKED,
    ),
    Condition(
        _FA,
        "rows that see nothing are handled as such only with inner_precise 2",
        "it is set if rows may be empty, and their output is set to 0",
        "- they average all values, as documented",
        _ATTENTION,
    ),
    Condition(
        "npu_rms_norm",
        "gamma is float32, or in the input's dtype; the input has 2 to 8 dimensions",
        "gamma is always float32",
        "norm_dtype",
        _BETA,
    ),
    Condition(
        "npu_rotary_mul",
        "cos and sin are within [-1, 1], which excludes a scale above 1 (YaRN)",
        "checked once for each tensor",
        "- a range of values, which a kernel does not look at",
        _op_plugin("npu_rotary_mul"),
    ),
    Condition(
        "npu_rotary_mul",
        "cos and sin: [S, 1, 1, D] and similar; for half also with the batch",
        "other shapes go to the reference",
        "- torch_npu itself looks at shapes",
        _ROTARY,
    ),
    Condition(
        "npu_swiglu",
        "contiguous and not empty",
        "made contiguous; empty: reference",
        "- torch_npu makes it contiguous",
        _BETA,
    ),
    Condition(
        "torch.nn.functional.gelu",
        "torch_npu ignores `approximate`: always tanh",
        "npu_gelu, which honours it",
        "- it computes tanh, as documented",
        _op_plugin("npu_gelu"),
    ),
    Condition(
        "npu_scaled_masked_softmax",
        "the mask is bool and must be given; fixed_triu_mask must be False",
        "an all-False mask is made if there is none; rows that see nothing are set to 0",
        "- torch_npu itself looks at the mask",
        _op_plugin("npu_scaled_masked_softmax"),
    ),
    Condition(
        "npu_grouped_matmul",
        "group_list: int64, cumulative, on the device; x is not transposed",
        "counts are summed on the device",
        "groups_order",
        _op_plugin("npu_grouped_matmul"),
    ),
    Condition(
        "npu_grouped_matmul_add_",
        "x transposed only; experts one behind the other",
        "else the reference; experts in another order are added from a buffer",
        "- torch_npu itself transposes",
        _SUMS,
    ),
    Condition(
        "all that sum in any order",
        "one result in each run only with torch.use_deterministic_algorithms(True), set before the "
        "first operator; of collectives with HCCL_DETERMINISTIC=true",
        "Megatron's --deterministic-mode sets the first, `env` explains the second",
        "- it sums in one order always",
    ),
    Condition(
        "streams",
        "a tensor that another stream uses must be recorded there (record_stream)",
        "Megatron records them",
        "- work is done when it is submitted",
    ),
    Condition(
        "memory",
        "blocks are multiples of 512 bytes; large ones begin at multiples of 16 KB where segments "
        "expand",
        "torch_npu allocates",
        "- torch_npu aligns them",
    ),
)


def limit_rows() -> Iterator[tuple[str, str, str, str]]:
    """Operator, argument, what each chip takes, before which release less, and the public pages."""
    for operator, key in dict.fromkeys((row.operator, row.key) for row in LIMITS):
        rows = [row for row in LIMITS if (row.operator, row.key) == (operator, key)]
        by_chip: dict[str, list[str]] = {}
        for chip in CHIPS:
            own = [row for row in rows if chip in row.chips]
            cells = [_brief(row) for row in reversed(own)] or ["-"]
            later = [
                f"(<{newer.since}: {cell})" for newer, cell in zip(own[1:], cells[1:], strict=True)
            ]
            by_chip.setdefault(" ".join([cells[0], *later]), []).append(chip)
        whole = len(by_chip) == 1
        takes = [
            cell if whole else f"{', '.join(chips)}: {cell}" for cell, chips in by_chip.items()
        ]
        pages = dict.fromkeys(row.source for row in rows)
        links = " ".join(f"[{number}]({page})" for number, page in enumerate(pages, 1))
        yield operator, key, "; ".join(takes), links


def _brief(row: Limit) -> str:
    if row.names:
        return ",".join(row.names)
    span = str(row.low) if row.low == row.high else f"{row.low}–{row.high}"
    return f"{span}/{row.divisor}" if row.divisor > 1 else span
