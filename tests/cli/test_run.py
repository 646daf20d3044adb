"""`accel-bridge run COMMAND`: what the command inherits, and how it starts and ends."""

from __future__ import annotations

import importlib.metadata
import os
import resource
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from accel_bridge.libraries import LIBRARIES
from accel_bridge.process.bootstrap import accel_bridge_hook
from accel_bridge.process.child import BOOTSTRAP, environment

RUN = ("-m", "accel_bridge", "run")

#: The bridge in a process, in a fork of it, in what it spawns and in a program that it starts.
DEEP = """
import multiprocessing, subprocess, sys

def tell(where):
    import torch
    import transformer_engine
    print(where, torch.ones(1, device="cuda").device, transformer_engine.__version__, flush=True)

if __name__ == "__main__":
    tell("itself")
    if sys.argv[1:] != ["again"]:
        for kind in ("fork", "spawn"):
            child = multiprocessing.get_context(kind).Process(target=tell, args=(kind,))
            child.start()
            child.join()
        subprocess.run([sys.executable, __file__, "again"], check=True)
        import torch.distributed
        torch.distributed.init_process_group("nccl")
        print("ranks", torch.distributed.get_world_size(), flush=True)
        torch.distributed.destroy_process_group()
"""

#: Maps a file with the name of PyTorch's library, as `import torch` would, for a moment.
LIKE_TORCH = """
import mmap, sys, time
with open(sys.argv[1] + "/libtorch_cpu.so", "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    time.sleep(2.5)
"""


def run(
    *command: str | Path,
    cwd: Path | None = None,
    stdin: str = "",
    python: str = sys.executable,
    **environ: str,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, *RUN, *map(str, command)],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environ},
        check=False,
    )


@pytest.mark.slow
def test_every_python_below_a_shell_script_has_the_bridge(tmp_path: Path) -> None:
    (tmp_path / "deep.py").write_text(DEEP)
    (tmp_path / "train.sh").write_text(f"cd /\n{sys.executable} {tmp_path}/deep.py\nexit 7\n")
    done = run("--", "bash", "train.sh", cwd=tmp_path, ACCEL_BRIDGE_BACKEND="cpu")
    assert done.returncode == 7, done.stderr
    version = importlib.metadata.version("transformer_engine")
    places = ("itself", "fork", "spawn", "itself")
    shown = [f"{place} cpu {version}" for place in places]
    assert done.stdout.splitlines() == [*shown, "ranks 1"]
    assert "it is rank 0 of 1" in done.stderr
    assert done.stderr.count("backend cpu") == 1, done.stderr
    assert "without the bridge" not in done.stderr


def test_a_python_without_torch_imports_the_hook_and_nothing_else() -> None:
    code = "import sys; print(*sorted(name for name in sys.modules if 'accel' in name))"
    done = run(sys.executable, "-c", code)
    ours = {name for name in done.stdout.split() if not name.startswith("__editable__")}
    assert ours == {"accel_bridge_hook", "accel_bridge_start"}
    assert "the bridge was not needed" in done.stderr


@pytest.mark.slow
def test_a_python_without_torch_pays_less_than_ten_milliseconds() -> None:
    def milliseconds(environ: dict[str, str]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", "pass"], env=environ, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return 1000 * (sum(after[:2]) - sum(before[:2]))  # os.times counts in steps of ten

    plain = dict(os.environ)
    for armed in (environment(plain), {**plain, "ACCEL_BRIDGE_AUTO": "1"}):
        costs = [milliseconds(armed) - milliseconds(plain) for _ in range(15)]
        assert sorted(costs)[7] < 10, costs


def test_the_hook_waits_for_every_library_that_has_a_shim() -> None:
    roots = {root for library in LIBRARIES.values() for root in library.roots}
    assert roots < accel_bridge_hook.NAMES


def test_the_sitecustomize_that_was_there_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print(__name__, __file__)")
    done = run(sys.executable, "-c", "print('code')", PYTHONPATH=str(tmp_path))
    # The first is that of `accel-bridge run` itself.
    assert done.stdout == f"sitecustomize {tmp_path}/sitecustomize.py\n" * 2 + "code\n"


@pytest.mark.parametrize(
    ("words", "reached"),
    [
        ([sys.executable, "-I"], True),
        ([sys.executable, "-sE"], True),
        (["env", "-u", "PYTHONPATH", sys.executable], True),
        ([sys.executable, "-S"], False),
        (["env", "-i", sys.executable], False),
    ],
)
def test_an_installed_bridge_reaches_a_python_that_ignores_the_path(
    words: list[str], reached: bool
) -> None:
    done = run("--", *words, "-c", "import sys; print('accel_bridge_hook' in sys.modules)")
    assert done.stdout == f"{reached}\n", done.stderr


def test_an_empty_entry_of_pythonpath_stays_the_working_directory() -> None:
    found = environment({"PYTHONPATH": ":/x"})["PYTHONPATH"]
    assert found == f"{BOOTSTRAP}::/x"
    assert environment({"PYTHONPATH": found})["PYTHONPATH"] == found
    assert environment({"PYTHONPATH": ""})["PYTHONPATH"] == str(BOOTSTRAP)


def test_a_torch_that_is_broken_is_left_to_who_imports_it(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so is missing')")
    code = "try:\n    import torch\nexcept ImportError as error:\n    print('caught', error)"
    done = run(sys.executable, "-c", code, PYTHONPATH=str(tmp_path))
    assert done.stdout == "caught libcudart.so is missing\n"
    assert "the bridge is not active" in done.stderr


def test_a_look_at_torch_is_no_import() -> None:
    code = (
        "import importlib.util, sys; print(importlib.util.find_spec('torch') is not None); "
        "print('torch' in sys.modules, 'accel_bridge' in sys.modules)"
    )
    assert run(sys.executable, "-c", code).stdout == "True\nFalse False\n"


def test_an_error_of_the_bridge_cannot_be_passed_by() -> None:
    code = """
for attempt in range(2):
    try:
        import torch
    except Exception as error:
        print(type(error).__name__)
"""
    done = run(sys.executable, "-c", code, ACCEL_BRIDGE_BACKEND="cuda")
    assert done.stdout == "SelectionError\nSelectionError\n", done.stderr


def test_an_interpreter_without_accel_bridge_says_so(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("print('torch')")
    code = "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]\n"
    code += (
        "sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in str(f)]\nimport torch"
    )
    done = run(sys.executable, "-c", code, cwd=tmp_path)
    assert done.stdout == "torch\n"
    assert f"{sys.executable} imports torch without the bridge" in done.stderr
    assert "the bridge was not needed" not in done.stderr


def test_processes_that_the_hook_cannot_reach_get_a_line(tmp_path: Path) -> None:
    (tmp_path / "libtorch_cpu.so").write_bytes(b"x" * 4096)
    (tmp_path / "like_torch.py").write_text(LIKE_TORCH)
    program = f"{tmp_path}/like_torch.py {tmp_path}"
    starts = (f"{sys.executable} -I", f"{sys.executable} -W ignore -sS")
    cleared = f"env -u PYTHONPATH {sys.executable}"
    line = " & ".join(f"{start} {program}" for start in (*starts, cleared))
    done = run("--", "bash", "-c", f"{line} & wait")
    assert done.stderr.count("uses PyTorch without the bridge") == 3, done.stderr
    for why in (
        "it was started with -I, which ignores PYTHONPATH",
        "it was started with -S, which leaves out sitecustomize",
        "what started it had cleared PYTHONPATH",
    ):
        assert why in done.stderr


def test_the_command_takes_this_place(tmp_path: Path) -> None:
    """Process id, standard input, the signals that it ignores, and its end."""
    script = "echo $$; cat; grep SigIgn /proc/self/status; kill -TERM $$"
    child = subprocess.Popen(
        [sys.executable, *RUN, "sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    # By its path, as the child's Python: what Python spawns so ignores two signals of libc's more.
    grep = shutil.which("grep") or "grep"
    plain = subprocess.check_output([grep, "SigIgn", "/proc/self/status"], text=True)
    out, _ = child.communicate("typed\n", timeout=60)
    assert out == f"{child.pid}\ntyped\n{plain}"
    assert child.returncode == -signal.SIGTERM


@pytest.mark.slow
def test_a_script_of_this_python_runs_in_this_process(tmp_path: Path) -> None:
    script = "import os, accel_bridge; print(os.environ['RANK'], accel_bridge.current() is None)"
    (tmp_path / "script").write_text(script)
    assert run("--", "script", cwd=tmp_path).stdout == "0 False\n"


def test_a_zip_archive_is_a_script(tmp_path: Path, warm: str) -> None:
    with zipfile.ZipFile(tmp_path / "job.pyz", "w") as archive:
        archive.writestr("__main__.py", "import sys, helper; print(sys.argv[1:], helper.x)")
        archive.writestr("helper.py", "import accel_bridge as a; x = a.current() is None")
    done = run("job.pyz", "--lr", "1", cwd=tmp_path, python=warm)
    assert done.stdout == "['--lr', '1'] False\n"


def test_a_plugin_loader_cannot_pass_by_an_error_of_the_bridge() -> None:
    code = """
from importlib.metadata import entry_points
for entry in entry_points(group="verl.plugins"):
    try:
        entry.load()
    except Exception:
        pass
print("without the bridge")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "ACCEL_BRIDGE_BACKEND": "cuda"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("accel-bridge: error:") == 1, done.stderr


#: Words below `accel-bridge run`, its exit status, and what it says.
NOT_STARTED: list[tuple[list[str], int, list[str]]] = [
    (["nowhere"], 127, ["There is no command or script 'nowhere'", "looked in"]),
    (["--", "./nowhere"], 127, ["There is no command or script './nowhere'"]),
    (["nothing_here.py"], 2, ["there is no script 'nothing_here.py'"]),
    (["plain.sh", "--lr", "1"], 126, ["is not executable", "run -- bash plain.sh --lr 1"]),
    (["--", "tool.sh", "x"], 127, ["there is such a file here", "run -- ./tool.sh x"]),
    (["./no_shebang"], 126, ["cannot be started", "run -- bash ./no_shebang"]),
    (["./no_shell"], 126, ["the interpreter that the first line"]),
    (["."], 126, ["is a directory"]),
    (["--", "RANKS=2", "megatron", "sft"], 127, ["RANKS=2 accel-bridge run -- megatron sft"]),
    (["train", "8"], 127, ["'train' is a shell function", "bash -c 'train 8'"]),
    (
        ["--", "train.sh --name 'a b'"],
        127,
        ["leave the quotes out, or", "run -- bash -c 'train.sh"],
    ),
    (["--", "python train.py"], 127, ["leave the quotes out"]),
    (["--record", "--", "true"], 2, ["--record needs the name of a file"]),
    (["--record", "thesis.txt", "--", "true"], 2, ["a file that this command did not make"]),
]
FUNCTION = {"BASH_FUNC_train%%": '() {  echo "$1"\n}'}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A directory with scripts, of which one can be started."""
    for name, text, mode in (
        ("plain.sh", "echo x", 0o644),
        ("tool.sh", "#!/bin/sh\necho $1", 0o755),
        ("no_shebang", "echo x", 0o755),
        ("no_shell", "#!/no/such/shell\necho x", 0o755),
        ("thesis.txt", "years", 0o644),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    return tmp_path


@pytest.mark.parametrize(("words", "status", "texts"), NOT_STARTED)
def test_what_cannot_be_started(
    files: Path, words: list[str], status: int, texts: list[str]
) -> None:
    done = run(*words, cwd=files, **FUNCTION)
    assert done.returncode == status, done.stderr
    for text in ("accel-bridge: error:", "evidence:", "next:", *texts):
        assert text in done.stderr
    assert "was not needed" not in done.stderr


@pytest.mark.parametrize("words", ["bash plain.sh", "./tool.sh x"])
def test_what_can(files: Path, words: str) -> None:
    assert run("--", *words.split(), cwd=files).stdout == "x\n"


def test_nothing_at_all() -> None:
    assert [run().returncode, run("--").returncode] == [2, 2]


def test_the_advice_can_be_pasted() -> None:
    done = run("train", "a b", **FUNCTION)
    advice = done.stderr.split("next:")[1].strip().removeprefix("accel-bridge run -- ")
    code = 'train() { echo "$1"; }; export -f train; ' + advice
    assert subprocess.run(["bash", "-c", code], capture_output=True).stdout == b"a b\n"


def test_a_recording_that_never_came(tmp_path: Path) -> None:
    done = run(f"--record={tmp_path}/a.rec", "--", "true")
    assert done.returncode == 0
    assert "nothing was recorded" in done.stderr


@pytest.mark.parametrize("as_module", [False, True])
def test_a_syntax_error_of_the_script_is_pythons_own(tmp_path: Path, as_module: bool) -> None:
    (tmp_path / "wrong_script.py").write_text("x = 1\ndef f(:\n")
    words = ["-m", "wrong_script"] if as_module else [str(tmp_path / "wrong_script.py")]
    done = run(*words, cwd=tmp_path, ACCEL_BRIDGE_BACKEND="cpu")
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if not line.startswith("[accel_bridge]")]
    assert said == [
        f'  File "{tmp_path}/wrong_script.py", line 2',
        "    def f(:",
        "          ^",
        "SyntaxError: invalid syntax",
    ]


def test_a_syntax_error_of_what_it_imports_shows_where(tmp_path: Path, warm: str) -> None:
    (tmp_path / "wrong_part.py").write_text("def f(:\n")
    (tmp_path / "script.py").write_text("import wrong_part\n")
    done = run(tmp_path / "script.py", python=warm, ACCEL_BRIDGE_BACKEND="cpu")
    assert 'script.py", line 1' in done.stderr
    assert "SyntaxError" in done.stderr


@pytest.mark.parametrize("child", [False, True])
def test_a_directory_that_was_removed(tmp_path: Path, child: bool) -> None:
    (tmp_path / "script.py").write_text("import torch; torch.ones(2, 2) @ torch.ones(2, 2)")
    words = f"{tmp_path}/script.py"
    words = f"-- {sys.executable} {words}" if child else words
    gone = tmp_path / "gone"
    gone.mkdir()
    line = f"rmdir {gone}; exec {sys.executable} -m accel_bridge run {words}"
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=gone,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "ACCEL_BRIDGE_BACKEND": "cpu"},
    )
    assert done.returncode != 0
    assert "The current directory is not there any more." in done.stderr
    assert "FATAL" not in done.stderr
    assert "Traceback" not in done.stderr
