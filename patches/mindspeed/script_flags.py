"""Flags of Ascend scripts in Megatron's parser, on every backend."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, Final

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patches.mindspeed import lora  # noqa: F401  (it translates flags, too)
from accel_bridge.patches.mindspeed.attention_flags import add_attention_flags, resolve
from accel_bridge.patches.mindspeed.choices import add_choices, settle_choices
from accel_bridge.patches.mindspeed.mapped_flags import TABLE, TRANSLATED, Effect, Flag
from accel_bridge.patches.mindspeed.translations import convert, offload
from accel_bridge.patching import Kind, PatchContext, around
from accel_bridge.patching.host import ArgumentError, Host
from accel_bridge.process import log

#: Every flag by its name.
FLAGS: Final = {flag.name: flag for flag in (*TABLE, *(flag for flag, _ in TRANSLATED.values()))}
#: Attribute of the parsed arguments that collects MindSpeed's flags until they are handled.
_GIVEN: Final = "_accel_bridge_flags"


class _Collect(argparse.Action):
    """Keeps what was written: (flag, values)."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        words = [values] if isinstance(values, str) else list(values or ())
        given = getattr(namespace, _GIVEN, [])
        setattr(namespace, _GIVEN, [*given, (option_string, words)])


def add_flags(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add every flag that ``parser`` lacks; it already has Megatron's and the script's own."""
    add_attention_flags(parser)
    add_choices(parser)
    for flag in FLAGS.values():
        if flag.name not in parser._option_string_actions:
            parser.add_argument(
                flag.name,
                action=_Collect,
                nargs=flag.values if isinstance(flag.values, str) else None if flag.values else 0,
                dest=argparse.SUPPRESS,
                default=argparse.SUPPRESS,
                help=argparse.SUPPRESS,
            )
    return parser


def settle(args: argparse.Namespace, warn: Callable[[str], None]) -> list[str]:
    """Handle the flags that :func:`add_flags` collected.

    :param warn: shows the one line that names the ignored flags.
    :returns: a line for each flag that was mapped.
    :raises ArgumentError: there are flags that change what is trained; one error names them all.
    """
    given = [(FLAGS[name], words) for name, words in vars(args).pop(_GIVEN, [])]
    asked = [(flag, words) for flag, words in given if not _is_harmless(flag, words)]
    refused = [(flag, words) for flag, words in asked if flag.effect is Effect.REFUSED]
    if refused:
        raise ArgumentError(
            f"{len(refused)} flag(s) of MindSpeed are not supported: "
            f"{', '.join(flag.name for flag, _ in refused)}",
            evidence="; ".join(
                " ".join((flag.name, *words)) + f": {flag.means}" for flag, words in refused
            ),
            next="; ".join(dict.fromkeys(f"{flag.name}: {flag.next}" for flag, _ in refused)),
        )
    ignored = [flag.name for flag, _ in asked if flag.effect is Effect.IGNORED]
    if ignored:
        names = ", ".join(dict.fromkeys(ignored))
        warn(f"flags of MindSpeed that tune speed, memory or logging are ignored: {names}")
    mapped = [(flag, words) for flag, words in asked if flag.effect is Effect.MAPPED]
    lines = [_set(args, flag, words) for flag, words in mapped if flag.to is not None]
    lines += settle_choices(args)
    given_words = {flag.name: words for flag, words in mapped}
    for name, (_, translate) in TRANSLATED.items():
        if name in given_words:
            words = given_words[name]
            lines.append(f"flag {' '.join((name, *words))}: {translate(args, words)}")
    return lines


def _is_harmless(flag: Flag, words: list[str]) -> bool:
    return bool(words) and all(word in flag.harmless for word in words)


def _set(args: argparse.Namespace, flag: Flag, words: list[str]) -> str:
    assert flag.to is not None
    value: Any = True
    if words:
        value = convert(flag.name, words[0], flag.kind, getattr(args, flag.to, None) or 1)
    setattr(args, flag.to, value)
    return f"flag {' '.join((flag.name, *words))}: {flag.to} = {value}"


def _parse_args(context: PatchContext, call: Callable[..., Any], extra_args_provider: Any) -> Any:
    """Parse as upstream does, with the flags of Ascend scripts in addition to its own."""
    host: Host = context.host

    def with_flags(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        # The script's own flags first: it may have one of these names.
        own = parser if extra_args_provider is None else extra_args_provider(parser)
        return add_flags(own)

    def warn_once(line: str) -> None:
        # Megatron parses more than once.
        host.once(line, lambda: log.warn(line))

    parsed = call(extra_args_provider=with_flags)
    for line in settle(parsed, warn_once):
        host.say_once(line)
    return parsed


def _resolve(context: PatchContext, args: Any) -> None:
    """Turn the attention flags into Megatron's own arguments, before it validates them."""
    for line in resolve(args, context.host):
        context.host.say_once(line)
    if getattr(args, "comm_gemm_overlap", False):
        from accel_bridge.kernels.comm_gemm_overlap import CHOICE, OverlapChoice

        context.host.once(CHOICE, OverlapChoice).fused = True


def _validate_args(context: PatchContext, call: Callable[[], Any], parsed: Any) -> Any:
    """Validate as upstream does, with what the flags of Ascend scripts mean."""
    _resolve(context, parsed)
    # Upstream wants Transformer Engine's layers, whose weights would be moved too. Its own
    # layers have nothing of the kind, and move as well.
    local = getattr(parsed, "transformer_impl", "local") == "local"
    if not local:
        offload(parsed)
    result = call()
    if local:
        offload(parsed)
    return result


PATCHES = (
    megatron_patch(
        id="script-flags",
        target="megatron.training.arguments:parse_args",
        kind=Kind.WRAP,
        make=around(_parse_args),
        why="scripts written for Ascend use flags that Megatron's parser does not know",
        removed_when="never: upstream does not know Ascend",
        loses="such scripts stop at `unrecognized arguments`",
        uses=("extra_args_provider",),
    ),
    megatron_patch(
        id="attention-flags",
        target="megatron.training.arguments:validate_args",
        kind=Kind.WRAP,
        make=around(_validate_args),
        why="--pre-tockens, --next-tockens, --shape-order and --sparse-mode of Ascend scripts "
        "become Megatron's window_size and the kernel's layout; --swap-attention its offloading",
        removed_when="never: upstream does not know Ascend",
        loses="those flags have no effect",
        uses=("args",),
        after=("arguments",),
    ),
)
