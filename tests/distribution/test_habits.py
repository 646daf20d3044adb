"""What runs on its own (workflows, nox, pre-commit, towncrier) names things that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from distribution.support import ROOT, pyproject

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def workflow(name: str) -> dict[str, Any]:
    """A workflow's document."""
    path = ROOT / ".github/workflows" / name
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def commands(document: dict[str, Any]) -> Iterator[str]:
    """Every line that a workflow runs."""
    for job in document["jobs"].values():
        runs = job.get("strategy", {}).get("matrix", {}).get("run", [])
        for step in job["steps"]:
            for line in step.get("run", "").splitlines():
                words = runs if "${{ matrix.run }}" in line else [""]
                yield from (line.replace("${{ matrix.run }}", word) for word in words)


def nox_constant(name: str) -> Any:
    """A literal of noxfile.py (nox itself is not installed with the tests)."""
    tree = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    (value,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name
    )
    return ast.literal_eval(value)


def pythons() -> list[str]:
    """The Pythons that the classifiers name; noxfile.py reads the same."""
    found = (re.fullmatch(r".* (3\.\d+)", text) for text in pyproject()["project"]["classifiers"])
    return [match[1] for match in found if match]


def problem(command: str) -> str | None:
    """What is wrong with a command of a workflow."""
    words = command.split()
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return None if words[1] in targets else f"no make target {words[1]}"
    if words[0] == "nox":
        sessions = re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.M)
        return None if re.split(r"[-(]", words[2].strip('"'))[0] in sessions else f"no {words[2]}"
    return None if words[0] in ("pip", "accel-bridge") else f"unknown program {words[0]}"


def test_there_are_the_four_workflows() -> None:
    names = ["check.yml", "drift.yml", "full.yml", "megatron.yml"]
    assert [path.name for path in WORKFLOWS] == names


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_what_exists(path: Path) -> None:
    lines = list(commands(workflow(path.name)))
    assert lines
    assert [found for line in lines if (found := problem(line))] == []


@pytest.mark.parametrize("command", ["make love", "nox -s flight-3.10", "curl x"])
def test_a_command_that_does_not_exist_is_noticed(command: str) -> None:
    assert problem(command) is not None


def test_the_drift_is_judged_against_a_release_and_the_main_branch() -> None:
    judged = [line for line in commands(workflow("drift.yml")) if " --against " in line]
    assert [line.split()[-1] for line in judged] == ["wheel/*.whl", "megatron-main"]


def test_the_workflows_cover_what_is_claimed() -> None:
    layer = workflow("check.yml")["jobs"]["layer"]["strategy"]["matrix"]
    torch = workflow("full.yml")["jobs"]["torch"]["strategy"]["matrix"]
    assert layer["python"] == pythons()
    assert torch["torch"] == list(nox_constant("TORCHS"))


def test_the_oldest_versions_are_the_tested_ones() -> None:
    project = pyproject()["project"]
    assert project["requires-python"] == f">={pythons()[0]}"
    (torch,) = (
        requirement
        for requirement in map(Requirement, project["optional-dependencies"]["megatron"])
        if requirement.name == "torch"
    )
    oldest = nox_constant("TORCHS")[0]
    assert oldest in torch.specifier
    assert f"{torch.specifier}.0" == f">={oldest}"


def test_the_tests_that_nox_runs_exist() -> None:
    for name in (*nox_constant("LAYER"), *nox_constant("NEED_TORCH")):
        file, _, function = name.partition("::")
        assert (ROOT / file).exists(), name
        assert not function or f"def {function}(" in (ROOT / file).read_text(), name


def test_hooks_run_programs_of_the_environment() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert [repo["repo"] for repo in config["repos"]] == ["local"], "constraints.txt has versions"
    for hook in config["repos"][0]["hooks"]:
        if hook["language"] == "system":
            words = hook["entry"].split()
            assert words[0] in (".venv/bin/python", "git")
            assert all((ROOT / word).exists() for word in words if word.endswith(".py"))


@pytest.mark.parametrize(
    ("message", "good"),
    [
        ("Subject\n\nThe reason.\n", True),
        ("Subject\n\n# comment\nThe reason.\n", True),
        ("Merge branch 'x'\n", True),
        ("Subject\n", False),
        ("Subject\nno empty line\n", False),
        ("Subject\n\n# only a comment\n", False),
    ],
)
def test_a_commit_message_has_a_body(message: str, good: bool) -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    (hook,) = (hook for hook in config["repos"][0]["hooks"] if hook["language"] == "pygrep")
    assert "--negate" in hook["args"]
    # pre-commit's pygrep with --multiline compiles with these flags (and DOTALL).
    found = re.search(hook["entry"].encode(), message.encode(), re.MULTILINE | re.DOTALL)
    assert bool(found) is good


def fragment_problem(name: str, text: str) -> str | None:
    """What is wrong with a fragment of the changelog."""
    kinds = "|".join(kind["directory"] for kind in pyproject()["tool"]["towncrier"]["type"])
    if not re.fullmatch(rf"\+[a-z0-9-]+\.(?:{kinds})\.md", name):
        return f"{name}: not +NAME.TYPE.md, with TYPE one of {kinds}"
    if not text.strip() or text.startswith(("-", "#")):
        return f"{name}: no plain sentence (towncrier makes the list)"
    return None


def test_every_fragment_is_of_a_known_type() -> None:
    # There are none just after a release.
    fragments = [path for path in (ROOT / "changelog.d").iterdir() if path.name != "README.md"]
    problems = [fragment_problem(path.name, path.read_text(encoding="utf-8")) for path in fragments]
    assert [problem for problem in problems if problem] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [("+x.new.md", "Text."), ("x.added.md", "Text."), ("+x.added.md", ""), ("+x.fixed.md", "- x")],
)
def test_a_bad_fragment_is_noticed(name: str, text: str) -> None:
    assert fragment_problem(name, text) is not None
