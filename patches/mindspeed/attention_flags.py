"""Translating the attention flags of Ascend scripts into Megatron's own terms.

``--pre-tockens``, ``--next-tockens`` (the 2023 adaptor's launchers: ``--pre``, ``--next``),
``--shape-order`` and ``--sparse-mode``. That adaptor passed Megatron's causal mask together with
the band, so causality always holds too: 65536/65536 is full causal attention, and 2048/0 is a
causal band of the last 2048 + 1 positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from accel_bridge.patching.host import ArgumentError

if TYPE_CHECKING:
    from accel_bridge.kernels import Layout
    from accel_bridge.patching.host import Host

#: What MindSpeed's parser assumes if only one flag of a pair is given.
DEFAULT_PRE: Final = 65536
DEFAULT_NEXT: Final = 0
#: Order on the command line -> layout of the attention contract.
LAYOUTS: Final[dict[str, Layout]] = {
    "SBH": "SBH",
    "BSH": "BSH",
    "BSND": "BSHD",
    "BNSD": "BNSD",
}
#: Modes in which the band has an effect, and modes in which CANN ignores it.
BAND_MODES: Final = (0, 4)
CAUSAL_MODES: Final = (1, 2, 3)


def add_attention_flags(parser: Any) -> None:
    """Add those flags that ``parser`` does not have."""
    group = parser.add_argument_group(title="Ascend scripts (accel_bridge)")
    for names, options in (
        (
            ("--pre-tockens", "--pre"),
            {"type": int, "dest": "pre_tockens", "help": "visible keys before a query"},
        ),
        (
            ("--next-tockens", "--next"),
            {"type": int, "dest": "next_tockens", "help": "visible keys after a query"},
        ),
        (
            ("--shape-order", "--shape_order"),
            {"type": str, "dest": "shape_order", "help": "layout of attention's tensors"},
        ),
        (
            ("--sparse-mode",),
            {"type": int, "dest": "sparse_mode", "help": "CANN's number for the form of the mask"},
        ),
        (("--use-flash-attn",), {"action": "store_true", "dest": "use_flash_attn"}),
    ):
        free = [name for name in names if name not in parser._option_string_actions]
        if free:
            group.add_argument(*free, **options)


def resolve(args: Any, host: Host) -> list[str]:
    """Turn the flags into ``args.window_size`` and ``host.attention_layout``.

    :returns: a line for each flag that was given, with its translation.
    :raises ArgumentError: values that are invalid, or that contradict ``--window-size``.
    """
    pre, after = getattr(args, "pre_tockens", None), getattr(args, "next_tockens", None)
    order, mode = getattr(args, "shape_order", None), getattr(args, "sparse_mode", None)
    _check(pre, after, order, mode)
    lines = []
    if order is not None:
        host.attention_layout = LAYOUTS[order.upper()]
        lines.append(f"flag --shape-order {order}: attention is called in {host.attention_layout}")
    if mode is not None:
        form = "the band of --pre-tockens and --next-tockens" if mode in BAND_MODES else "no band"
        lines.append(f"flag --sparse-mode {mode}: causal, with {form}")
    if pre is None and after is None:
        return lines
    given = [
        f"{name} {value}"
        for name, value in (("--pre-tockens", pre), ("--next-tockens", after))
        if value is not None
    ]
    pre = DEFAULT_PRE if pre is None else pre
    after = DEFAULT_NEXT if after is None else after
    lines.append(f"flag {' '.join(given)}: {_window(args, pre, after, mode)}")
    return lines


def _check(pre: int | None, after: int | None, order: str | None, mode: int | None) -> None:
    """Raise one error for all invalid values."""
    wrong = [
        f"{name} {value}: {rule}"
        for name, value, right, rule in (
            ("--pre-tockens", pre, pre is None or pre >= 0, "it takes a number from 0"),
            ("--next-tockens", after, after is None or after >= 0, "it takes a number from 0"),
            (
                "--shape-order",
                order,
                order is None or order.upper() in LAYOUTS,
                f"it takes {', '.join(LAYOUTS)}",
            ),
            (
                "--sparse-mode",
                mode,
                mode is None or mode in (*BAND_MODES, *CAUSAL_MODES),
                "0 and 4 are bands, 1 to 3 causal; 5 to 8 (prefix, varlen) are not supported",
            ),
        )
        if not right
    ]
    if wrong:
        raise ArgumentError(
            f"{len(wrong)} attention flag(s) cannot be used.",
            evidence="; ".join(wrong),
            next="correct or remove them; `--pre-tockens 65536 --next-tockens 0` is full causal "
            "attention",
        )


def _length(args: Any) -> int | None:
    """The longest sequence; T5 has two lengths, and no --seq-length at this moment."""
    names = ("seq_length", "encoder_seq_length", "decoder_seq_length")
    return max((length for name in names if (length := getattr(args, name, None))), default=None)


def _window(args: Any, pre: int, after: int, mode: int | None) -> str:
    """Set the window if one remains; returns what was done."""
    length = _length(args)
    if mode in CAUSAL_MODES:
        return f"no effect with --sparse-mode {mode}: full causal attention"
    if length is None or pre >= length - 1:
        return (
            f"restricts nothing at sequence length {length}: full attention, causal if the model is"
        )
    window = (pre, after if after < length - 1 else -1)
    if args.window_size is not None and tuple(args.window_size) != window:
        raise ArgumentError(
            "Two attention windows were requested.",
            evidence=f"--window-size {args.window_size}; --pre-tockens {pre} --next-tockens "
            f"{after} is {window}",
            next="leave one of them out",
        )
    args.window_size = window
    return f"window_size = {window}: each position sees itself and {pre} before it"
