"""`accel-bridge parity dumps`: dumps in msprobe's format, with planted errors."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accel_bridge import recording
from accel_bridge.apps import dumps
from accel_bridge.apps.cli.main import main

from .made import recording as made

OPERATORS = ("Functional.layer_norm", "Functional.linear", "NPU.npu_swiglu", "Functional.linear")


def tensor(scale: float, dtype: str = "float32") -> dict[str, Any]:
    return {
        "type": "torch.Tensor",
        "dtype": f"torch.{dtype}",
        "shape": [4, 8],
        "Max": 2.0 * scale,
        "Min": -1.5 * scale,
        "Mean": 0.01 * scale,
        "Norm": 5.0 * scale,
        "requires_grad": True,
    }


def written(folder: Path, change: Callable[[dict[str, Any]], None] = lambda data: None) -> Path:
    """A dump of one layer: each operator in a module of its own, forward and backward."""
    data: dict[str, Any] = {}
    parents: dict[str, str | None] = {}
    calls: dict[str, int] = {}
    names = []
    for index, operator in enumerate(OPERATORS):
        number = calls[operator] = calls.get(operator, -1) + 1
        name, module = f"{operator}.{number}.forward", f"Module.layer.part{index}.Part.forward.0"
        data[name] = {
            "input_args": [tensor(1.0 + index), {"type": "int", "value": 1}],
            "input_kwargs": {},
            "output": [tensor(2.0 + index)],
        }
        data[module] = {"input_args": [tensor(1.0 + index)], "output": [tensor(2.0 + index)]}
        parents[name], parents[module] = module, "Module.layer.Layer.forward.0"
        names.append(name)
    for name in reversed(names):
        back = name.replace("forward", "backward")
        data[back] = {"input": [tensor(0.5)], "output": [tensor(0.7)]}
    change(data)
    rank = folder / "step0" / "rank0"
    rank.mkdir(parents=True)
    head = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None}
    (rank / "dump.json").write_text(json.dumps({**head, "data": data}))
    (rank / "construct.json").write_text(json.dumps(parents))
    stack = [
        "File /site-packages/torch/nn/modules/module.py, line 1, in inner, \n x()",
        "File model.py, line 7, in forward, \n y = swiglu(x)",
    ]
    (rank / "stack.json").write_text(json.dumps({"0": [names, stack]}))
    return rank


def scaled(*names: str, factor: float, inputs: bool = False) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        for name in names:
            for one in (*data[name]["output"], *(data[name]["input_args"] if inputs else ())):
                for key in ("Max", "Min", "Mean", "Norm"):
                    if key in one:
                        one[key] *= factor

    return change


def test_equal_dumps_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = (
        written(tmp_path / "a"),
        written(tmp_path / "b", scaled("NPU.npu_swiglu.0.forward", factor=1.00001)),
    )
    assert main(["parity", "dumps", str(a), str(b)]) == 0
    assert "PASS: every call agrees" in capsys.readouterr().out


def test_a_planted_operator_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not the module alone, and not what follows from it."""

    def change(data: dict[str, Any]) -> None:
        scaled("NPU.npu_swiglu.0.forward", factor=1.001)(data)
        scaled("Functional.linear.1.forward", factor=1.001, inputs=True)(data)
        scaled("Functional.linear.1.backward", factor=1.01)
        scaled("Module.layer.part2.Part.forward.0", factor=1.001)(data)

    a, b = written(tmp_path / "a"), written(tmp_path / "b", change)
    assert main(["parity", "dumps", str(a), str(b)]) == 1
    said = capsys.readouterr().out
    assert "first operator that departs: NPU.npu_swiglu.0.forward" in said
    assert "in Module.layer.part2.Part.forward.0" in said
    assert "the difference is made here" in said
    assert "File model.py, line 7" in said
    assert "site-packages/torch" not in said
    found = dumps.compare(dumps.read(a), dumps.read(b))
    assert len(found.departures) == 3


def test_an_operator_of_one_run_alone_is_blamed(tmp_path: Path) -> None:
    def change(data: dict[str, Any]) -> None:
        rest = {name: data.pop(name) for name in list(data)[4:]}
        data["Tensor.__mul__.0.forward"] = {"input_args": [tensor(3)], "output": [tensor(3.1)]}
        data.update(rest)
        scaled("NPU.npu_swiglu.0.forward", factor=1.03, inputs=True)(data)

    found = dumps.compare(
        dumps.read(written(tmp_path / "a")), dumps.read(written(tmp_path / "b", change))
    )
    assert found.first is not None
    assert found.first.name == "NPU.npu_swiglu.0.forward"
    assert not found.first.own
    assert found.first.only == ("Tensor.__mul__.0.forward (B)",)
    assert "Tensor.__mul__.0.forward (B)" in dumps.as_text(found)


def test_half_precision_has_its_own_rule(tmp_path: Path) -> None:
    def half(factor: float) -> Callable[[dict[str, Any]], None]:
        def change(data: dict[str, Any]) -> None:
            data["Functional.linear.0.forward"]["output"] = [tensor(2.0 * factor, "bfloat16")]

        return change

    a = dumps.read(written(tmp_path / "a", half(1)))
    assert dumps.compare(a, dumps.read(written(tmp_path / "b", half(1.01)))).passed
    assert not dumps.compare(a, dumps.read(written(tmp_path / "c", half(1.1)))).passed


def test_not_a_number_departs(tmp_path: Path) -> None:
    b = written(tmp_path / "b", scaled("Functional.layer_norm.0.forward", factor=math.nan))
    found = dumps.compare(dumps.read(written(tmp_path / "a")), dumps.read(b))
    assert found.first is not None
    assert found.first.distance == math.inf


def of_recording(one: recording.Recording, factor: float, at: int = 1) -> dict[str, Any]:
    """The modules' calls that msprobe would have dumped in the recording's first step."""
    outputs = [o for o in one.observations if o.step == 1 and o.kind == "output"]
    data = {}
    for index, seen in enumerate(outputs):
        moments = seen.first or seen.moments
        scale = factor if index == at else 1.0
        largest = moments.largest * scale
        data[f"Module.0.module.{seen.name}.Part.forward.0"] = {
            "input_args": [],
            "output": [
                {
                    **tensor(1),
                    "shape": [moments.count],
                    "Max": largest,
                    "Min": -largest / 2,
                    "Mean": moments.mean * scale,
                    "Norm": moments.rms * math.sqrt(moments.count) * scale,
                }
            ],
        }
    return data


def test_a_recording_beside_a_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = made()
    recording.write(one, tmp_path / "a.rec")
    for factor, status in ((1.0, 0), (1.01, 1)):

        def change(data: dict[str, Any], factor: float = factor) -> None:
            data.clear()
            data.update(of_recording(one, factor))

        dump = written(tmp_path / str(factor), change)
        assert main(["parity", "dumps", str(tmp_path / "a.rec"), str(dump)]) == status
    said = capsys.readouterr().out
    names = [o.name for o in one.observations if o.step == 1 and o.kind == "output"]
    assert f"first operator that departs: Module.0.module.{names[1]}.Part.forward.0" in said


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda folder: folder / "absent", "holds no dump"),
        (lambda folder: _file(folder, "{"), "cannot be read"),
        (lambda folder: _file(folder, "[]"), "its JSON is a list"),
        (lambda folder: _file(folder, '{"task": "statistics"}'), 'it has no object "data"'),
        (lambda folder: _file(folder, '{"task": "md5", "data": {"x": {}}}'), "holds no statistics"),
        (lambda folder: _two(folder), "holds 2 dumps"),
    ],
)
def test_what_is_no_dump_is_refused(
    tmp_path: Path, make: Callable[[Path], Path], says: str
) -> None:
    a = written(tmp_path / "a")
    with pytest.raises(dumps.DumpError) as refused:
        dumps.compare(dumps.read(a), dumps.read(make(tmp_path / "b")))
    error = refused.value
    assert says in f"{error.what} {error.evidence}"
    assert error.evidence
    assert error.next
    assert error.exit_code == 2


def _file(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "dump.json").write_text(text)
    return folder


def _two(folder: Path) -> Path:
    written(folder / "one")
    written(folder / "two")
    return folder


def test_other_steps_are_refused(tmp_path: Path) -> None:
    a, b = written(tmp_path / "a"), written(tmp_path / "b")
    later = b.parent.rename(b.parent.with_name("step3")) / "rank0"
    with pytest.raises(dumps.DumpError, match="different steps"):
        dumps.compare(dumps.read(a), dumps.read(later))
    one = made()
    with pytest.raises(dumps.DumpError, match="no measurements of step 4"):
        dumps.compare_recording(one, "a.rec", dumps.read(later), None)
