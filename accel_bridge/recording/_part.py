"""A part of an operator that is too large for a capsule: the same operator on some of its rows.

Along some dimensions every result depends on nothing but its own place: the rows of a norm, the
rows and columns of a GEMM, the heads and sequences of attention. An operator cut along these
runs again exactly, alone. What is a sum over them, the gradient of a gain, is none of the part.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

#: Operator or kernel contract -> `parameter:dimensions ... -> dimensions of the results`.
#:
#: A small letter is a dimension that can be cut, a capital one that is needed whole; a tensor with
#: fewer dimensions has the last ones. Any number of dimensions: `*` and `~` can be cut (`~`
#: broadcasts), of `^` the first (it may be flattened), `+` not, `@` can in each shape by itself.
#: `!` is a result that needs everything. A tensor with k times as many heads has k for each; a
#: number says which k there may be besides 1.
_RULES: Final[Mapping[str, str]] = {
    "c10d.allreduce_": "tensors:@ ->",
    "c10d.broadcast_": "tensors:@ ->",
    "c10d._allgather_base_": "output_tensor:A~ input_tensor:A~ ->",
    "c10d._reduce_scatter_base_": "output_tensor:A~ input_tensor:A~ ->",
    "aten.mm": "self:mK mat2:Kn -> mn",
    "aten.bmm": "self:bmK mat2:bKn -> bmn",
    "aten.addmm": "self:mn mat1:mK mat2:Kn -> mn",
    "aten.baddbmm": "self:bmn batch1:bmK batch2:bKn -> bmn",
    "aten._to_copy": "self:~ -> ~",
    "aten.native_dropout": "input:~ -> ~ ~",
    "aten.embedding": "weight:Vh indices:* -> *h",
    "aten.embedding_dense_backward": "grad_output:+h indices:+ -> Vh",
    "aten.native_layer_norm": "input:*H weight:H bias:H -> *H *N *N",
    "rms_norm": "input:*H weight:H -> *H",
    "layer_norm": "input:*H weight:H bias:H -> *H",
    "norm_forward": "input:^H weight:H bias:H -> ^H ^ ^",
    "norm_backward": "grad_output:^H input:^H weight:H mean:^ rsigma:^ -> ^H ! !",
    "swiglu": "input:*H bias:H -> *H",
    "gated_activation": "input:*H bias:H weights:*+ -> *H",
    "geglu": "input:*H bias:H -> *H",
    "bias_gelu": "input:*H bias:H -> *H",
    "bias_dropout_add": "input:~H bias:~H residual:~H -> ~H",
    "rotary": "input:~D cos:~D sin:~D -> ~D",
    "scaled_masked_softmax": "scores:bhQK mask:bhQK -> bhQK",
    "cross_entropy": "logits:*V target:* -> *",
    "linear_cross_entropy": "input:*H weight:VH target:* token_weight:* main_grad:VH -> *",
    "weight_gradient": "input:+k grad_output:+m main_grad:mk ->",
    "embedding_gradient": "indices:+ grad_output:+h main_grad:Vh ->",
    "scaled_matmul": "a:mK b:nK a_scale_inv:mK b_scale_inv:nK bias:n -> mn 128",
    "float8_quantize": "input:+k scale:N amax:! transposed:k+ -> +k",
    "grouped_matmul": "input:TK weight:EKn tokens_per_expert:E -> Tn",
    "token_permute": "tokens:Th routing_map:TE probs:TE pad_offsets:E -> Mh M TE",
    "token_unpermute": "permuted:Mh rows:TE weights:TE -> Th",
    "causal_convolution": "input:bdS weight:dW bias:d initial_state:bdW sequence_ids:bS -> bdS",
    "state_space_scan": "input:bSh+ log_decay:bSh write:bSh+ read:bSh+ step:bSh skip:h+ "
    "gate:bSh+ initial_state:bh+ sequence_ids:bS -> bSh+ bh+",
    "gated_delta_rule": "query:bSh+ key:bSh+ value:bSh+ log_decay:bSh beta:bSh "
    "initial_state:bh+ sequence_ids:bS -> bSh+ bh+",
    "adamw": "parameters:@ gradients:@ first_moments:@ second_moments:@ scale:N copies:@ ->",
}
#: Layout -> dimensions of queries, keys, values and the output; then the other tensors'.
_ATTENTION: Final = {
    "SBHD": "Sbh+",
    "BSHD": "bSh+",
    "BNSD": "bhS+",
    "TND": "Sh+",
    "SBH": "Sb+",
    "BSH": "bS+",
}
_MASKS: Final = "masked:bhQK bias:bhQK alibi_slopes:bh softmax_offset:h"
_LENGTHS: Final = "cu_seqlens_q:N cu_seqlens_kv:N"
_ANY: Final = "*~^+@"

Label = Hashable
#: The label of each dimension; None: it is whole.
Labels = tuple[Label | None, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """How an operator can be cut.

    :param inputs: parameter -> dimensions, in the order of the signature.
    :param results: dimensions of what it returns.
    :param times: how many times as large as in another tensor a dimension may be; 0: any.
    """

    inputs: Mapping[str, str]
    results: tuple[str, ...]
    times: int = 0

    def can_cut(self, label: Label) -> bool:
        """Whether the first result has it; of one that changes its inputs, these have."""
        letter = label[0] if isinstance(label, tuple) else label
        return not self.results or str(letter) in self.results[0]


@functools.cache
def _rule(text: str) -> Rule:
    given, _, results = text.partition("->")
    pairs = (word.partition(":") for word in given.split())
    made = results.split()
    times = int(made.pop()) if made and made[-1].isdigit() else 0
    return Rule({name: labels for name, _, labels in pairs}, tuple(made), times)


def rule_of_contract(name: str, arguments: Sequence[Any]) -> Rule | None:
    """How a kernel contract's call can be cut."""
    layout = next((one.layout for one in arguments if hasattr(one, "heads")), None)
    if name == "attention" and layout in _ATTENTION:
        labels, lse = _ATTENTION[layout], "hS" if layout == "TND" else "bhS"
        names = (f"{tensor}:{labels}" for tensor in ("query", "key", "value"))
        return _rule(f"{' '.join(names)} {_MASKS} {_LENGTHS} -> {labels} {lse}")
    return _rule(_RULES[name]) if name in _RULES else None


def rule_of_operator(func: Any, args: Sequence[Any]) -> Rule | None:
    """How a call of one of PyTorch's operators can be cut."""
    schema = func._schema
    name = func.overloadpacket._qualified_op_name.replace("::", ".")
    names = [one.name for one in schema.arguments]
    returns = " ".join("~" for one in schema.returns)
    if name in _RULES:
        return _rule(_RULES[name])
    if torch.Tag.pointwise in func.tags:
        return _rule(f"{' '.join(f'{one}:~' for one in names)} -> {returns}")
    if name.startswith(("aten._foreach_", "aten._fused_adam")) and "norm" not in name:
        return _rule(f"{' '.join(f'{one}:@' for one in names)} -> {returns.replace('~', '@')}")
    given = [one for one in args if isinstance(one, torch.Tensor)]
    if not given:
        return None
    letters = [chr(ord("a") + place) for place in range(given[0].dim())]
    if "softmax" in name and isinstance(dim := args[len(given)], int):
        letters[dim] = letters[dim].upper()
        labels = "".join(letters)
        return _rule(f"{' '.join(f'{one}:{labels}' for one in names[: len(given)])} -> {labels}")
    if str(func) in ("aten.sum.dim_IntList", "aten.mean.dim") and len(args) > 1 and args[1]:
        for dim in args[1]:
            letters[dim] = letters[dim].upper()
        kept = letters if len(args) > 2 and args[2] else [one for one in letters if one.islower()]
        return _rule(f"self:{''.join(letters)} -> {''.join(kept)}")
    return None


@dataclass(frozen=True, slots=True)
class Part:
    """One call, cut.

    :param labels: of its input tensors; None: what is written there needs everything.
    :param places: label -> (the number of all, those that are kept).
    """

    rule: Rule
    labels: tuple[Labels | None, ...]
    places: Mapping[Label, tuple[int, tuple[int, ...]]]

    def inputs(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """The part of each input."""
        pairs = zip(self.labels, tensors, strict=True)
        return [self.cut(tensor, labels or ()) for labels, tensor in pairs]

    def result(self, number: int, tensor: torch.Tensor) -> torch.Tensor | None:
        """The part of a result; None where it needs everything, or is no multiple of a place."""
        text = self.rule.results[number] if number < len(self.rule.results) else "!"
        labels = None if text == "!" else _labels(text, tensor)
        return None if labels is None else self.cut(tensor, labels)

    def changed(self, place: int, tensor: torch.Tensor) -> torch.Tensor | None:
        """The part of an input after the call has changed it."""
        labels = self.labels[place]
        return None if labels is None else self.cut(tensor, labels)

    def gradient(self, place: int, tensor: torch.Tensor) -> torch.Tensor | None:
        """The part of an input's gradient; None where it is a sum over what is cut."""
        labels = self.labels[place] or ()
        own = {one for one, size in zip(labels, tensor.shape, strict=False) if size > 1}
        small = {one for one, (count, kept) in self.places.items() if len(kept) < count}
        return self.cut(tensor, labels) if small <= own else None

    def cut(self, tensor: torch.Tensor, labels: Labels) -> torch.Tensor | None:
        """A copy of what is kept."""
        found = tensor.detach()
        if found.element_size() == 1 and found.is_floating_point():
            found = found.view(torch.uint8)
        for dim, label in enumerate(labels):
            size = tensor.shape[dim]
            if label not in self.places or size == 1:
                continue
            count, kept = self.places[label]
            if size % count:
                return None
            each = size // count
            rows = [place * each + more for place in kept for more in range(each)]
            found = found.index_select(dim, torch.tensor(rows, device=found.device))
        return found.clone().view(tensor.dtype)


def part_of(
    rule: Rule | None, names: Sequence[str], tensors: Sequence[torch.Tensor], most: int
) -> Part | None:
    """The part of a call that is kept; None where it cannot be cut.

    :param names: the parameter that each of ``tensors`` is, or is in.
    :param most: elements of a tensor of the part, where one row is not larger.
    """
    if rule is None or any(name not in rule.inputs for name in names):
        return None
    found: list[Labels | None] = []
    sizes: dict[Label, int] = {}
    for name, tensor in zip(names, tensors, strict=True):
        text = rule.inputs[name]
        labels = _labels(text.replace("!", "+"), tensor)
        if labels is None or tensor.layout is not torch.strided:
            return None
        found.append(None if text == "!" else labels)
        for label, size in zip(labels, tensor.shape, strict=True):
            if label is not None and size > 1 and rule.can_cut(label):
                sizes[label] = min(size, sizes.get(label, size))
    for labels, tensor in zip(found, tensors, strict=True):
        for label, size in zip(labels or (), tensor.shape, strict=False):
            if label not in sizes or size == 1:
                continue
            times, rest = divmod(size, sizes[label])
            if rest or (rule.times and times not in (1, rule.times)):
                return None
    counts = _counts(sizes, found, tensors, most)
    places = {label: (sizes[label], _spread(sizes[label], counts[label])) for label in sizes}
    return Part(rule, tuple(found), places)


def _counts(
    sizes: Mapping[Label, int],
    found: Sequence[Labels | None],
    tensors: Sequence[torch.Tensor],
    most: int,
) -> dict[Label, int]:
    """How many places of each label are kept: so many that no tensor is larger than it must be."""
    counts = dict(sizes)
    for labels, tensor in zip(found, tensors, strict=True):
        own = [
            label
            for label, size in zip(labels or (), tensor.shape, strict=False)
            if label in sizes and size > 1
        ]
        elements = tensor.numel()
        for label in own:
            elements = elements // sizes[label] * counts[label]
        for label in own:
            if elements > most:
                each = elements // counts[label]
                counts[label] = max(1, min(counts[label], most // max(each, 1)))
                elements = each * counts[label]
    return counts


def _spread(size: int, count: int) -> tuple[int, ...]:
    """Places at even distances, the last among them."""
    if count == 1:
        return (size - 1,)
    return tuple(place * (size - 1) // (count - 1) for place in range(count))


def _labels(text: str, tensor: torch.Tensor) -> Labels | None:
    """The labels of a tensor's dimensions; None where it has too few."""
    ndim = tensor.dim()
    some = next((one for one in text if one in _ANY), "")
    before, _, after = text.partition(some) if some else ("", "", text)
    plain, last = (
        tuple(None if one.isupper() else one for one in part) for part in (before, after)
    )
    if not some:
        return (None,) * (ndim - len(last)) + last[max(0, len(last) - ndim) :]
    count = ndim - len(before) - len(after)
    if count < 0:
        return None
    kinds: dict[str, Labels] = {
        "*": tuple(("*", place) for place in range(count)),
        "~": tuple(("~", count - place) for place in range(count)),
        "^": ("^", *(None,) * count)[:count],
        "+": (None,) * count,
        "@": tuple(("@", tuple(tensor.shape), place) for place in range(count)),
    }
    return plain + kinds[some] + last
