"""Capsules of plain torch modules: what is written comes back, and errors are named."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from accel_bridge import kernels
from accel_bridge.apps.capsules import Place, choose, first_bit
from accel_bridge.apps.capsules.replayed import as_json, diverge, judge, lines_of_two
from accel_bridge.apps.cli.main import main
from accel_bridge.apps.comparison import compare, distance, moved_by
from accel_bridge.errors import BridgeError
from accel_bridge.kernels import RMS_NORM, watch_kernels
from accel_bridge.recording import (
    Capsule,
    Operator,
    Plan,
    RecordingError,
    _wire,
    read_capsule,
    write_capsule,
)
from accel_bridge.recording.recorder import Recorder, Watched, capsule_of
from accel_bridge.recording.tape import Tape
from parity.made import Change, recording, rounding


class Layer(torch.nn.Module):
    """A norm that is a kernel contract, a GEMM, and what may be injected between them."""

    def __init__(self, extra: float = 1.0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gain = torch.nn.Parameter(torch.rand(16, dtype=dtype) + 0.5)
        self.weight = torch.nn.Parameter(torch.randn(16, 16, dtype=dtype))
        self.extra = extra

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        norm = RMS_NORM.kernel(kernels.CONTRACTS["rms_norm"].reference, "a test")
        hidden = norm(x, self.gain, eps=1e-6)
        if self.extra != 1.0:
            hidden = hidden * self.extra
        return torch.softmax(hidden @ self.weight, -1)


class Model(torch.nn.Module):
    """A layer between two operators that are not its own."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x * 2.0).square()  # type: ignore[no-any-return]


def capsule(layer: Layer, name: str = "layer", room: int = 1 << 20) -> Capsule:
    """One step of a model with that layer."""
    torch.manual_seed(1)
    dtype = layer.weight.dtype
    x = torch.randn(4, 16, dtype=dtype, requires_grad=True)
    tape, model = Tape(name, room), Model(layer)
    watch_kernels(tape.contract)
    tape.start([("", model), ("layer", layer)])
    try:
        model(x).sum().backward()
    finally:
        tape.stop()
        watch_kernels(None)
    values, ranks = capsule_of([tape.tape])
    about = {"device name": "a CPU", "torch": torch.__version__}
    return Capsule("layer", 1, str(dtype).removeprefix("torch."), {}, about, values, ranks)


def test_it_holds_the_operators_of_the_module_alone(tmp_path: Path) -> None:
    made = capsule(Layer())
    write_capsule(made, tmp_path / "a.capsule")
    found = read_capsule(tmp_path / "a.capsule")
    assert found == made
    names = [one.name for one in found.ranks[0]]
    assert names[:2] == ["rms_norm", "aten.mm.default"]
    assert "aten.mul.Tensor" not in names[: names.index("aten._softmax.default")]
    assert "aten._softmax_backward_data.default" in names
    assert "rms_norm.backward" in names
    assert all("test_capsule.py" in one.site for one in found.ranks[0])
    assert not any("square" in name or "pow" in name for name in names)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_right_run_passes(dtype: torch.dtype) -> None:
    made = capsule(Layer(dtype=dtype))
    found = judge(made)
    assert (found.findings, found.skipped) == ((), {})
    assert found.judged == len(made.ranks[0])
    assert diverge(made, capsule(Layer(dtype=dtype))) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_wrong_kernel_is_named_without_another_capsule(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    def wrong(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
        return RMS_NORM.reference(x, weight, eps=eps) * 1.01

    layer = Layer(dtype=dtype)
    monkeypatch.setattr(
        Layer, "forward", lambda self, x: RMS_NORM.kernel(wrong, "")(x, self.gain, eps=1e-6)
    )
    (found, *_) = judge(capsule(layer)).findings
    assert (found.operator.name, found.operator.phase) == ("rms_norm", "forward")
    assert "test_capsule.py" in found.operator.kernel
    assert found.error == pytest.approx(0.01, rel=0.2)


def test_a_wrong_backward_pass_of_a_kernel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
        found = RMS_NORM.reference(x, weight, eps=eps)
        return found + (x - x.detach()) * 0.1

    monkeypatch.setattr(
        Layer, "forward", lambda self, x: RMS_NORM.kernel(wrong, "")(x, self.gain, eps=1e-6)
    )
    (found, *_) = judge(capsule(Layer())).findings
    assert (found.operator.name, found.operator.phase) == ("rms_norm.backward", "backward")


@pytest.mark.parametrize("extra", [1.01, 1.0001])
def test_an_operator_that_one_run_alone_has_is_named(extra: float) -> None:
    found = diverge(capsule(Layer()), capsule(Layer(extra)))
    assert (found.b.name, found.why) == ("aten.mul.Tensor", "only B runs it")
    assert as_json(capsule(Layer()), found)["operator"] == "aten.mul.Tensor"


def test_what_one_run_alone_does_in_place_is_named() -> None:
    """Nothing reads the state again within the module, so that no later operator departs."""

    class Counted(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.ones(16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.state.mul_(1.01)  # type: ignore[operator,union-attr]
            return super().forward(x)

    one, other = capsule(Layer()), capsule(Counted())
    for found in (diverge(one, other), diverge(other, one)):
        operator = found.a or found.b
        assert operator.name == "aten.mul_.Tensor"
        assert found.why == f"only {'A' if found.a else 'B'} runs it"
    assert diverge(other, other) is None


def test_other_arguments_are_named() -> None:
    found = diverge(capsule(Layer(1.01)), capsule(Layer(1.02)))
    assert found.why == "it is called with other arguments: 1.01 | 1.02"


def test_each_capsules_operator_has_the_rank_that_ran_it() -> None:
    one, other = capsule(Layer(1.01)), capsule(Layer(1.02))
    staged = replace(other, ranks=((), *other.ranks), layout={"PP": 2})
    text = "\n".join(lines_of_two(one, staged, diverge(one, staged)))
    ranks = re.findall(r"operator  .*, rank (\d)", text)
    assert ranks == ["0", "1"]


def test_other_parts_of_tensors_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = capsule(Layer()), capsule(Layer(1.01))
    names = [str(tmp_path / name) for name in ("a.capsule", "b.capsule")]
    write_capsule(one, Path(names[0]))
    write_capsule(replace(other, layout={"TP": 2}), Path(names[1]))
    assert main(["parity", "replay", *names]) == 2
    said = capsys.readouterr().err
    assert "other parts of their tensors" in said  # a partial sum has its sum's shape
    assert "TP 1 | 2" in said


def test_one_changed_bit_is_the_first_operator_that_is_not_deterministic() -> None:
    made = capsule(Layer())
    place = made.ranks[0][1].outputs[0]
    changed = replace(made.values[place], digest="other")
    other = replace(made, values=(*made.values[:place], changed, *made.values[place + 1 :]))
    found = diverge(made, other, bitwise=True)
    assert found.a.name == "aten.mm.default"
    assert diverge(made, made, bitwise=True) is None


def test_operators_that_do_more_than_compute_are_not_run(tmp_path: Path) -> None:
    made = capsule(Layer())
    first = made.ranks[0][1]
    target = tmp_path / "written"
    for name, arguments in (
        ("aten.from_file.default", [[str(target), True, 100], {}]),
        ("aten.repeat.default", [[{"t": 0}, [1 << 20, 1 << 20]], {}]),
        ("aten.as_strided.default", [[{"t": 0}, [4], [1 << 40], 0], {}]),
        ("aten.__import__.default", [["os"], {}]),
        ("os.system", [["true"], {}]),
        ("attention", [[{"k": "Path", "f": {}}], {}]),
    ):
        changed = replace(first, name=name, arguments=arguments)
        found = judge(replace(made, ranks=((changed,),)))
        assert found.judged == 0, name
        assert len(found.skipped) == 1
    assert not target.exists()


def test_a_file_with_anything_in_it_is_refused_or_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One field after another holds what it cannot hold: never another exception."""
    import json
    import random

    import zstandard

    from accel_bridge.recording import CAPSULE_MAGIC
    from parity.hostile import changed, packed, places

    monkeypatch.setattr("accel_bridge.recording.tape._SMALL", 0)
    path, made = tmp_path / "a.capsule", capsule(Layer(), room=3000)
    assert any(one.part_inputs for one in made.ranks[0])
    write_capsule(made, path)
    assert read_capsule(path) == made
    payload = path.read_bytes()[len(CAPSULE_MAGIC) :].partition(b"\n")[2]
    content = zstandard.ZstdDecompressor().decompress(payload)
    length = int.from_bytes(content[:8], "little")
    document, rest = json.loads(content[8 : 8 + length]), content[8 + length :]
    paths, source = list(places(document)), random.Random(3)
    refused = 0
    for _ in range(300):
        text = json.dumps(changed(document, source, paths)).encode()
        path.write_bytes(packed(len(text).to_bytes(8, "little") + text + rest, CAPSULE_MAGIC))
        try:
            found = read_capsule(path)
        except RecordingError:
            refused += 1
            continue
        judge(found)
    assert refused > 100


def test_the_layer_at_which_two_recordings_part() -> None:
    def change(kind: str, name: str, step: int, value: float) -> float:
        return value * 1.1 if (kind, name) == ("output", "layers.1.mlp") else value

    assert choose(compare(recording(), recording(change))) == Place("layers.1", 1)

    def later(kind: str, name: str, step: int, value: float) -> float:
        return value * 1.1 if (kind, name, step) == ("output", "layers.1.mlp", 2) else value

    losses = {"loss": lambda step: 5.0 - 0.11 * step}
    found = choose(compare(recording(), recording(later, **losses)))
    assert found == Place("optimizer", 1)
    with pytest.raises(BridgeError, match="agree"):
        choose(compare(recording(), recording()))


@pytest.mark.parametrize(
    ("kind", "name", "step", "place"),
    [
        ("output", "layers.0.mlp", 1, Place("layers.0", 1)),
        ("gradient", "layers.1.mlp", 1, Place("loss", 1)),
        ("gradient", "layers.0.mlp", 1, Place("layers.1", 1)),
        ("weight gradient", "layers.1.mlp", 1, Place("layers.1+gradients", 1)),
        ("weight", "layers.0.mlp", 2, Place("optimizer", 1)),
    ],
)
def test_the_first_bit_that_is_not_the_same_twice(
    kind: str, name: str, step: int, place: Place
) -> None:
    def change(k: str, n: str, s: int, value: float) -> float:
        return value * (1 + 1e-6) if (k, n, s) == (kind, name, step) else value

    assert first_bit(recording(), recording()) is None
    found = first_bit(recording(), recording(change))
    assert found.place == place
    assert found.step == step
    assert found.what == f"the {kind} {name}"


def test_measured_limits_find_what_the_table_lets_pass() -> None:
    """One tensor that is 1% off in bfloat16, and noise that is below what was measured."""
    fields = {"precision": "bfloat16"}
    base = recording(**fields)
    noise = moved_by(base, [recording(rounding(2e-3, seed), **fields) for seed in (1, 2)])
    base = replace(base, limits=noise)

    def change(kind: str, name: str, step: int, value: float) -> float:
        return value * 1.02 if (kind, name) == ("output", "layers.1.mlp") else value

    assert compare(recording(**fields), recording(change, **fields)).passed
    found = compare(base, recording(change, **fields))
    assert not found.passed
    assert found.first.name == "layers.1.mlp"
    assert all(
        compare(base, recording(rounding(3e-3, seed), **fields)).passed for seed in range(2, 20)
    )


def off(name: str, size: float) -> Change:
    """Every output value of a tensor is off by up to ``size`` of itself."""
    noise = rounding(size, 5)
    return lambda k, n, s, v: noise(k, n, s, v) if (k, n) == ("output", name) else v


def test_a_factor_shows_in_the_mean_where_values_are_noisy() -> None:
    moved = {"output layers.1.mlp": (0.05, 1e-5, 1e-2)}
    run = recording(precision="bfloat16", limits=moved)
    scaled = recording(
        lambda k, n, s, v: v * 1.01 if (k, n) == ("output", "layers.1.mlp") else v,
        precision="bfloat16",
    )
    found = compare(run, scaled).first
    assert (found.name, found.size, found.limit) == ("layers.1.mlp", pytest.approx(0.01, 0.1), 2e-3)


def test_a_difference_that_none_before_explains_departs() -> None:
    """Perturbations that go through the network explain what is off by as much from its input on.

    One token that goes to another expert explains it, too.
    """
    base = recording(precision="bfloat16")
    moved = {f"{one.kind} {one.name}": (0.02, 1.0, 1.0) for one in base.observations}
    base = replace(base, limits=moved)
    alone = recording(off("layers.1.mlp", 0.04), precision="bfloat16")
    found = compare(base, alone).first
    assert (found.name, found.limit) == ("layers.1.mlp", 1.2e-2)
    early = off("embedding", 0.02)
    both = recording(
        lambda k, n, s, v: off("layers.1.mlp", 0.04)(k, n, s, early(k, n, s, v)),
        precision="bfloat16",
    )
    assert compare(base, both).passed
    routed = {**base.identity, "model": {"num_experts": 4}}
    assert compare(replace(base, identity=routed), replace(alone, identity=routed)).passed


def test_an_older_recording_has_one_limit_for_all() -> None:
    document = recording().as_document()
    for limit in (0.25, [0.25, 0.25, 0.25]):
        document["limits"] = {"output embedding": limit}
        found = _wire.recording(json.dumps(document).encode())
        assert found.limits == {"output embedding": (0.25, 0.25, 0.25)}
    document["limits"] = {"output embedding": [0.25, -1, 0.25]}
    with pytest.raises(ValueError, match="output embedding has no three sizes"):
        _wire.recording(json.dumps(document).encode())


def test_perturbed_outputs_move_by_their_rounding() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    batch = torch.randn(4, 8)
    found = []
    for perturbs in (0, 1):
        modules = [Watched("0", 0, model[0]), Watched("1", 0, model[1])]
        plan = Plan("unused", perturbs=perturbs)
        recorder = Recorder(plan, modules, lambda: (), lambda: None, counts_data=False)
        recorder.begin(1)
        model(batch).square().sum().backward()
        recorder.end(1.0, 1.0)
        found.append({(one.kind, one.name): one for one in recorder.record.observations})
    for key, one in found[0].items():
        size = distance(one, found[1][key], samples=True).size
        assert 1e-9 < size < 1e-5, key


def reduced(reduction: str, result: torch.Tensor) -> Capsule:
    """Two ranks that reduce [1, 2] and [3, 5]; the second gets ``result``."""
    tapes = []
    for rank, sent in enumerate(([1.0, 2.0], [3.0, 5.0])):
        tape = Tape("step")
        given = torch.tensor([4.0, 7.0]) if rank == 0 else result
        places = tape._index(torch.tensor(sent)), tape._index(given)
        arguments = [[[{"t": 0}], {"g": [0, 1]}, {"r": reduction}, None, False], {}]
        tape.tape.operators.append(
            Operator(
                *("c10d.allreduce_.default", "forward", "m", "f.py:1 g", "", arguments),
                *((places[0],), (places[1],), (0,)),
            )
        )
        tapes.append(tape.tape)
    return Capsule("step", 1, "float32", {}, {}, *capsule_of(tapes))


def test_a_collective_is_compared_with_what_all_ranks_sent() -> None:
    assert not judge(reduced("SUM", torch.tensor([4.0, 7.0]))).findings
    (found,) = judge(reduced("SUM", torch.tensor([4.0, 2.0]))).findings
    assert (found.rank, found.recorded, found.exact) == (1, 2.0, 7.0)
    assert [one.rank for one in judge(reduced("MAX", torch.tensor([3.0, 5.0]))).findings] == [0]


def test_dropout_is_replayed_with_the_mask_that_was_drawn() -> None:
    made = Tape("step")
    made.start([])
    torch.native_dropout(torch.ones(64, 64), 0.3, True)
    made.stop()
    right = Capsule("step", 1, "float32", {}, {}, *capsule_of([made.tape]))
    assert (judge(right).judged, judge(right).findings) == (1, ())
    other = replace(right.ranks[0][-1], arguments=[[{"t": 0}, 0.4, True], {}])
    (found,) = judge(replace(right, ranks=((other,),))).findings
    assert found.recorded == pytest.approx(1 / 0.7)
