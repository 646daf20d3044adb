"""Which attention Transformer Engine would run is told before it runs."""

from __future__ import annotations

import pytest

from accel_bridge.backends.cuda.library_checks import SUB_LIBRARIES, TeAttentionSearch


def search(*modules: str, missing: tuple[str, ...] = (), **environ: str) -> TeAttentionSearch:
    def load(name: str) -> None:
        if name in missing:
            raise OSError(f"{name}: cannot open shared object file")

    return TeAttentionSearch(
        environ, lambda name: name in modules, lambda name: "2.20.2", load, None
    )


def test_without_transformer_engine_there_is_nothing_to_tell() -> None:
    assert search().run().backend is None


def test_cudnn_is_used_where_its_libraries_load() -> None:
    found = search("transformer_engine").run((9, 0))
    assert (found.backend, found.remedy) == ("fused", None)


@pytest.mark.parametrize("name", SUB_LIBRARIES)
def test_one_missing_sub_library_is_the_silent_trap(name: str) -> None:
    found = search("transformer_engine", missing=(name,)).run((9, 0))
    assert found.backend == "unfused"
    assert "does not report it" in found.why
    assert any(name in line for line in found.evidence)
    assert found.remedy is not None
    assert name in found.remedy


def test_a_switch_that_turns_it_off_is_named() -> None:
    found = search("transformer_engine", NVTE_FUSED_ATTN="0").run((9, 0))
    assert found.backend == "unfused"
    assert found.remedy == "unset NVTE_FUSED_ATTN"


@pytest.mark.parametrize(
    ("missing", "capability", "backend"),
    [
        ((), (8, 0), "flash"),
        ((), (9, 0), "fused"),
        (SUB_LIBRARIES[:1], (9, 0), "flash"),
    ],
)
def test_flash_attn_serves_where_cudnn_does_not(
    missing: tuple[str, ...], capability: tuple[int, int], backend: str
) -> None:
    found = search("transformer_engine", "flash_attn", missing=missing).run(capability)
    assert found.backend == backend


def test_flash_attn_that_is_turned_off_does_not_serve() -> None:
    found = search(
        "transformer_engine", "flash_attn", missing=SUB_LIBRARIES[:1], NVTE_FLASH_ATTN="0"
    ).run((9, 0))
    assert found.backend == "unfused"
