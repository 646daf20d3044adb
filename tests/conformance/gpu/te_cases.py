"""Calls of Transformer Engine's public interface, each with the same in plain PyTorch.

The real library and the shim run the same cases (te_compare.py). ``exact`` is computed in
float64 from the rounded inputs and parameters.

Legend: s sequence, b batch, h hidden size, n heads, d head size, t tokens, f feed-forward size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import transformer_engine.pytorch as te
from torch.nn import functional

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Sizes:
    """How large the cases are."""

    sequence: int
    batch: int
    hidden: int
    heads: int
    groups: int
    ffn: int
    experts: int
    vocabulary: int

    @property
    def tokens(self) -> int:
        """Rows of a linear layer's input."""
        return self.sequence * self.batch

    @property
    def head(self) -> int:
        """Size of a head."""
        return self.hidden // self.heads


SIZES: Final = {
    "small": Sizes(32, 2, 64, 4, 2, 128, 4, 96),
    "medium": Sizes(256, 2, 512, 8, 2, 1024, 8, 4096),
    "large": Sizes(2048, 2, 4096, 32, 8, 11008, 8, 32768),
}


@dataclass(frozen=True)
class Problem:
    """One call.

    :param module: with the parameters, or None.
    :param inputs: floats take part in differentiation.
    :param call: what is compared: ``call(module, inputs)``.
    :param exact: the same from parameters and inputs in float64.
    """

    module: Any
    inputs: Tensors
    call: Callable[[Any, Tensors], torch.Tensor]
    exact: Callable[[Tensors, Tensors], torch.Tensor]


Maker = Callable[[Sizes, torch.dtype], Problem]
BOTH: Final = (torch.bfloat16, torch.float32)
FP8: Final = ("tensorwise", "delayed", "blockwise")


@dataclass(frozen=True)
class Case:
    """A problem in some precisions.

    :param recipes: FP8 recipes that it is computed with besides, in bfloat16.
    """

    name: str
    make: Maker
    dtypes: Sequence[torch.dtype] = BOTH
    recipes: Sequence[str] = ()


CASES: Final[list[Case]] = []


def case(name: str, *, dtypes: Sequence[torch.dtype] = BOTH, recipes: Sequence[str] = ()) -> Any:
    """Register a maker."""

    def register(make: Maker) -> Maker:
        CASES.append(Case(name, make, dtypes, recipes))
        return make

    return register


def randn(seed: int, *shape: int, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
    """The same numbers on every machine."""
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(shape, generator=generator)).to(dtype).cuda()


def activate(name: str, x: torch.Tensor) -> torch.Tensor:
    """TE's activations; those with a gate apply it to the first half."""
    gates: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "gelu": lambda x: functional.gelu(x, approximate="tanh"),
        "qgelu": lambda x: x * torch.sigmoid(1.702 * x),
        "relu": functional.relu,
        "srelu": lambda x: functional.relu(x).square(),
        "silu": functional.silu,
    }
    if name in gates:
        return gates[name](x)
    gated = {"geglu": "gelu", "qgeglu": "qgelu", "reglu": "relu", "sreglu": "srelu"}
    a, b = x.chunk(2, -1)
    return gates[gated.get(name, "silu")](a) * b


def normalize(kind: str, x: torch.Tensor, p: Tensors, prefix: str = "", zero: bool = False) -> Any:
    """LayerNorm or RMSNorm with the parameters ``{prefix}weight`` and ``{prefix}bias``."""
    shape = x.shape[-1:]
    if kind == "LayerNorm":
        x = functional.layer_norm(x, shape, eps=1e-5)
        return x * (p[f"{prefix}weight"] + zero) + p[f"{prefix}bias"]
    return functional.rms_norm(x, shape, eps=1e-5) * (p[f"{prefix}weight"] + zero)


def visible(
    rows: int, columns: int, causal: bool, window: tuple[int, int] = (-1, -1), shift: int = 0
) -> torch.Tensor:
    """Which keys each query sees: [rows, columns]; ``shift`` moves the diagonal to the right."""
    offset = torch.arange(columns)[None] - torch.arange(rows)[:, None] - shift
    seen = offset <= 0 if causal else torch.ones(rows, columns, dtype=torch.bool)
    left, right = window
    if left >= 0:
        seen &= offset >= -left
    if right >= 0:
        seen &= offset <= right
    return seen


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, sink: Any = None
) -> torch.Tensor:
    """q [s, b, n, d], k and v [s, b, groups, ...] -> [s, b, n d]; rows that see nothing give 0."""
    times = q.shape[2] // k.shape[2]
    k, v = (one.repeat_interleave(times, dim=2) for one in (k, v))
    scores = torch.einsum("sbnd,tbnd->bnst", q, k) / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(~seen.to(q.device), -math.inf)
    if sink is not None:
        extra = sink.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        weights = torch.cat([scores, extra], -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1).nan_to_num(0.0)
    return torch.einsum("bnst,tbnd->sbnd", weights, v).flatten(2)


def x_input(sizes: Sizes, dtype: torch.dtype) -> Tensors:
    """x [s, b, h]."""
    return {"x": randn(1, sizes.sequence, sizes.batch, sizes.hidden, dtype=dtype)}


def on_x(module: Any, inputs: Tensors) -> torch.Tensor:
    """``module(x)``."""
    output: torch.Tensor = module(inputs["x"])
    return output


@case("Linear", recipes=FP8)
def linear(z: Sizes, dtype: torch.dtype) -> Problem:
    return Problem(
        te.Linear(z.hidden, z.ffn, params_dtype=dtype, device="cuda"),
        x_input(z, dtype),
        on_x,
        lambda p, i: functional.linear(i["x"], p["weight"], p["bias"]),
    )


@case("Linear[main_grad]", recipes=FP8)
def linear_main_grad(z: Sizes, dtype: torch.dtype) -> Problem:
    module = te.Linear(
        z.hidden, z.ffn, bias=False, params_dtype=dtype, device="cuda", fuse_wgrad_accumulation=True
    )
    module.weight.main_grad = torch.zeros(module.weight.shape, device="cuda")
    return Problem(
        module, x_input(z, dtype), on_x, lambda p, i: functional.linear(i["x"], p["weight"])
    )


def _norms() -> Iterator[tuple[str, bool]]:
    for kind in ("LayerNorm", "RMSNorm"):
        for zero in (False, True):
            yield kind, zero


for _kind, _zero in _norms():

    @case(f"{_kind}[{'zero centered' if _zero else 'plain'}]")
    def norm(z: Sizes, dtype: torch.dtype, kind: str = _kind, zero: bool = _zero) -> Problem:
        made = getattr(te, kind)(
            z.hidden, zero_centered_gamma=zero, params_dtype=dtype, device="cuda"
        )
        return Problem(
            made, x_input(z, dtype), on_x, lambda p, i: normalize(kind, i["x"], p, zero=zero)
        )


for _kind in ("LayerNorm", "RMSNorm"):

    @case(f"LayerNormLinear[{_kind}]", recipes=FP8)
    def norm_linear(z: Sizes, dtype: torch.dtype, kind: str = _kind) -> Problem:
        def exact(p: Tensors, i: Tensors) -> torch.Tensor:
            normal = normalize(kind, i["x"], p, "layer_norm_")
            return functional.linear(normal, p["weight"], p["bias"])

        made = te.LayerNormLinear(
            z.hidden, z.ffn, normalization=kind, params_dtype=dtype, device="cuda"
        )
        return Problem(made, x_input(z, dtype), on_x, exact)


_ACTIVATIONS = "gelu geglu qgelu qgeglu relu reglu srelu sreglu silu swiglu"
for _name in _ACTIVATIONS.split():

    @case(f"LayerNormMLP[{_name}]", recipes=FP8 if _name in ("gelu", "swiglu") else ())
    def norm_mlp(z: Sizes, dtype: torch.dtype, name: str = _name) -> Problem:
        def exact(p: Tensors, i: Tensors) -> torch.Tensor:
            x = normalize("RMSNorm", i["x"], p, "layer_norm_")
            x = activate(name, functional.linear(x, p["fc1_weight"], p["fc1_bias"]))
            return functional.linear(x, p["fc2_weight"], p["fc2_bias"])

        made = te.LayerNormMLP(
            z.hidden,
            z.ffn,
            normalization="RMSNorm",
            activation=name,
            params_dtype=dtype,
            device="cuda",
        )
        return Problem(made, x_input(z, dtype), on_x, exact)


@case("GroupedLinear", recipes=FP8)
def grouped_linear(z: Sizes, dtype: torch.dtype) -> Problem:
    # Multiples of 128 rows, as blockwise FP8 wants them; the second group has none.
    unit = 128 if z.tokens % 128 == 0 else 16
    counts = [0] * z.experts
    for place in range(z.tokens // unit):
        counts[(0, *range(2, z.experts))[place % (z.experts - 1)]] += unit
    made = te.GroupedLinear(
        z.experts, z.hidden, z.ffn, bias=False, params_dtype=dtype, device="cuda"
    )

    def exact(p: Tensors, i: Tensors) -> torch.Tensor:
        rows = i["x"].split(counts)
        return torch.cat([functional.linear(x, p[f"weight{e}"]) for e, x in enumerate(rows)])

    inputs = {"x": randn(1, z.tokens, z.hidden, dtype=dtype)}
    return Problem(made, inputs, lambda m, i: m(i["x"], counts), exact)


@dataclass(frozen=True)
class Attention:
    """A call of DotProductAttention."""

    mask: str = "causal"
    layout: str = "sbhd"
    window: tuple[int, int] = (-1, -1)
    softmax: str = "vanilla"
    grouped: bool = False
    value: float = 1.0


_ATTENTIONS: dict[str, Attention] = {
    "causal": Attention(),
    "no_mask": Attention("no_mask"),
    "causal, bshd": Attention(layout="bshd"),
    "causal, GQA": Attention(grouped=True),
    "causal, window": Attention(window=(20, 0)),
    "no_mask, window": Attention("no_mask", window=(20, 20)),
    "padding": Attention("padding"),
    "padding_causal": Attention("padding_causal"),
    "arbitrary": Attention("arbitrary"),
    "causal, d_qk != d_v": Attention(value=0.5),
    "causal, off-by-one": Attention(softmax="off-by-one"),
    "causal, learnable": Attention(softmax="learnable"),
    "thd": Attention("padding_causal", "thd"),
    "thd, GQA": Attention("padding_causal", "thd", grouped=True),
}

for _title, _chosen in _ATTENTIONS.items():
    # The library's fused kernels know no float32; its unfused one knows no packed sequences.
    _dtypes = (torch.bfloat16,) if _chosen.layout == "thd" else BOTH

    @case(f"DotProductAttention[{_title}]", dtypes=_dtypes)
    def attention(z: Sizes, dtype: torch.dtype, a: Attention = _chosen) -> Problem:
        groups = z.groups if a.grouped else z.heads
        d_v = int(z.head * a.value)
        module = te.DotProductAttention(
            z.heads,
            (z.head, d_v),
            num_gqa_groups=groups,
            attention_dropout=0.0,
            qkv_format=a.layout,
            attn_mask_type=a.mask,
            window_size=a.window,
            softmax_type=a.softmax,
        ).cuda()
        lengths = [z.sequence - 5 * index for index in range(z.batch)]
        seen = visible(z.sequence, z.sequence, "causal" in a.mask, a.window)
        seen = seen.expand(z.batch, 1, *seen.shape)
        options: dict[str, Any] = {}
        if a.mask == "arbitrary":
            hidden = torch.rand(seen.shape, generator=torch.Generator().manual_seed(9)) < 0.3
            hidden &= ~torch.eye(z.sequence, dtype=torch.bool)
            options["attention_mask"], seen = hidden.cuda(), seen & ~hidden
        if "padding" in a.mask:
            inside = torch.arange(z.sequence)[None] < torch.tensor(lengths)[:, None]
            seen = seen & inside[:, None, None]
            if a.layout == "thd":
                ends = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).int().cuda()
                options.update(cu_seqlens_q=ends, cu_seqlens_kv=ends)
                options.update(max_seqlen_q=z.sequence, max_seqlen_kv=z.sequence)
            else:
                options["attention_mask"] = (~inside[:, None, None]).cuda()
        where = torch.arange(z.sequence)[:, None] < torch.tensor(lengths)

        def arranged(x: torch.Tensor) -> torch.Tensor:
            """[s, b, ...] in the call's layout."""
            if a.layout == "bshd":
                return x.transpose(0, 1).contiguous()
            if a.layout == "thd":
                return torch.cat([x[:n, index] for index, n in enumerate(lengths)])
            return x

        def call(module: Any, i: Tensors) -> torch.Tensor:
            output = module(*(arranged(i[name]) for name in "qkv"), **options)
            output = output.flatten(2) if output.dim() == 4 else output
            if "padding" in a.mask and a.layout != "thd":
                output = output * where.to(output.device)[..., None]
            return output

        def exact(p: Tensors, i: Tensors) -> torch.Tensor:
            sink = p.get("softmax_offset")
            if a.softmax == "off-by-one":
                sink = torch.zeros(z.heads, dtype=torch.float64, device=i["q"].device)
            output = attend(i["q"], i["k"], i["v"], seen, sink)
            if "padding" in a.mask:
                output = output * where.to(output.device)[..., None]
            return arranged(output)

        shape = (z.sequence, z.batch)
        inputs = {
            "q": randn(1, *shape, z.heads, z.head, dtype=dtype),
            "k": randn(2, *shape, groups, z.head, dtype=dtype),
            "v": randn(3, *shape, groups, d_v, dtype=dtype),
        }
        return Problem(module, inputs, call, exact)


def self_attention(z: Sizes, p: Tensors, x: torch.Tensor, prefix: str, qkv: str) -> torch.Tensor:
    """Projections, causal attention and output projection; x [s, b, h], normalized."""
    parts = []
    for name in ("query", "key", "value"):
        weight, bias = (p[f"{prefix}{qkv}.{name}_{kind}"] for kind in ("weight", "bias"))
        made = functional.linear(x, weight, bias)
        parts.append(made.view(*x.shape[:2], -1, z.head))
    output = attend(*parts, visible(x.shape[0], x.shape[0], True))
    return functional.linear(output, p[f"{prefix}proj.weight"], p[f"{prefix}proj.bias"])


@case("MultiheadAttention", recipes=("tensorwise", "delayed"))
def multihead(z: Sizes, dtype: torch.dtype) -> Problem:
    module = te.MultiheadAttention(
        z.hidden,
        z.heads,
        attention_dropout=0.0,
        num_gqa_groups=z.groups,
        input_layernorm=True,
        normalization="RMSNorm",
        params_dtype=dtype,
        device="cuda",
    )

    def exact(p: Tensors, i: Tensors) -> torch.Tensor:
        normal = normalize("RMSNorm", i["x"], p, "layernorm_qkv.layer_norm_")
        return self_attention(z, p, normal, "", "layernorm_qkv")

    return Problem(module, x_input(z, dtype), on_x, exact)


for _kind, _name in (("LayerNorm", "gelu"), ("RMSNorm", "swiglu")):

    @case(f"TransformerLayer[{_kind}, {_name}]", recipes=FP8)
    def layer(z: Sizes, dtype: torch.dtype, kind: str = _kind, name: str = _name) -> Problem:
        module = te.TransformerLayer(
            z.hidden,
            z.ffn,
            z.heads,
            num_gqa_groups=z.groups,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            normalization=kind,
            activation=name,
            self_attn_mask_type="causal",
            params_dtype=dtype,
            device="cuda",
        )

        def exact(p: Tensors, i: Tensors) -> torch.Tensor:
            x = i["x"]
            before = "self_attention.layernorm_qkv.layer_norm_"
            x = x + self_attention(
                z, p, normalize(kind, x, p, before), "self_attention.", "layernorm_qkv"
            )
            inner = normalize(kind, x, p, "layernorm_mlp.layer_norm_")
            weights = [p[f"layernorm_mlp.{n}"] for n in ("fc1_weight", "fc1_bias")]
            inner = activate(name, functional.linear(inner, *weights))
            weights = [p[f"layernorm_mlp.{n}"] for n in ("fc2_weight", "fc2_bias")]
            return x + functional.linear(inner, *weights)

        return Problem(module, x_input(z, dtype), on_x, exact)
