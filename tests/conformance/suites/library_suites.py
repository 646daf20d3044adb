"""Where the tests of each library with a shim are, and what they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Suite:
    """Where a library's tests are.

    :param directory: of the tests, in the source tree.
    :param shims: value of ``ACCEL_BRIDGE_LIBRARIES``: the libraries that must be shims.
    :param environ: further variables for the tests; ``{scratch}`` is a directory of the file's run.
    :param environ_of: file -> variables for it alone, as the library's own runner sets them.
    :param before: file -> the arguments with which it is run as a script before its tests.
    :param absent: file -> module -> names that its shim refuses; so that the file's other tests
        run, each stands for a function that raises.
    :param borrowed: file -> module -> (file of the tree, names) that the tests take from the real
        library: references that a shim does not have.
    :param given: file -> module -> name -> value that the tests ask for; ``@torch.cuda`` is that
        module.
    :param pattern: of the names of test files.
    :param files: patterns of those that are run when none are named.
    :param inside: the tests stand in the library's package, which they must not import: a copy of
        the file is run.
    :param source: where the tree comes from.
    :param bridge: whether the bridge is active; without it, what the machine has is tested.
    :param together: that many files in one process, where starting one takes long.
    :param imports: directories of the tree that the tests import from.
    :param options: further ones of pytest.
    :param preload: modules that processes of the tests find imported (library_tests_processes.py).
    """

    directory: str
    shims: str
    source: str
    environ: Mapping[str, str] = field(default_factory=dict)
    environ_of: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    before: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    absent: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    borrowed: Mapping[str, Mapping[str, tuple[str, tuple[str, ...]]]] = field(default_factory=dict)
    given: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    pattern: str = "test_*.py"
    files: tuple[str, ...] = ("*",)
    inside: bool = False
    bridge: bool = True
    together: int = 1
    imports: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()


#: Transformer Engine's own runner (qa/L0_pytorch_unittest) compares with exact results so.
_EXACT: Final = {
    "PYTORCH_JIT": "0",
    "NVTE_TORCH_COMPILE": "0",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
    "NVTE_FUSED_ATTN": "0",
}
_FLA_TESTING: Final = ("fla/utils/_testing.py", ("assert_close",))
_FLA_GIVEN: Final = {
    "fla.utils": {
        "FLA_CI_ENV": False,
        "device": "cuda",
        "device_torch_lib": "@torch.cuda",
        "IS_INTEL_ALCHEMIST": False,
        "IS_NPU": False,
        "IS_NVIDIA_BLACKWELL": False,
        "IS_NVIDIA_HOPPER": False,
        "IS_NVIDIA_SM100": False,
    }
}
_FLA_FILES: Final = (
    "ops/test_gdn.py",
    "ops/test_simple_gla.py",
    "ops/test_gdp.py",
    "modules/test_conv.py",
    "modules/test_l2norm.py",
)
_TRANSFORMER_ENGINE: Final = Suite(
    "tests/pytorch",
    "transformer_engine",
    "https://github.com/NVIDIA/TransformerEngine",
    {
        "NVTE_TEST_NVINSPECT_ENABLED": "0",
        "NVTE_TEST_CHECKPOINT_ARTIFACT_PATH": "{scratch}/checkpoints",
    },
    {
        "test_numerics.py": _EXACT,
        "test_cuda_graphs.py": _EXACT,
        "test_cpu_offloading_v1.py": {"NVTE_FLASH_ATTN": "0", "NVTE_CPU_OFFLOAD_V1": "1"},
    },
    {"test_checkpoint.py": ("--save-checkpoint", "all")},
)
SUITES: Final = {
    # NVIDIA's own Python over the extension, tested by its own tests.
    "transformer_engine_torch": _TRANSFORMER_ENGINE,
    "mamba_ssm": Suite(
        "tests",
        "mamba_ssm,causal_conv1d",
        "https://github.com/state-spaces/mamba",
        files=(
            "ops/triton/test_selective_state_update.py",
            "ops/triton/test_layernorm_gated.py",
            "ops/test_selective_scan.py",
            "test_determinism.py",
        ),
        borrowed={
            "ops/test_selective_scan.py": {
                "mamba_ssm.ops.selective_scan_interface": (
                    "mamba_ssm/ops/selective_scan_interface.py",
                    ("mamba_inner_ref", "selective_scan_ref"),
                )
            },
            "test_determinism.py": {
                "mamba_ssm.modules.mamba2": ("mamba_ssm/modules/mamba2.py", ("Mamba2",))
            },
            "ops/triton/test_selective_state_update.py": {
                "mamba_ssm.ops.triton.selective_state_update": (
                    "mamba_ssm/ops/triton/selective_state_update.py",
                    ("selective_state_update_ref",),
                )
            },
            "ops/triton/test_layernorm_gated.py": {
                "mamba_ssm.ops.triton.layernorm_gated": (
                    "mamba_ssm/ops/triton/layernorm_gated.py",
                    ("rms_norm_ref",),
                )
            },
        },
        given={
            "ops/test_selective_scan.py": {
                "mamba_ssm.ops.selective_scan_interface": {
                    "causal_conv1d_fn": "@causal_conv1d:causal_conv1d_fn"
                }
            }
        },
    ),
    "causal_conv1d": Suite(
        "tests",
        "causal_conv1d",
        "https://github.com/Dao-AILab/causal-conv1d",
        borrowed={
            "test_causal_conv1d.py": {
                "causal_conv1d.causal_conv1d_interface": (
                    "causal_conv1d/causal_conv1d_interface.py",
                    ("causal_conv1d_ref", "causal_conv1d_update_ref"),
                ),
                "causal_conv1d.causal_conv1d_varlen": (
                    "causal_conv1d/causal_conv1d_varlen.py",
                    ("causal_conv1d_varlen_states_ref",),
                ),
            }
        },
    ),
    "fla": Suite(
        "tests",
        "fla",
        "https://github.com/fla-org/flash-linear-attention",
        absent={
            "ops/test_gdn.py": {
                "fla.ops.gated_delta_rule.wy_fast": ("prepare_wy_repr_bwd", "recompute_w_u_fwd"),
            },
        },
        borrowed={
            "ops/test_gdn.py": {
                "fla.utils": _FLA_TESTING,
                "fla.ops.gated_delta_rule.naive": (
                    "fla/ops/gated_delta_rule/naive.py",
                    ("naive_recurrent_gated_delta_rule", "naive_chunk_gated_delta_rule"),
                ),
                "fla.ops.gated_delta_rule.gate": (
                    "fla/ops/gated_delta_rule/gate.py",
                    ("naive_gdn_gate",),
                ),
            },
            "ops/test_simple_gla.py": {
                "fla.utils": _FLA_TESTING,
                "fla.ops.simple_gla.naive": (
                    "fla/ops/simple_gla/naive.py",
                    ("naive_parallel_simple_gla", "naive_recurrent_simple_gla"),
                ),
            },
            "ops/test_gdp.py": {
                "fla.utils": _FLA_TESTING,
                "fla.ops.gated_delta_product.naive": (
                    "fla/ops/gated_delta_product/naive.py",
                    ("naive_recurrent_gated_delta_product",),
                ),
                "fla.ops.gated_delta_product.chunk_ref": (
                    "fla/ops/gated_delta_product/chunk_ref.py",
                    ("chunk_gated_delta_product_ref",),
                ),
            },
            "modules/test_conv.py": {"fla.utils": _FLA_TESTING},
            "modules/test_l2norm.py": {"fla.utils": _FLA_TESTING},
        },
        given=dict.fromkeys(_FLA_FILES, _FLA_GIVEN),
        files=_FLA_FILES,
    ),
    "grouped_gemm": Suite(
        "grouped_gemm",
        "grouped_gemm",
        "https://github.com/fanshiqing/grouped_gemm",
        pattern="*_test.py",
        files=("ops_test.py",),
        inside=True,
    ),
    "flash_attn": Suite(
        "tests",
        "flash_attn,apex",
        "https://github.com/Dao-AILab/flash-attention",
        files=(
            "test_flash_attn.py",
            "test_rotary.py",
            "losses/test_cross_entropy.py",
            "ops/test_fused_dense.py",
            "ops/test_dropout_layer_norm.py",
            "ops/triton/test_layer_norm.py",
        ),
        absent={
            "ops/test_dropout_layer_norm.py": {
                "flash_attn.ops.layer_norm": ("dropout_add_layer_norm_subset",),
                "flash_attn.ops.rms_norm": ("dropout_add_rms_norm_subset",),
            }
        },
        borrowed={
            "test_flash_attn.py": {
                "flash_attn.flash_attn_interface": (
                    "flash_attn/flash_attn_interface.py",
                    ("_get_block_size_n",),
                )
            },
            "ops/triton/test_layer_norm.py": {
                "flash_attn.ops.triton.layer_norm": (
                    "flash_attn/ops/triton/layer_norm.py",
                    ("layer_norm_ref", "rms_norm_ref"),
                )
            },
        },
    ),
    "apex": Suite(
        "tests/L0",
        "apex,amp_C",
        "https://github.com/NVIDIA/apex",
        imports=("tests/L0/run_optimizers",),
    ),
    # These judge torch_npu's emulated device: run them under `accel-bridge emulate-ascend`.
    "op_plugin": Suite(
        "test",
        "none",
        "https://github.com/Ascend/op-plugin",
        # Without the queue an error is its own test's, not also that of all tests behind it.
        {"TASK_QUEUE_ENABLE": "0"},
        files=("test_custom_ops/*", "test_base_ops/*"),
        bridge=False,
        together=30,
    ),
    # With Megatron 0.12.1 on PYTHONPATH, as MindSpeed's master asks.
    "mindspeed": Suite(
        "tests_extend",
        "none",
        "https://gitcode.com/Ascend/MindSpeed",
        files=("unit_tests/ops/cann/*", "unit_tests/mindspeed/core/context_parallel/*"),
        bridge=False,
        imports=(".",),
        options=("--run-all",),
    ),
    "torch_npu": Suite(
        "test",
        "none",
        "https://gitcode.com/Ascend/pytorch",
        {"TASK_QUEUE_ENABLE": "0"},
        files=("distributed/test_*", "custom_ops/test_*"),
        bridge=False,
        together=30,
        preload=("torch", "torch_npu", "torch_npu.testing.testcase"),
    ),
}
