"""The libraries that have a shim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Library:
    """A compiled library, and what its shim offers instead.

    :param name: its top-level module, and its name in ``ACCEL_BRIDGE_LIBRARIES``.
    :param version: the version whose interface the shim claims to serve; empty where the library's
        own Python says it.
    :param distribution: its name on the package index.
    :param not_beside: a library whose real installation looks for this one's compiled part.
    :param extensions: further top-level modules that the same distribution installs.
    :param completed: NVIDIA's own Python layer is published without its compiled part, which
        accel_bridge's extension then serves.
    :param compiled: patterns of files, relative to the directory that holds the real package. Where
        none of them matches, the real library is broken: its compiled part is missing.
    :param parts: packages inside it that another distribution installs, with its name: they work
        without the library, and stay real beside its shim.
    """

    name: str
    version: str
    distribution: str
    extensions: tuple[str, ...] = ()
    not_beside: str = ""
    compiled: tuple[str, ...] = ()
    completed: bool = False
    parts: tuple[tuple[str, str], ...] = ()

    @property
    def roots(self) -> tuple[str, ...]:
        """Every top-level module of the library."""
        return (self.name, *self.extensions)


#: Every library that has a shim here, by name. Where two have the same distribution, the first
#: one speaks for it (``importlib.metadata``).
LIBRARIES: Final[dict[str, Library]] = {
    library.name: library
    for library in (
        Library(
            "transformer_engine",
            "",
            "transformer-engine",
            extensions=("transformer_engine_torch",),
            completed=True,
            # An editable build, an installed one, a wheel. Source: transformer_engine/common.
            compiled=(
                "transformer_engine_torch*.so",
                "transformer_engine/transformer_engine_torch*.so",
                "transformer_engine/wheel_lib/transformer_engine_torch*.so",
            ),
        ),
        # The newest that Transformer Engine accepts beside it.
        Library(
            "flash_attn",
            "2.8.3",
            "flash-attn",
            compiled=("flash_attn_2_cuda*.so",),
            not_beside="transformer_engine",
            parts=(("flash_attn.cute", "flash-attn-4"),),
        ),
        # The newest of each; what Megatron and the clients ask of them has only grown.
        # Its extension is for Mamba-1 and may be missing beside the rest, which is in Triton.
        Library("mamba_ssm", "2.3.2.post1", "mamba-ssm"),
        Library("selective_scan_cuda", "2.3.2.post1", "mamba-ssm"),
        Library(
            "causal_conv1d",
            "1.7.0",
            "causal-conv1d",
            extensions=("causal_conv1d_cuda",),
            compiled=("causal_conv1d_cuda*.so",),
        ),
        Library("fla", "0.6.0", "flash-linear-attention"),
        Library(
            "fast_hadamard_transform",
            "1.0.4",
            "fast-hadamard-transform",
            compiled=("fast_hadamard_transform_cuda*.so",),
        ),
        Library("grouped_gemm", "1.1.4", "nv-grouped-gemm", compiled=("grouped_gemm_backend*.so",)),
        # Apex's setup.py has said 0.1 since its first day. Its extensions are build options, of
        # which any may be missing beside a real Apex: each is decided for itself.
        Library("apex", "0.1", "apex"),
        Library("amp_C", "0.1", "apex"),
        Library("fused_layer_norm_cuda", "0.1", "apex"),
        Library("fused_weight_gradient_mlp_cuda", "0.1", "apex"),
        Library("scaled_masked_softmax_cuda", "0.1", "apex"),
        Library("scaled_softmax_cuda", "0.1", "apex"),
        Library("scaled_upper_triang_masked_softmax_cuda", "0.1", "apex"),
    )
}
