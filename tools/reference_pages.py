"""docs/commands.md and docs/api.md: the command line and the public Python names, from the code."""

from __future__ import annotations

import argparse
import contextlib
import enum
import importlib
import inspect
import io
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final
from unittest import mock

from charts import table

from accel_bridge.plugins.commands import Command
from accel_bridge.plugins.manager import load_plugins
from accel_bridge.process import launch

_COMMANDS: Final = """\
# Commands and environment variables

`accel-bridge COMMAND --help` prints the same; `python -m accel_bridge COMMAND` runs the same.
Plugins may add commands and variables.

"""
_VARIABLES: Final = """
## Environment variables

An unknown `ACCEL_BRIDGE_*` variable causes a warning, an invalid value an error. An empty value
counts as not set.

"""
_API: Final = """\
# Python interface

What scripts and plugins may use. Everything else may change. The
contracts are [kernels](kernels.md).

"""
_HOOKS: Final = """\
## Hooks of a plugin

A plugin marks functions of these names with `@hookimpl`; each is optional.
"""

#: Modules whose ``__all__`` is the interface, what each is for, and whether it is shown in full.
_MODULES: Final = {
    "accel_bridge": ("What a script needs. Importing it imports no torch.", True),
    "accel_bridge.plugin": ("What a plugin needs. Importing it imports no torch.", True),
    "accel_bridge.patching": ("What the author of a patch may need besides.", False),
    "accel_bridge.kernels": ("Contracts, their references, and what kernels are made with.", False),
    "accel_bridge.recording": ("Recordings of `accel-bridge parity record`.", False),
}
#: What other packages of the project use of them, and nobody outside needs.
_OURS: Final = frozenset(
    (
        "Chosen Fit SourceTree Verdict against_tree against_version armed choose draft "
        "known_versions made_for check_zstd current_plan machine set_plan "
        "Attend Layout check_convolution group_size saves_memory smoothing_weight watch_kernels"
    ).split()
)


class _Parsed(BaseException):
    """A command has made its parser and begins to parse."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def commands_page(commands: str, variables: str) -> str:
    """docs/commands.md, of the tables of both."""
    parts = [_COMMANDS, commands, _VARIABLES, variables]
    for found in load_plugins().commands().items:
        parts += _sections(found.item)
    return "".join(parts)


def _sections(command: Command) -> Iterator[str]:
    """The section of a command, and one of each of its subcommands."""
    made = parser_of(command)
    yield f"\n## {command.name}\n"
    if isinstance(made, str) or not made.description:
        yield f"\n{command.summary[0].upper()}{command.summary[1:]}.\n"
    if isinstance(made, str):
        yield f"\n<!-- not run: its usage -->\n```text\n{made.rstrip()}\n```\n"
        return
    for parser in (made, *_subcommands(made)):
        if parser is not made:
            yield f"\n### {parser.prog.removeprefix('accel-bridge ')}\n"
        if parser.description:
            yield f"\n{_escaped(' '.join(parser.description.split()))}\n"
        yield from _lists(parser)
        if parser.epilog == launch.EPILOG and command.name != "pretrain":
            yield "\ntorchrun's options too, as [pretrain](#pretrain) lists them.\n"
        elif parser.epilog:
            yield f"\n{_escaped(' '.join(parser.epilog.split()))}\n"


def parser_of(command: Command) -> argparse.ArgumentParser | str:
    """The parser that a command makes; its usage text, if it makes none."""

    def parsing(self: argparse.ArgumentParser, *_: Any, **__: Any) -> Any:
        raise _Parsed(self)

    printed = io.StringIO()
    names = ("parse_args", "parse_known_args", "parse_intermixed_args")
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch.object(argparse.ArgumentParser, name, parsing))
        stack.enter_context(contextlib.redirect_stdout(printed))
        try:
            command.run(["--help"])
        except _Parsed as found:
            return found.parser
    return printed.getvalue()


def _subcommands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in dict.fromkeys(action.choices.values()):
                yield child
                yield from _subcommands(child)


def _lists(parser: argparse.ArgumentParser) -> Iterator[str]:
    """A list for each group of arguments."""
    titled = [group for group in parser._action_groups if _rows(parser, group._group_actions)]
    for group in titled:
        if len(titled) > 1 and group.title not in ("options", "optional arguments"):
            yield f"\n{(group.title or '').capitalize()}:\n"
        yield "\n"
        for words, does, default in _rows(parser, group._group_actions):
            yield f"- {words}: {does}{f' (default: {default})' if default else ''}\n"


def _rows(
    parser: argparse.ArgumentParser, actions: Sequence[argparse.Action]
) -> list[tuple[str, str, str]]:
    return [
        (_words(action), _escaped(_help(parser, action)), _default(action))
        for action in actions
        if action.help != argparse.SUPPRESS
        and not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
    ]


def _words(action: argparse.Action) -> str:
    value = _value(action)
    names = action.option_strings or [value]
    named = f" {value}" if action.option_strings and value else ""
    return f"`{', '.join(names)}{named}`"


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    word = action.metavar or ("|".join(map(str, action.choices)) if action.choices else None)
    word = " ".join(word) if isinstance(word, tuple) else word or action.dest.upper()
    several = action.nargs in ("+", "*") or (isinstance(action.nargs, int) and action.nargs > 1)
    return f"{word} [{word} ...]" if several and action.option_strings else word


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    values = {**vars(action), "prog": parser.prog}
    return " ".join((action.help or "").split()) % values


def _default(action: argparse.Action) -> str:
    default = action.default
    if isinstance(action, argparse._StoreFalseAction):
        return ""
    if default in (None, False, argparse.SUPPRESS, "", []) or "default" in (action.help or ""):
        return ""
    if isinstance(default, list | tuple):
        return f"`{' '.join(map(str, default))}`"
    return "on" if default is True else f"`{default}`"


def _escaped(text: str) -> str:
    return text.replace("*", "\\*").replace("<", "&lt;")


def api_page() -> str:
    """docs/api.md."""
    parts = [_API]
    for name, (purpose, in_full) in _MODULES.items():
        module = importlib.import_module(name)
        parts.append(f"## {name}\n\n{purpose}\n")
        rows = []
        for public in module.__all__:
            value = getattr(module, public)
            if _is_elsewhere(public, value, name) or not callable(value) or public.isupper():
                continue
            if public in _OURS and not in_full:
                continue
            if in_full:
                parts.append(_entry(name, public, value))
            else:
                first = (inspect.getdoc(value) or "").partition("\n\n")[0]
                rows.append((f"`{public}`", _markdown(first).replace("|", "\\|")))
        parts.append("\n" + table(("name", "is"), rows) + "\n" if rows else "\n")
        if name == "accel_bridge.plugin":
            parts += [_HOOKS, *_hooks(), "\n"]
    return "".join(parts).rstrip() + "\n"


def _hooks() -> Iterator[str]:
    """The hooks, each with its signature and its docstring."""
    from accel_bridge.plugins import hookspecs

    for name, function in vars(hookspecs).items():
        if hasattr(function, f"{hookspecs.PROJECT}_spec"):
            signature = str(inspect.signature(function)).replace("'", "")
            text = _markdown(inspect.getdoc(function) or "")
            yield f"\n### `{name}{signature}`\n\n{text}\n"


def _is_elsewhere(public: str, value: Any, module: str) -> bool:
    """Whether an earlier module of the page has the same object."""
    for name in _MODULES:
        if name == module:
            return False
        other = importlib.import_module(name)
        if public in other.__all__ and getattr(other, public) is value:
            return True
    return False


def _entry(module: str, public: str, value: Any) -> str:
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        kind = type(value)
        package = kind.__module__.partition(".")[0].removeprefix("_")
        return f"\n### {module}.{public}\n\n{package}'s `{kind.__name__}`.\n"
    text = _markdown(inspect.getdoc(value) or "")
    return f"\n### {module}.{public}\n\n`{public}{_signature(value)}`\n\n{text}\n"


def _signature(value: Any) -> str:
    if inspect.isclass(value) and issubclass(value, enum.Enum):
        return f": {', '.join(member.name for member in value)}"
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    shown = [
        parameter.replace(default=_Shown(parameter.default))
        if parameter.default is not parameter.empty
        else parameter
        for parameter in signature.parameters.values()
    ]
    words = str(signature.replace(parameters=shown))
    words = re.sub(r"(: |-> )'([^']*)'", r"\1\2", words)  # annotations are texts
    return words.replace("accel_bridge.", "").removesuffix(" -> None")


class _Shown:
    """A default as a page shows it: objects by their name, without an address."""

    def __init__(self, default: object) -> None:
        plain = default is None or isinstance(default, bool | int | float | str | tuple)
        name = getattr(default, "__name__", "")
        self.text = repr(default) if plain else name if name.isidentifier() else "..."

    def __repr__(self) -> str:
        return self.text


def _markdown(docstring: str) -> str:
    """A docstring's reST, as far as ours use it, in Markdown."""
    text = re.sub(r":(?:class|func|meth|data|mod|attr):`~?([^`]+)`", r"`\1`", docstring)
    text = text.replace("``", "`")
    # A field ends with its paragraph.
    text = re.sub(
        r"(^:\w+[^:\n]*:(?:(?!\n\n)[\s\S])*)\n\n(?!:)([\s\S]*)", r"\2\n\n\1", text, flags=re.M
    )
    head, *fields = re.split(r"^:(?=\w+[^:\n]*:)", text, flags=re.MULTILINE)
    lines = [_escaped_outside_code(" ".join(part.split())) for part in head.split("\n\n")]
    made = "\n\n".join(line for line in lines if line)
    for field in fields:
        name, _, rest = field.partition(":")
        kind, _, what = name.partition(" ")
        words = _escaped_outside_code(" ".join(rest.split()))
        label = {"param": f"`{what}`:", "returns": "Returns", "raises": f"Raises `{what}`:"}
        made += ("\n" if "\n- " in made else "\n\n") * bool(made)
        made += f"- {label.get(kind, f'{name}:')} {words}"
    return made


def _escaped_outside_code(text: str) -> str:
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [
        re.sub(r"(?<!\*)\*(?!\*)", r"\\*", part).replace("<", "&lt;") for part in parts[::2]
    ]
    return "".join(parts)
