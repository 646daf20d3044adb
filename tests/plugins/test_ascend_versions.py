"""Versions and settings around torch_npu: CANN, two Transformer Engines, HCCL's variables."""

from __future__ import annotations

import pytest
from plugin_site import Site

from accel_bridge.backends.ascend._compatibility import (
    TwoTransformerEnginesError,
    cann_mismatch,
    foreign_transformer_engine,
)
from accel_bridge.backends.ascend._hccl import VARIABLES, check_hccl
from accel_bridge.errors import EnvironmentVariableError
from accel_bridge.plugins.installed import owners


@pytest.mark.parametrize(
    ("torch_npu", "cann", "expected"),
    [
        ("2.9.0", "8.5.0", None),
        ("2.9.0", "8.3.RC1", "older than 8.5.0"),
        ("2.9.0", "9.0.0", "newer than 8.5.0"),
        ("2.8.0", "8.3.RC1", None),
        ("2.8.0", "8.3.0", None),  # a release candidate and its release
        ("2.9.0", "unknown", None),
        ("2.13.0", "8.5.0", None),  # not in the table
    ],
)
def test_cann_that_does_not_belong_to_torch_npu(
    torch_npu: str, cann: str, expected: str | None
) -> None:
    found = cann_mismatch(torch_npu, cann)
    assert (found is None) if expected is None else (expected in str(found))


@pytest.mark.parametrize(
    ("names", "foreign"),
    [
        ([], False),
        (["transformer_engine", "transformer_engine_torch"], True),
        (["transformer-engine-npu"], False),
        (["TransformerEngineNPU"], False),
        (["megatron-adaptor"], False),
    ],
)
def test_nvidias_transformer_engine_is_told_from_the_npus(names: list[str], foreign: bool) -> None:
    assert foreign_transformer_engine(lambda module: names) is foreign


def test_owners_are_found_by_their_lists(site: Site) -> None:
    lists = {
        "by-name": ("top_level.txt", "other\ntransformer_engine\n"),
        "by-files": ("RECORD", "transformer_engine/__init__.py,sha256=x,1\n"),
        "another": ("RECORD", "x/transformer_engine/y.py,,\ntransformer_engine_torch/z.py,,\n"),
        "damaged": ("RECORD", "\udcff"),
    }
    for name, (file, text) in lists.items():
        site.install(name, {})
        path = site.directory / f"{name.replace('-', '_')}-1.0.dist-info" / file
        path.write_bytes(text.encode(errors="surrogateescape"))
    assert owners("transformer_engine") & lists.keys() == {"by-name", "by-files"}


def test_two_transformer_engines_are_refused() -> None:
    names = ["transformer_engine", "TransformerEngineNPU"]
    with pytest.raises(TwoTransformerEnginesError) as error:
        foreign_transformer_engine(lambda module: names)
    assert "pip uninstall transformer-engine" in str(error.value)


def test_hccl_variables_are_checked() -> None:
    good = {"HCCL_CONNECT_TIMEOUT": "1800", "HCCL_DETERMINISTIC": "true", "OTHER": "x"}
    assert check_hccl(good) == {"HCCL_CONNECT_TIMEOUT": "1800", "HCCL_DETERMINISTIC": "true"}
    assert check_hccl({"HCCL_BUFFSIZE": " "}) == {}


@pytest.mark.parametrize("name", [variable.name for variable in VARIABLES])
@pytest.mark.parametrize("value", ["-1", "many", "99999999999"])
def test_a_bad_hccl_variable_is_named_with_what_it_takes(name: str, value: str) -> None:
    with pytest.raises(EnvironmentVariableError) as error:
        check_hccl({name: value})
    assert name in str(error.value)
    assert "takes" in str(error.value)
