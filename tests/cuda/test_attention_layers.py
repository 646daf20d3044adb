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


BOTH, FIRST = ("transformer_engine", "flash_attn"), SUB_LIBRARIES[:1]


@pytest.mark.parametrize(
    ("modules", "missing", "environ", "capability", "backend", "remedy"),
    [
        ((), (), {}, (9, 0), None, None),
        (BOTH[:1], (), {}, (9, 0), "fused", None),
        (BOTH[:1], (), {"NVTE_FUSED_ATTN": "0"}, (9, 0), "unfused", "unset NVTE_FUSED_ATTN"),
        # FlashAttention serves where cuDNN does not, and is not turned off.
        (BOTH, (), {}, (8, 0), "flash", ""),
        (BOTH, (), {}, (9, 0), "fused", None),
        (BOTH, FIRST, {}, (9, 0), "flash", ""),
        (BOTH, FIRST, {"NVTE_FLASH_ATTN": "0"}, (9, 0), "unfused", ""),
    ],
)
def test_what_serves(
    modules: tuple[str, ...],
    missing: tuple[str, ...],
    environ: dict[str, str],
    capability: tuple[int, int],
    backend: str | None,
    remedy: str | None,
) -> None:
    found = search(*modules, missing=missing, **environ).run(capability)
    assert found.backend == backend
    assert remedy == "" or found.remedy == remedy


@pytest.mark.parametrize("name", SUB_LIBRARIES)
def test_one_missing_sub_library_is_the_silent_trap(name: str) -> None:
    found = search("transformer_engine", missing=(name,)).run((9, 0))
    assert found.backend == "unfused"
    assert "does not report it" in found.why
    assert any(name in line for line in found.evidence)
    assert found.remedy is not None
    assert name in found.remedy
