"""Runs what pyproject.toml claims: ``nox -l`` lists the sessions, ``nox -s layer`` runs some.

Each session makes an environment of its own below .nox; one with PyTorch takes 6 GB.
"""

from __future__ import annotations

import re
from pathlib import Path

import nox

PROJECT = nox.project.load_toml("pyproject.toml")

#: The Pythons that the classifiers name.
PYTHONS = nox.project.python_versions(PROJECT)

#: The oldest PyTorch that the extra `megatron` allows, that of constraints.txt, and the newest.
TORCHS = ("2.6.0", "2.14.0", "2.15.0")

TEST_TOOLS = (
    "expecttest",
    "hypothesis",
    "psutil",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "setuptools>=77",
)

#: Tests of the layer, and those among them that need PyTorch or Megatron.
LAYER = (
    "tests/patching",
    "tests/plugins",
    "tests/cli",
    "tests/distribution/test_without_torch.py",
    "tests/test_architecture.py",
    "tests/test_journal.py",
)
NEED_TORCH = (
    "tests/cli/test_demo.py",
    "tests/cli/test_env.py::test_a_broken_torch_is_shown_not_met",
    "tests/cli/test_launch.py::test_a_rank_that_was_killed_is_the_cause",
    "tests/cli/test_launch.py::test_a_stopped_rank_is_named_and_does_not_hold_the_end_up",
    "tests/cli/test_launch.py::test_restarted_ranks_meet_again",
    "tests/cli/test_patches_command.py::test_a_scripts_patches",
    "tests/cli/test_plot.py::test_a_tensorboard_directory",
    "tests/cli/test_plot.py::test_tensorboard_directories_that_are_no_run",
    "tests/cli/test_pretrain_script.py::test_the_installed_one_is_found",
    "tests/cli/test_run.py",
    "tests/patching/test_compile.py",
    "tests/plugins/test_activation.py::test_a_named_plugin_whose_hook_raises_stops",
    "tests/plugins/test_activation.py::test_a_plugin_that_activates_is_that_plugins_failure",
    "tests/plugins/test_activation.py::test_threads_get_one_bridge",
    "tests/plugins/test_adaptors.py::test_the_first_lines_of_scripts_for_ascend",
    "tests/plugins/test_ascend_probe.py::test_the_device_is_torch_npu_with_hccl",
    "tests/plugins/test_broken_torch_npu.py",
    "tests/plugins/test_example_backend.py::test_its_device_and_kernel_work",
    "tests/test_architecture.py::test_the_public_plugin_module_has_the_kernels_too",
)

#: Pins of constraints.txt that PyTorch decides.
DECIDED_BY_TORCH = re.compile(r"(torch|triton|sympy|nvidia-.*|cuda-.*)==")


@nox.session(python=PYTHONS)
def layer(session: nox.Session) -> None:
    """The layer without PyTorch: plugins, selection, patch engine, commands that look."""
    session.install("-e", ".[report]", *TEST_TOOLS)
    left_out = (f"--{'deselect' if '::' in name else 'ignore'}={name}" for name in NEED_TORCH)
    session.run("pytest", *LAYER, *left_out, *session.posargs)


#: What a release of PyTorch has broken before.
AFTER_TORCH = (
    "tests/cuda/test_triton.py",
    "tests/device",
    "tests/distribution/test_import_time.py",
    "tests/end_to_end/test_checkpoints.py",
    "tests/kernels",
)


@nox.session(python="3.12", venv_backend="uv|virtualenv")
@nox.parametrize("torch", TORCHS)
def torch(session: nox.Session, torch: str) -> None:
    """Device, kernels and checkpoints with another PyTorch; all else as in constraints.txt."""
    pins = Path("constraints.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    others = Path(session.create_tmp()) / "constraints.txt"
    others.write_text("".join(pin for pin in pins if not DECIDED_BY_TORCH.match(pin)))
    session.install("-c", str(others), f"torch=={torch}", "-e", ".[megatron]", *TEST_TOOLS)
    session.run("pytest", *AFTER_TORCH, *session.posargs)
