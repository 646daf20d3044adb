"""Command lines, variables and patch targets at random: an answer or an error in three parts."""

from __future__ import annotations

import contextlib
import io
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from random_examples import examples

from accel_bridge.apps.cli.main import main
from accel_bridge.errors import BridgeError, EnvironmentVariableError, PatchError
from accel_bridge.patching import Kind, Patch
from accel_bridge.process.environment import VARIABLES, Settings

#: No NUL: the system takes none.
TEXT = st.text(st.characters(exclude_characters="\0"), max_size=30)
WORDS = st.sampled_from(
    "plugins backends env parity compare kernels record patches --against --json --help --version "
    "-V -- --out --every --png --third --kernel --backend --wait --no-imports -1 0 1e999 nan . / "
    "/dev/null /dev/zero /proc/self/mem \x1b[31m --every=0 --wait=1e-9 --samples --vocab-size "
    "--smooth --names --kind bash --resumed --list --all \u202e \udcff --input --output-prefix out "
    "--tokenizer-type NullTokenizer --only --skip --last --title --progress --output --html "
    "--record -m --nproc-per-node --iterations -- --=".split()
)
#: Command lines that are quick whatever follows: none trains, and none imports torch.
STARTS = st.sampled_from(
    [
        ["parity", "compare"],
        ["parity", "record"],
        ["plugins"],
        ["backends"],
        ["patches", "--against"],
        ["env", "--no-imports"],
        ["inspect"],
        ["plot"],
        ["libraries"],
        ["preprocess"],
        ["tokenizer", "train"],
        ["doctor", "--list"],
        ["completion"],
        ["parity"],
        [],
    ]
)


def run(words: list[str]) -> tuple[int, str]:
    """Exit status, and what went to stderr."""
    with (
        contextlib.redirect_stderr(io.StringIO()) as said,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        try:
            status = main(words)
        except SystemExit as end:
            status = int(end.code or 0)
    return status, said.getvalue()


@examples(60)
@given(STARTS, st.lists(WORDS | TEXT, max_size=4))
@example(["patches", "--against"], ["x" * 5000])
@example(["env"], ["--wait", "x"])
@example(["parity", "record"], ["--out", "/tmp", "--every", "9" * 5000, "--"])
@example([], ["\ud800"])
def test_any_command_line_is_answered(start: list[str], words: list[str]) -> None:
    if (start or words)[:1] not in ([], ["patches"]) or "--against" in start:
        words = [word for word in words if word not in ("kernels", "--kernels")]
    with mock.patch("accel_bridge.apps.cli.parity_record.run_child", return_value=1):
        status, said = run(start + (words if start else words[:1]))
    assert "Traceback" not in said
    assert "\x1b" not in said
    if status == 2:
        assert "accel-bridge: error: " in said
        assert "  evidence: " in said
        assert "  next:     " in said


@examples(500)
@given(st.sampled_from([variable.name for variable in VARIABLES]), TEXT)
@example("ACCEL_BRIDGE_PLUGINS", ",,-,")
@example("ACCEL_BRIDGE_PATCHES", "none,-")
@example("ACCEL_BRIDGE_LOG", "\udcff")
def test_any_value_of_a_variable(name: str, value: str) -> None:
    refused = None
    try:
        Settings.from_environ({name: value})
    except EnvironmentVariableError as error:
        refused = error
    assert refused is None or (name in refused.what and refused.evidence and refused.next)


@examples(300)
@given(TEXT, TEXT)
@example("", "f")
@example(".mod", "f")
@example("a..b", "f")
@example("mod", "A..f")
def test_any_target_of_a_patch(module: str, name: str) -> None:
    def made() -> Patch:
        return Patch(
            id="x",
            target=f"{module}:{name}",
            kind=Kind.WRAP,
            make=print,
            why="",
            upstream="",
            removed_when="",
            loses="",
        )

    parts = [*module.split("."), *name.split(".")]
    if ":" not in module + name and all(part.isidentifier() for part in parts):
        assert made().module == module
    else:
        with pytest.raises(PatchError, match=r"not module:qualname") as caught:
            made()
        assert isinstance(caught.value, BridgeError)
