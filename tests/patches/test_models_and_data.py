"""How Megatron builds models and data sets: norms, losses, packed rows, compiled helpers, numpy."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from patched_function import patched

from accel_bridge.errors import BridgeError
from accel_bridge.patches import dataset_helpers, norm, numpy_names, packed_sequences
from accel_bridge.patching import PatchEngine


def resolved(q_lora_rank: int | None, *, changed: bool) -> Any:
    """What Megatron builds for local layers with --qk-layernorm."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import MLATransformerConfig
    from megatron.core.transformer.mla_qk_norm_config import QKNormConfigResolver

    config = MLATransformerConfig(
        num_layers=1,
        hidden_size=32,
        num_attention_heads=2,
        q_lora_rank=q_lora_rank,
        kv_lora_rank=16,
        qk_layernorm=True,
        normalization="RMSNorm",
        transformer_impl="local",
    )
    layer = get_gpt_layer_local_spec(
        multi_latent_attention=True, qk_layernorm=True, normalization="RMSNorm"
    )
    resolver = QKNormConfigResolver(config, layer.submodules.self_attention.submodules)
    upstream = QKNormConfigResolver.resolve
    if changed:
        return patched(norm.PATCHES, upstream, "latent-query-norm")(resolver)
    return upstream(resolver)


@pytest.mark.megatron
def test_a_norm_that_nothing_uses_is_left_out() -> None:
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear
    from megatron.core.transformer.identity_op import IdentityOp

    with pytest.raises(ValueError, match="it will not be used"):
        resolved(None, changed=False)
    found = resolved(None, changed=True)
    assert found["linear_q_proj"] is ColumnParallelLinear
    assert found["q_layernorm"] is IdentityOp
    assert found["kv_layernorm"] is not IdentityOp


@pytest.mark.megatron
def test_a_norm_that_is_used_stays() -> None:
    assert resolved(24, changed=True) == resolved(24, changed=False)


#: What the module of NVIDIA/Megatron-LM#6689 has.
BACKENDS = """
class NormTorch:
    @classmethod
    def from_options(cls, options):
        if options.sequence_parallel:
            raise ValueError("Torch's norm cannot do sequence parallelism.")
        return cls()
"""


def test_upstreams_table_takes_what_the_norm_can_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "norm_backends.py").write_text(BACKENDS)
    monkeypatch.syspath_prepend(tmp_path)
    (patch,) = (one for one in norm.PATCHES if one.id == "torch-norm-options")
    there = dataclasses.replace(patch, target="norm_backends:NormTorch.from_options", requires=None)
    options = SimpleNamespace(sequence_parallel=True)
    host: Any = SimpleNamespace(library=lambda name: object())
    with PatchEngine((there,), host=host):
        import norm_backends  # type: ignore[import-not-found]

        made = norm_backends.NormTorch.from_options(options)
        assert type(made) is norm_backends.NormTorch
    with pytest.raises(ValueError, match="sequence parallelism"):
        norm_backends.NormTorch.from_options(options)
    sys.modules.pop("norm_backends")


@pytest.mark.megatron
def test_a_stand_in_with_a_loss_of_its_own_keeps_it() -> None:
    """Megatron's tests call the forward pass of a class with one."""
    from accel_bridge.patches.modules.output_loss import reason_against

    stand_in = SimpleNamespace(compute_language_model_loss=lambda labels, logits: labels)
    assert reason_against(stand_in, {}) == "the loss was replaced"


def schedule(*, seq_length: int, micro_batch_size: int, **rest: Any) -> tuple[int, int, Any]:
    """What a schedule is told."""
    return seq_length, micro_batch_size, rest


def chosen(monkeypatch: pytest.MonkeyPatch, args: object) -> Any:
    """The schedule that is taken where Megatron's arguments are these."""
    name = "megatron.training.global_vars"
    module = ModuleType(name)
    module._GLOBAL_ARGS = args  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)
    return patched(packed_sequences.PATCHES, lambda: schedule, "packed-stages")()


@pytest.mark.parametrize("flag", ["dataloader_inter_document_masking", "sft"])
def test_rows_of_documents_are_one_sequence(monkeypatch: pytest.MonkeyPatch, flag: str) -> None:
    run = chosen(monkeypatch, Namespace(**{flag: True}))
    told = run(seq_length=64, micro_batch_size=2, decoder_seq_length=None)
    assert told == (128, 1, {"decoder_seq_length": None})


@pytest.mark.parametrize("args", [None, Namespace(), Namespace(sft=False)])
def test_other_batches_keep_upstreams_schedule(
    monkeypatch: pytest.MonkeyPatch, args: object
) -> None:
    assert chosen(monkeypatch, args) is schedule


def rows(
    batch: dict[str, Any],
    is_hybrid_cp: bool,
    cp_group: Any = None,
    use_per_sequence_balancing: bool = False,
) -> str:
    """Megatron's function: how it divides tokens among ranks."""
    by_row = use_per_sequence_balancing or batch.get("cu_seqlens") is None
    return "row" if by_row else "document"


@pytest.mark.parametrize(
    ("boundaries", "ranks", "asked", "divided"),
    [
        ([0, 8, 24], 2, True, "document"),
        ([0, 8, 23], 1, True, "row"),
        (None, 2, True, "row"),
        ([0, 8, 23], 2, False, "document"),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_ranks_get_parts_of_each_document(
    boundaries: list[int] | None, ranks: int, asked: bool, divided: str, named: bool
) -> None:
    partition = patched(packed_sequences.PATCHES, rows, "packed-context")
    batch = {"cu_seqlens": None if boundaries is None else torch.tensor([boundaries])}
    group = SimpleNamespace(size=lambda: ranks)
    if named:
        found = partition(batch, False, cp_group=group, use_per_sequence_balancing=asked)
    else:
        found = partition(batch, False, group, asked)
    assert found == divided


def test_a_document_that_ranks_cannot_divide_is_refused() -> None:
    """Megatron computes something with it."""
    partition = patched(packed_sequences.PATCHES, rows, "packed-context")
    group = SimpleNamespace(size=lambda: 2)
    batch = {"cu_seqlens": torch.tensor([[0, 8, 14, 24]])}
    with pytest.raises(BridgeError, match="cannot divide a document") as caught:
        partition(batch, False, group, True)
    assert "6 tokens" in str(caught.value)
    assert "multiple of 4 tokens" in str(caught.value)


def make() -> None:
    raise AssertionError("upstream runs make")


def compile_helpers(directory: Path, monkeypatch: pytest.MonkeyPatch, *, compiled: bool) -> None:
    """The patched function of a Megatron in ``directory``."""
    spec = object() if compiled else None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    module = SimpleNamespace(__file__=str(directory / "utils.py"))
    patched(dataset_helpers.PATCHES, make, "dataset-helpers", module=module)()


def test_compiled_helpers_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Makefile").write_text("default:\n\t@exit 1\n")
    compile_helpers(tmp_path, monkeypatch, compiled=True)


def test_without_a_makefile_the_wheel_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BridgeError, match="no helpers_cpp and no Makefile") as raised:
        compile_helpers(tmp_path, monkeypatch, compiled=False)
    assert "megatron-core" in raised.value.next


def test_they_are_compiled_for_this_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Makefile").write_text("default:\n\t@echo $(LIBEXT) > made\n")
    compile_helpers(tmp_path, monkeypatch, compiled=False)
    assert "cpython" in (tmp_path / "made").read_text()
    (tmp_path / "Makefile").write_text("default:\n\t@echo no pybind11; exit 1\n")
    with pytest.raises(BridgeError, match="no pybind11"):
        compile_helpers(tmp_path, monkeypatch, compiled=False)


class Data(list[int]):
    path_prefix = "small"


def test_a_split_without_tokens_is_refused() -> None:
    split: Any = SimpleNamespace(
        index_split=SimpleNamespace(name="valid"),
        dataset=Data([1]),
        config=SimpleNamespace(split="99,1,0"),
    )
    context: Any = None
    dataset_helpers._check_tokens(context, split, 7)
    with pytest.raises(BridgeError, match="The valid split of the data holds no tokens"):
        dataset_helpers._check_tokens(context, split, 0)


def test_removed_names_are_the_new_ones_and_others_are_numpys() -> None:
    np = patched(numpy_names.PATCHES[:1], numpy)
    assert np.product((2, 3)) == 6
    assert np.zeros is numpy.zeros
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = np.no_such_name
