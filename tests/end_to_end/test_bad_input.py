"""What users get wrong, and the three-part error that each gets."""

from __future__ import annotations

import sys
from pathlib import Path

import warm_python

from accel_bridge.apps.testing import MODEL
from end_to_end.launcher import ROOT, SCHEDULE, SCRIPT, Run, launch, start, train

TESTS = str(ROOT / "tests")


def assert_three_parts(run: Run, what: str, *evidence: str) -> None:
    """The run failed with an error that says what happened, the evidence and the next command."""
    assert run.returncode != 0
    assert what in run.output, run.output[-3000:]
    assert "evidence:" in run.output
    assert "next:" in run.output
    for part in evidence:
        assert part in run.output


def run_code(code: str, tmp_path: Path, env: dict[str, str] | None = None) -> Run:
    """Run a few lines as a user's script, the bridge's import included."""
    script = tmp_path / "script.py"
    script.write_text(code)
    return launch([warm_python.interpreter(), str(script)], env=env, cwd=tmp_path)


def fake_megatron(directory: Path, version: tuple[int, int, int]) -> dict[str, str]:
    """A checkout of another version on the path; only its version matters."""
    core = directory / "megatron" / "core"
    core.mkdir(parents=True)
    major, minor, patch = version
    (core / "package_info.py").write_text(
        f"MAJOR = {major}\nMINOR = {minor}\nPATCH = {patch}\nPRE_RELEASE = ''\n"
    )
    (core / "__init__.py").write_text("")
    (directory / "megatron" / "__init__.py").write_text("")
    return {"PYTHONPATH": str(directory)}


def test_a_newer_megatron_is_a_warning(tmp_path: Path) -> None:
    env = fake_megatron(tmp_path / "checkout", (1, 0, 0))
    run = run_code("import accel_bridge.auto", tmp_path, env).succeeded()
    assert "warning: megatron-core 1.0.0 is newer than any that was looked at" in run.output


def test_megatron_missing(tmp_path: Path) -> None:
    hide = "import sys; sys.modules['megatron'] = None\n"
    main = "from accel_bridge.apps.cli.main import main; raise SystemExit(main(['pretrain', '--']))"
    run = run_code(hide + main, tmp_path)
    assert_three_parts(run, "Megatron is not installed", "no module megatron")


def test_megatron_imported_first(tmp_path: Path) -> None:
    run = run_code("import megatron.core.jit\nimport accel_bridge.auto", tmp_path)
    assert_three_parts(run, "megatron was imported before accel_bridge", "megatron.core.")


def test_a_patch_whose_target_is_gone_warns_by_default(tmp_path: Path) -> None:
    code = "import accel_bridge.auto, megatron.core.jit\nprint('went on')"
    env = {"ACCEL_BRIDGE_PLUGINS": "end_to_end.wrong_patches", "PYTHONPATH": TESTS}
    run = run_code(code, tmp_path, env)
    assert run.returncode == 0, run.output[-3000:]
    assert "went on" in run.output
    assert "warning: patch 'target-gone' failed" in run.output
    assert "warning: patch 'signature-changed' failed" in run.output
    assert "without it: the example" in run.output


def test_a_patch_whose_target_is_gone_stops_in_strict_mode(tmp_path: Path) -> None:
    code = "import accel_bridge.auto, megatron.core.jit\nprint('went on')"
    env = {"ACCEL_BRIDGE_PLUGINS": "end_to_end.wrong_patches", "PYTHONPATH": TESTS}
    run = run_code(code, tmp_path, env | {"ACCEL_BRIDGE_STRICT": "1"})
    assert "went on" not in run.output
    assert_three_parts(run, "target-gone")


def test_missing_data() -> None:
    run = _without_mock_data("--data-path", "nowhere/at_all")
    assert_three_parts(run, "The training data nowhere/at_all is not there", "at_all.idx")


def test_no_data_at_all() -> None:
    assert_three_parts(_without_mock_data(), "There is no training data")


def test_token_ids_outside_the_vocabulary(tmp_path: Path) -> None:
    """Upstream trains on silently with two tensor-parallel ranks."""
    prefix = _data_set(tmp_path)
    path = Path(f"{prefix}.bin")
    path.write_bytes(b"\xff\x7f" * (path.stat().st_size // 2))
    words = ["--data-path", prefix, "--split", "1,0,0"]
    words += ["--tensor-model-parallel-size", "2"]
    run = _without_mock_data(*words, processes=2)
    assert_three_parts(run, "outside the model's vocabulary", "id 32767")
    assert "iteration        1/" not in run.output


def test_missing_checkpoint(tmp_path: Path) -> None:
    run = train("--load", str(tmp_path), "--exit-on-missing-checkpoint")
    assert_three_parts(run, "The checkpoint is not there", "latest_checkpointed_iteration.txt")


def _without_mock_data(*arguments: str, processes: int = 1) -> Run:
    """Train on the data that the arguments name."""
    model = [word for word in MODEL if word != "--mock-data"]
    words = [*model, *SCHEDULE, "--train-iters", "2", "--eval-interval", "1", *arguments]
    return start(processes, SCRIPT, words)


def _data_set(directory: Path) -> str:
    """A data set of three documents; its prefix."""
    text = directory / "text.jsonl"
    text.write_text('{"text": "1 2 3 4 5 6 7 8"}\n' * 3)
    command = [sys.executable, "-m", "accel_bridge", "preprocess", "--input", str(text)]
    tokenizer = ["--tokenizer-type", "NullTokenizer", "--vocab-size", "255"]
    prefix = directory / "data"
    launch([*command, "--output-prefix", str(prefix), *tokenizer]).succeeded()
    return f"{prefix}_text_document"


def test_ids_that_are_on_a_device_already_are_not_read(tmp_path: Path) -> None:
    """A graph of a whole iteration captures the reading of a batch; waiting would break it."""
    code = """
import types
import accel_bridge.auto, torch
from accel_bridge.pretrain import gpt_data
gpt_data.get_args = lambda: types.SimpleNamespace(padded_vocab_size=4)
gpt_data.check_batch({"tokens": torch.empty(1, 2, dtype=torch.int64, device="meta")})
try:
    gpt_data.check_batch({"tokens": torch.tensor([[1, 9]])})
except accel_bridge.BridgeError:
    print("refused")
"""
    run = run_code(code, tmp_path)
    assert "refused\n" in run.output, run.output
