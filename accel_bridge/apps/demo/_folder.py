"""The demo's folder: what an earlier demo left there is kept until this one is whole."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from accel_bridge.errors import BridgeError

#: The commands, to repeat by hand. Its second line says that the demo made it, and for what.
COMMANDS_FILE: Final = "commands.sh"
_HEADER: Final = "#!/bin/sh -e\n# Made by accel-bridge demo; checkpoints: {}\n"
_MARK: Final = re.compile(re.escape(_HEADER).replace(re.escape("{}"), r"(\d+(?: \d+)*)").encode())
#: Where the last whole demo is until the one that runs is whole.
EARLIER: Final = "earlier"
#: What training says.
LOG: Final = "training.log"
#: How the file began before there was a mark.
_UNMARKED: Final = b"#!/bin/sh -e\naccel-bridge preprocess "

#: All that the demo makes, as patterns of names.
_MADE: Final = re.compile(
    r"commands\.sh|corpus\.jsonl|vocab\.json|merges\.txt|training\.log|loss\.png|cache|checkpoint"
    r"|corpus\.preprocess\.\w+(\.new)?|corpus_text_document\.\w+(\.partial)?"
    r"|tokenizer(\.\d+\.new)?|earlier"
)
_TOKENIZER: Final = re.compile(r"vocab\.json|merges\.txt|tokenizer(_config)?\.json")
_ITERATION: Final = re.compile(r"iter_(\d{7})")


def prepare(folder: Path, checkpoints: tuple[int, ...]) -> None:
    """Move what an earlier demo made out of the way, and begin :data:`COMMANDS_FILE`.

    :param folder: is there; the caller holds its lock.
    :param checkpoints: iterations after which this demo will save one.
    :raises BridgeError: it holds something else; nothing has been moved.
    """
    earlier = folder / EARLIER
    made = [path for path in folder.iterdir() if path != earlier]
    if made:
        foreign = list(_foreign(folder))
        if foreign:
            raise BridgeError(
                f"{folder} holds files that no demo made.",
                evidence=foreign[:5],
                next="accel-bridge demo --out ANOTHER_FOLDER; or remove this one by hand, if "
                "nothing in it is yours",
            )
        # The commands go last: what is cut short can be taken up again.
        made.sort(key=lambda path: path.name == COMMANDS_FILE)
        if (earlier / COMMANDS_FILE).exists():  # the demo after it was never whole
            _remove(made)
        else:
            earlier.mkdir(exist_ok=True)
            for path in made:
                path.rename(earlier / path.name)
    text = _HEADER.format(" ".join(map(str, checkpoints)))
    (folder / COMMANDS_FILE).write_text(f'{text}cd "$(dirname "$0")"\n', encoding="utf-8")


def finish(folder: Path) -> None:
    """The demo is whole: the earlier one goes."""
    _remove(path for path in (folder / EARLIER,) if path.exists())


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def note(folder: Path, line: str) -> None:
    """Add a line to :data:`COMMANDS_FILE`."""
    with (folder / COMMANDS_FILE).open("a", encoding="utf-8") as commands:
        commands.write(f"{line}\n")


def _foreign(folder: Path) -> Iterator[str]:
    """What speaks against the folder's being an earlier demo's, in words."""
    commands = folder / COMMANDS_FILE
    head = b""
    if commands.is_file():
        with commands.open("rb") as file:
            head = file.read(4096)
    mark = _MARK.match(head)
    if mark is None:
        yield (
            f"{commands} may be an earlier version's, which did not note what it made"
            if head.startswith(_UNMARKED)
            else f"{commands} is not there, or not an earlier demo's"
        )
        return
    saved = {int(number) for number in mark[1].split()}
    earlier = folder / EARLIER
    if (earlier / COMMANDS_FILE).exists():
        yield from _foreign(earlier)
    elif earlier.is_dir():  # the move was cut short
        names = (path.name for path in earlier.iterdir())
        yield from (f"{earlier / name}" for name in names if not _MADE.fullmatch(name))
    for path in sorted(folder.iterdir()):
        if not _MADE.fullmatch(path.name):
            yield f"{path}"
        elif path.name.startswith("tokenizer") and path.is_dir() and not path.is_symlink():
            yield from (
                f"{inner}"
                for inner in sorted(path.iterdir())
                if not _TOKENIZER.fullmatch(inner.name)
            )
    if (folder / "checkpoint").is_dir():
        for path in sorted((folder / "checkpoint").iterdir()):
            iteration = _ITERATION.fullmatch(path.name)
            if iteration and int(iteration[1]) not in saved:
                yield f"{path} was saved by another run"
