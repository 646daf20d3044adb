"""No output takes an old one's place before it is whole: every call that could is listed here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = ("accel_bridge", "backends", "patches", "pretrain")
#: Methods and functions that remove or empty a file that is there.
REMOVES = {"unlink", "rmtree", "rmdir", "removedirs", "truncate", "write_text", "write_bytes"}

#: File -> why what it removes or empties is no output that was whole.
ALLOWED = {
    "accel_bridge/process/outputs.py": "write_output, and its own partial and lock files",
    "accel_bridge/process/child.py": "the temporary directory of its socket",
    "accel_bridge/apps/logprobs.py": "tokens in a temporary directory",
    "accel_bridge/apps/rehearse/attach.py": "logs in a temporary directory",
    "accel_bridge/apps/rehearse/plan.py": "partial files in a temporary directory",
    "accel_bridge/apps/rehearse/slurm.py": "two commands in a temporary directory",
    "accel_bridge/apps/rehearse/command.py": "a temporary directory",
    "accel_bridge/apps/cli/demo.py": "the list of its commands, where what was there has moved",
    "accel_bridge/apps/doctor/_examination.py": "pipes of a child",
    "accel_bridge/apps/cli/first_run.py": "logs in a temporary directory",
    "accel_bridge/apps/testing/__init__.py": "directories of tests",
    "accel_bridge/apps/cli/_completion.py": "/dev/null",
    "backends/cpu/_host.py": "a file of the kernel's",
    "backends/ascend/emulator/_torch_npu.py": "a cache, from a draft that is whole; its lock file",
    "backends/ascend/emulator/_launch.py": "a temporary directory",
    "backends/ascend/emulator/_build.py": "a source in a temporary directory",
    "patches/modules/scored_tokens.py": "a file in the caller's temporary directory",
    "patches/doctor/child.py": "a temporary directory",
    "patches/rehearsal.py": "a vocabulary in a rehearsal's temporary directory",
    "patches/tokenizers.py": "a temporary directory",
    "patches/checksums.py": "its partial file; sums of a checkpoint that Megatron writes anew",
    "pretrain/preprocess/writer.py": "partial files; an old index when the new pair is whole",
    "pretrain/preprocess/_error_log.py": "its partial file",
    "pretrain/preprocess/_checkpoint.py": "its partial file; the note of a run that is over",
    "pretrain/preprocess/_tokenizer_training.py": "its partial directory",
}


def removals(tree: ast.AST) -> Iterator[int]:
    """Lines of calls that remove or empty a file."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        name = node.func.id if isinstance(node.func, ast.Name) else name
        of_os = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "os"
        modes = [a.value for a in node.args if isinstance(a, ast.Constant)]
        opens = name == "open" and any(isinstance(m, str) and m[:1] == "w" for m in modes)
        if name in REMOVES or opens or (of_os and name == "remove"):
            yield node.lineno


def test_every_call_that_removes_or_empties_a_file_is_known() -> None:
    found = {
        str(path.relative_to(ROOT))
        for part in PARTS
        for path in (ROOT / part).rglob("*.py")
        if list(removals(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert found == set(ALLOWED)


def test_the_search_finds_what_it_looks_for() -> None:
    lines = ["path.unlink()", "open(p, 'w')", "p.open('wb')", "os.remove(p)", "shutil.rmtree(p)"]
    others = ["open(p)", "open(p, 'rb')", "hook.remove()", "p.open('xb')"]
    assert list(removals(ast.parse("\n".join(lines + others)))) == [1, 2, 3, 4, 5]
