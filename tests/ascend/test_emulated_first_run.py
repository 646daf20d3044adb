"""`accel-bridge first-run` on an emulated machine that lies: what it says is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
import warm_python

from .conftest import Emulate

#: As the whole run would, but the steps that a lie concerns, and three of twenty iterations.
_SOME = """
import sys
from accel_bridge.apps.cli import first_run, main
every, first_run.PARITY = first_run.steps, first_run.PARITY.replace("iters 20", "iters 3")
assert "iters 3 " in first_run.PARITY
wanted = sys.argv[1].split(",")
first_run.steps = lambda machine: (step for step in every(machine) if step[0] in wanted)
sys.exit(main.main(["first-run", "--backend", "ascend", "--out", sys.argv[2]]))
"""
STEPS = "limits,train-cpu-2,train-here-2,parity-2"

#: Stands before the emulator's own: float32 (4) of two ranks arrives in each other's place.
_WRONG_ORDER = """
#include <algorithm>
#include <cstdint>
#include <dlfcn.h>
extern "C" int HcclAllGather(
    void* in, float* out, uint64_t count, int type, void* group, void* stream) {
  void* behind = dlsym(dlopen(BEHIND, RTLD_NOW), __func__);
  int status = reinterpret_cast<int (*)(void*, float*, uint64_t, int, void*, void*)>(behind)(
      in, out, count, type, group, stream);
  if (type == 4) std::swap_ranges(out, out + count, out + count);
  return status;
}
"""
#: A device that takes 255 heads where the table allows 256.
_WRONG_LIMIT = "sed -i 's/heads\t1\t256/heads\t1\t255/' $ASCEND_EMULATOR_ROOT/limits; "


def inject_order(libraries: Path, directory: Path) -> None:
    """Put the wrong library into ``directory``."""
    source, behind = directory / "injected.cpp", directory / "behind-libhccl.so"
    source.write_text(_WRONG_ORDER)
    compile = ["g++", "-std=c++20", "-shared", "-fPIC", "-Wl,--no-as-needed"]
    # Needed by its path: its own name is the one that this library has.
    subprocess.run([*compile, "-x", "c++", os.devnull, "-o", behind], check=True)
    define = f'-DBEHIND="{behind}"'
    subprocess.run([*compile, define, source, behind, "-o", directory / "libhccl.so"], check=True)
    behind.unlink()
    behind.symlink_to(libraries / "libhccl.so")


def warm_with(libraries: str) -> str:
    """A warm Python that has these libraries; nine processes import torch_npu here."""
    directory = Path(tempfile.mkdtemp(prefix="warm-python-"))
    warm_python.start_kind("npu", directory, os.getpid(), LD_LIBRARY_PATH=libraries)
    return str(directory / "python")


@pytest.mark.conformance
@pytest.mark.parametrize(
    ("lies", "steps", "failed", "says"),
    [
        (False, f"{STEPS},kernels", [], ["limits       passed"]),
        # The tolerances' own lies are in tests/kernels/injected_attention.py.
        (
            True,
            STEPS,
            ["parity-2", "limits"],
            ["train-here-2 passed", "number of query heads is 1 to 256; with 256"],
        ),
    ],
)
def test_a_machine_that_lies_is_found(
    emulate: Emulate,
    libraries: Path,
    tmp_path: Path,
    lies: bool,
    steps: str,
    failed: list[str],
    says: list[str],
) -> None:
    script, out = tmp_path / "some.py", tmp_path / "first.zip"
    script.write_text(_SOME)
    if lies:
        inject_order(libraries, tmp_path)
    path = f"{tmp_path}:{libraries}"
    python = warm_with(path) if lies else sys.executable
    command = (_WRONG_LIMIT if lies else "") + f"exec {python} {script} {steps} {out}"
    ended = emulate("env", f"LD_LIBRARY_PATH={path}", "sh", "-c", command, devices=2, timeout=400)
    assert out.is_file(), ended.output[-3000:]
    with zipfile.ZipFile(out) as archive:
        report = json.loads(archive.read("report.json"))
        text = archive.read("accel-bridge-first-run.txt").decode()
    assert [one["name"] for one in report["steps"] if one["verdict"] != "passed"] == failed, report
    assert ended.returncode == (1 if failed else 0)
    for words in says:
        assert words in text
    assert "EMULATED" in text
    assert ("contradicts the table" in text) == lies
