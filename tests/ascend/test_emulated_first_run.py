"""`accel-bridge first-run` on an emulated machine that lies: what it says is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from .conftest import Emulate

#: As the whole run would, but the steps that a lie concerns, so that the test takes seconds.
_SOME = """
import sys
from accel_bridge.apps.cli import first_run, main
every = first_run.steps
wanted = sys.argv[1].split(",")
def some(machine):
    for name, seconds, words, backend in every(machine):
        if name in wanted:
            words += ["--kernel", "attention"] if name == "tolerances" else []
            yield name, seconds, words, backend
first_run.steps = some
sys.exit(main.main(["first-run", "--backend", "ascend", "--out", sys.argv[2]]))
"""
TWO = "train-cpu-2,train-here-2,parity-2"

#: A fault -> the library that stands before the emulator's own, and its text.
_BEFORE = """
#include <algorithm>
#include <cstdint>
#include <dlfcn.h>
template <typename... T> int behind(const char* name, T... given) {
  return reinterpret_cast<int (*)(T...)>(dlsym(dlopen(BEHIND, RTLD_NOW), name))(given...);
}
using Tensor = void*;
"""
_LIES = {
    # The same bits, with the scale of another rate.
    "dropout": (
        "libopapi.so",
        """
extern "C" int aclnnFlashAttentionScoreGetWorkspaceSize(
    Tensor q, Tensor k, Tensor v, Tensor bias, Tensor bits, Tensor padding, Tensor mask,
    void* prefix, double scale, double keep, int64_t pre, int64_t next, int64_t heads,
    char* layout, int64_t precise, int64_t mode, Tensor maximum, Tensor sum, Tensor reserved,
    Tensor out, void* size, void* executor) {
  return behind(__func__, q, k, v, bias, bits, padding, mask, prefix, scale, keep * keep, pre,
                next, heads, layout, precise, mode, maximum, sum, reserved, out, size, executor);
}
""",
    ),
    # Float32 (4) of two ranks arrives in each other's place.
    "order": (
        "libhccl.so",
        """
extern "C" int HcclAllGather(
    void* in, float* out, uint64_t count, int type, void* group, void* stream) {
  int status = behind(__func__, in, out, count, type, group, stream);
  if (type == 4) std::swap_ranges(out, out + count, out + count);
  return status;
}
""",
    ),
}


def inject(lie: str, libraries: Path, directory: Path) -> None:
    """Put the library of a fault into ``directory``."""
    name, text = _LIES[lie]
    source, behind = directory / "injected.cpp", directory / f"behind-{name}"
    source.write_text(_BEFORE + text)
    compile = ["g++", "-std=c++20", "-shared", "-fPIC", "-Wl,--no-as-needed"]
    # Needed by its path: its own name is the one that this library has.
    subprocess.run([*compile, "-x", "c++", os.devnull, "-o", behind], check=True)
    define = f'-DBEHIND="{behind}"'
    subprocess.run([*compile, define, source, behind, "-o", directory / name], check=True)
    behind.unlink()
    behind.symlink_to(libraries / name)


@pytest.mark.slow
@pytest.mark.megatron
@pytest.mark.parametrize(
    ("lies", "steps", "failed", "says"),
    [
        pytest.param(
            *((), f"limits,kernels,{TWO}", [], ["limits       passed"]),
            marks=pytest.mark.conformance,
        ),
        # A lie of one step leaves the others as they are on an honest machine.
        (("order",), f"limits,tolerances,{TWO}", ["parity-2"], ["limits       passed"]),
        (
            ("limit", "dropout"),
            "limits,tolerances",
            ["limits", "tolerances"],
            ["number of query heads is 1 to 256; with 256", "6 failed"],
        ),
    ],
)
def test_a_machine_that_lies_is_found(
    emulate: Emulate,
    libraries: Path,
    tmp_path: Path,
    lies: tuple[str, ...],
    steps: str,
    failed: list[str],
    says: list[str],
) -> None:
    script, out = tmp_path / "some.py", tmp_path / "first.zip"
    script.write_text(_SOME)
    for lie in _LIES.keys() & lies:
        inject(lie, libraries, tmp_path)
    # A device that takes 255 heads where the table allows 256.
    edit = "sed -i 's/heads\t1\t256/heads\t1\t255/' $ASCEND_EMULATOR_ROOT/limits; "
    command = f"exec {sys.executable} {script} {steps} {out}"
    command_line = (
        "env",
        f"LD_LIBRARY_PATH={tmp_path}:{libraries}",
        "sh",
        "-c",
        (edit if "limit" in lies else "") + command,
    )
    ended = emulate(*command_line, devices=2, timeout=400)
    assert out.is_file(), ended.output[-3000:]
    with zipfile.ZipFile(out) as archive:
        report = json.loads(archive.read("report.json"))
        text = archive.read("accel-bridge-first-run.txt").decode()
        logs = [archive.read(name).decode() for name in archive.namelist() if name.endswith("log")]
    assert [one["name"] for one in report["steps"] if one["verdict"] != "passed"] == failed, report
    assert ended.returncode == (1 if failed else 0)
    for words in says:
        assert words in text + "".join(logs), logs
    assert "EMULATED" in text
    assert ("contradicts the table" in text) == ("limit" in lies)
