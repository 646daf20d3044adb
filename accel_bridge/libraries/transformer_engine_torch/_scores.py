"""Attention by its matrix of scores: log-sum-exp, backward pass from it, dropout drawn again.

What a kernel of the contract ``attention`` has no name for: context parallelism needs the
log-sum-exp of each part, and gradients of a part under that of the whole.

Legend: as :mod:`._attention_call`; all matrices are [b, n, sq, sk], float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor


@dataclass(frozen=True, slots=True)
class Side:
    """Queries, or keys and values: where their tokens are.

    :param form: SBHD, BSHD, THD or BHSD.
    :param longest: most tokens of a sequence: s of the matrices.
    :param cu_seqlens: int [b + 1]; None where every sequence fills its row.
    :param padded: THD with padding between sequences: where they begin.
    """

    form: str
    batch: int
    longest: int
    cu_seqlens: torch.Tensor | None = None
    padded: torch.Tensor | None = None

    def lengths(self) -> torch.Tensor | None:
        """int64 [b, 1, 1, 1]; None where every sequence fills its row."""
        if self.cu_seqlens is None:
            return None
        return self.cu_seqlens.diff().long().view(-1, 1, 1, 1)

    def hidden(self, device: torch.device) -> torch.Tensor | None:
        """bool [b, 1, 1, s], True for what is no token."""
        lengths = self.lengths()
        if lengths is None:
            return None
        return torch.arange(self.longest, device=device) >= lengths

    def rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """[b, n, s, d] of a tensor in the format; what is no token holds anything."""
        if self.form == "THD":
            index = self._index().clamp(max=tensor.shape[0] - 1)
            return tensor[index].transpose(1, 2)
        if self.form == "BHSD":
            return tensor
        return tensor.permute((1, 2, 0, 3) if self.form == "SBHD" else (0, 2, 1, 3))

    def back(self, rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """[b, n, s, d] in the format and dtype of ``like``, zeros for what is no token."""
        hidden = self.hidden(rows.device)
        if hidden is not None:
            rows = rows.masked_fill(hidden.transpose(2, 3), 0.0)
        if self.form == "THD":
            assert hidden is not None, "THD needs cu_seqlens"
            # One row more takes what is no token.
            index = torch.where(hidden[:, 0, 0], like.shape[0], self._index())
            result = rows.new_zeros(like.shape[0] + 1, rows.shape[1], rows.shape[3])
            result[index.reshape(-1)] = rows.transpose(1, 2).flatten(0, 1)
            return result[:-1].to(like.dtype)
        if self.form == "BHSD":
            return rows.to(like.dtype)
        order = (2, 0, 1, 3) if self.form == "SBHD" else (0, 2, 1, 3)
        return rows.permute(order).to(like.dtype).contiguous()

    def _index(self) -> torch.Tensor:
        """int64 [b, s]: the place of each token."""
        starts = self.cu_seqlens if self.padded is None else self.padded
        assert starts is not None, "THD needs cu_seqlens"
        place = torch.arange(self.longest, device=starts.device)
        return starts[: self.batch, None].long() + place


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of a call.

    :param causal: and ``window`` (-1 for no limit), ``bottom_right``: as the mask's names say it;
        with padding the corner is that of the real tokens.
    :param bias: [b or 1, n or 1, sq or 1, sk], added to the scaled scores.
    :param offset: [n], logit of a sink; None for the usual softmax.
    """

    queries: Side
    keys: Side
    scale: float
    causal: bool
    window: tuple[int, int]
    bottom_right: bool
    bias: torch.Tensor | None = None
    offset: torch.Tensor | None = None

    def matrix(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """Scaled scores of query [b, n, sq, d] and key [b, n, sk, d], -inf where hidden."""
        scores = query.float() @ key.float().transpose(2, 3) * self.scale
        if self.bias is not None:
            scores = scores + self.bias.float()
        hidden = self._hidden(scores)
        return scores if hidden is None else scores.masked_fill(hidden, -torch.inf)

    def _hidden(self, scores: torch.Tensor) -> torch.Tensor | None:
        sq, sk = scores.shape[2:]
        device = scores.device
        hidden = self.keys.hidden(device)
        low, high = self.window[0], 0 if self.causal else self.window[1]
        if low < 0 and high < 0:
            return hidden
        place = torch.arange(sk, device=device) - torch.arange(sq, device=device)[:, None]
        if self.bottom_right:
            of_keys, of_queries = self.keys.lengths(), self.queries.lengths()
            ends = sk if of_keys is None else of_keys
            place = place - (ends - (sq if of_queries is None else of_queries))
        for outside in (place > high if high >= 0 else None, place < -low if low >= 0 else None):
            if outside is not None:
                hidden = outside if hidden is None else hidden | outside
        return hidden

    def log_sum_exp(self, scores: torch.Tensor) -> torch.Tensor:
        """[b, n, sq, 1] of the scores, with the sink."""
        found = scores.logsumexp(-1, keepdim=True)
        if self.offset is None:
            return found
        return torch.logaddexp(found, self.offset.float().view(1, -1, 1, 1))


def _weights(scores: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """``exp(scores - lse)``; rows that see nothing are zeros."""
    return (scores - lse.masked_fill(lse == -torch.inf, 0.0)).exp()


def seed(device: torch.device) -> torch.Tensor:
    """int64 [2]: a seed drawn from the device's generator, and 0."""
    return torch.randint(2**62, (2,), device=device) * torch.tensor([1, 0], device=device)


def _kept(weights: torch.Tensor, dropout: float, state: torch.Tensor) -> torch.Tensor:
    """The factor of each weight under dropout: 0 or ``1 / (1 - dropout)``; waits for the device.

    :param state: what :func:`seed` drew.
    """
    generator = None
    if not isinstance(state, FakeTensor):
        generator = torch.Generator(weights.device)
        generator.manual_seed(int(state[0]))
    kept = torch.empty_like(weights).bernoulli_(1.0 - dropout, generator=generator)
    return kept.mul_(1.0 / (1.0 - dropout) if dropout < 1.0 else 0.0)


class Gradients(NamedTuple):
    """Of query, key and value as they are, of the bias and of the sink."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    bias: torch.Tensor | None
    offset: torch.Tensor | None


def repeated(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Keys or values [b, g, s, d] for each query head."""
    groups = rows.shape[1]
    return rows if groups == heads else rows.repeat_interleave(heads // groups, dim=1)


def forward(
    call: Scores,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout: float,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Output [b, n, sq, dv], log-sum-exp and largest score [b, n, sq, 1]; all float32."""
    rows, heads = call.queries.rows(query), query.shape[1 if call.queries.form == "BHSD" else -2]
    scores = call.matrix(rows, repeated(call.keys.rows(key), heads))
    lse = call.log_sum_exp(scores)
    weights = _weights(scores, lse)
    if dropout:
        weights = weights * _kept(weights, dropout, state)
    values = repeated(call.keys.rows(value), heads).float()
    hidden = call.keys.hidden(values.device)
    if hidden is not None:
        values = values.masked_fill(hidden.transpose(2, 3), 0.0)
    return weights @ values, lse, scores.amax(-1, keepdim=True)


def backward(
    call: Scores,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    gradient: torch.Tensor,
    lse: torch.Tensor,
    dropout: float,
    state: torch.Tensor,
) -> Gradients:
    """Gradients under the log-sum-exp [b, n, sq, 1] and the output that are given."""
    q, do = call.queries.rows(query).float(), call.queries.rows(gradient).float()
    o = call.queries.rows(output).float()
    padded = call.queries.hidden(q.device)
    if padded is not None:
        q, do, o = (one.masked_fill(padded.transpose(2, 3), 0.0) for one in (q, do, o))
    heads = q.shape[1]
    plain_k, plain_v = call.keys.rows(key).float(), call.keys.rows(value).float()
    hidden = call.keys.hidden(q.device)
    if hidden is not None:
        plain_k, plain_v = (
            one.masked_fill(hidden.transpose(2, 3), 0.0) for one in (plain_k, plain_v)
        )
    k, v = repeated(plain_k, heads), repeated(plain_v, heads)
    weights = _weights(call.matrix(q, k), lse)
    inner = do @ v.transpose(2, 3)
    dropped = weights
    if dropout:
        kept = _kept(weights, dropout, state)
        inner, dropped = inner * kept, weights * kept
    outer = (do * o).sum(-1, keepdim=True)
    of_scores = weights * (inner - outer)
    of_bias = None
    if call.bias is not None:
        of_bias = of_scores.sum_to_size(call.bias.shape).to(call.bias.dtype)
    of_offset = None
    if call.offset is not None:
        share = (call.offset.float().view(1, -1, 1, 1) - lse).exp()
        of_offset = -(share * outer).sum((0, 2, 3))

    def of_groups(rows: torch.Tensor) -> torch.Tensor:
        grouped: torch.Tensor = rows.unflatten(1, (plain_k.shape[1], -1))
        return grouped.sum(2)

    return Gradients(
        call.queries.back(of_scores @ k * call.scale, query),
        call.keys.back(of_groups(of_scores.transpose(2, 3) @ q * call.scale), key),
        call.keys.back(of_groups(dropped.transpose(2, 3) @ do), value),
        of_bias,
        of_offset,
    )
