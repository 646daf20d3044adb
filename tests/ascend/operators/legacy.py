"""Operators of the older interface (aclop), and tensors in CANN's internal formats."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch_npu
from cases import Case, beside, rand
from torch.nn import functional

#: ACL_FORMAT_FRACTAL_NZ; ND is 2.
NZ = 29


def formats(shape: tuple[int, ...], dtype: torch.dtype) -> Case:
    """To NZ and back: what is computed from it, its format, and its padded size."""

    def case(device: str) -> Any:
        x = rand(device, *shape, dtype=dtype)
        if device == "npu":
            torch.npu.config.allow_internal_format = True
            y = torch_npu.npu_format_cast(x, NZ)
            back = torch_npu.npu_format_cast(y, 2)
            kind = torch_npu.get_npu_format(y) * 100 + torch_npu.get_npu_format(back)
            size = y.untyped_storage().nbytes()
            both = torch.cat((y, y), -1)
            torch.npu.config.allow_internal_format = False
        else:
            y, back, both, kind = x, x, torch.cat((x, x), -1), NZ * 100 + 2
            rows, columns = (-(-length // 16) * 16 for length in shape[-2:])
            size = math.prod(shape[:-2]) * rows * columns * dtype.itemsize
        return y, back, both, y.transpose(-1, -2) + 1, y * 2, torch.tensor([kind, size])

    return case


def shapes(device: str) -> Any:
    x, narrow = rand(device, 4, 6, 8), rand(device, 1, 6)
    labels = torch.tensor([[1, 2], [0, 3]]).to(device)
    if device == "npu":
        return (
            torch_npu.npu_broadcast(narrow, (5, 6)),
            torch_npu.npu_transpose(x, (2, 0, 1)),
            torch_npu.npu_slice(x, [1, 2, 0], [2, 3, 8]),
            torch_npu.npu_pad(narrow, (1, 2, 3, 4)),
            torch_npu.npu_one_hot(labels, -1, 5, 2, -1),
            torch_npu.npu_sort_v2(x, dim=-1, descending=True),
            *torch_npu.npu_max(x, 1),
            *torch_npu.npu_min(x, 2, True),
            torch_npu.npu_stride_copy(x, (3, 2), (8, 1), 5),
        )
    hot = functional.one_hot(labels, 5).float() * 3 - 1
    most, least = x.max(1), x.min(2, True)
    return (
        narrow.expand(5, 6),
        x.permute(2, 0, 1),
        x[1:3, 2:5],
        functional.pad(narrow, (3, 4, 1, 2)),
        hot,
        x.sort(-1, descending=True)[0],
        *(most[0], most[1].int()),
        *(least[0], least[1].int()),
        x.as_strided((3, 2), (8, 1), 5),
    )


def signs(device: str) -> Any:
    x = torch.tensor([0, 1, 130, 255], dtype=torch.uint8).to(device)
    if device == "npu":
        return torch_npu.npu_sign_bits_unpack(x, 2, torch.float32)
    bits = torch.tensor([[b >> i & 1 for i in range(8)] for b in (0, 1, 130, 255)])
    return (bits.float() * 2 - 1).reshape(2, 16)


def gemms(device: str) -> Any:
    a, b = rand(device, 3, 4, 5), rand(device, 3, 5, 6)
    image, kernel, bias = rand(device, 2, 3, 7, 7), rand(device, 4, 3, 3, 3), rand(device, 4)
    small, turned = rand(device, 2, 4, 5, 5), rand(device, 3)
    volume, block = rand(device, 1, 2, 5, 5, 5), rand(device, 3, 2, 3, 3, 3)
    if device == "npu":
        return (
            torch_npu.npu_bmmV2(a, b, []),
            torch_npu.npu_conv2d(image, kernel, bias, [2, 1], [1, 0], [1, 1], 1),
            torch_npu.npu_conv_transpose2d(
                small, kernel, turned, [1, 1], [0, 0], [2, 2], [1, 1], 1
            ),
            torch_npu.npu_conv3d(volume, block, None, [1, 1, 1], [1, 1, 1], [1, 1, 1], 1),
        )
    return (
        a @ b,
        functional.conv2d(image, kernel, bias, (2, 1), (1, 0)),
        functional.conv_transpose2d(small, kernel, turned, 2, 1),
        functional.conv3d(volume, block, None, 1, 1),
    )


def views(device: str) -> Any:
    x = rand(device, 4, 6, 8)
    small, kernel, bias = rand(device, 1, 3, 4, 4, 4), rand(device, 3, 2, 3, 3, 3), rand(device, 2)
    box, truth = torch.tensor([[0, 0, 10, 10.0]]), torch.tensor([[0, 5, 10, 15.0], [0, 0, 10, 10]])
    if device == "npu":
        return (
            torch_npu.npu_indexing(x, [0, 1, 0], [4, 5, 8], [1, 2, 3]),
            torch_npu.npu_confusion_transpose(x, (0, 2, 1), (8, 24), True),
            torch_npu.npu_confusion_transpose(x, (1, 0), (24, 8), False),
            torch_npu.npu_convolution_transpose(
                *(small, kernel, bias, [1, 1, 1], [0, 0, 0], [2, 2, 2], [1, 1, 1], 1)
            ),
            torch_npu.npu_ptiou(box.npu(), truth.npu(), 0),
        )
    return (
        x[0:4, 1:5:2, 0:8:3],
        x.permute(0, 2, 1).reshape(8, 24),
        x.reshape(24, 8).permute(1, 0),
        functional.conv_transpose3d(small, kernel, bias, 2, 1),
        # 0.01 is added to the union; torch_npu computes it in half precision.
        torch.tensor([[50 / 150.01], [100 / 100.01]]).half().float(),
    )


def scatter_update(device: str) -> Any:
    data, new = rand(device, 2, 3, 6, 4), rand(device, 2, 3, 2, 4)
    if device == "npu":
        changed = torch_npu.scatter_update(data, torch.tensor([1, 3]).npu(), new, -2)
        return changed, torch_npu.scatter_update_(data, torch.tensor([4, 0]).npu(), new, -2)
    first, second = data.clone(), data.clone()
    first[0, :, 1:3], first[1, :, 3:5] = new[0], new[1]
    second[0, :, 4:6], second[1, :, 0:2] = new[0], new[1]
    return first, second


def recurrent(device: str) -> Any:
    x, h, c = rand(device, 3, 2, 4), rand(device, 1, 2, 5), rand(device, 1, 2, 5)
    w, u, b = rand(device, 4, 20), rand(device, 5, 20), rand(device, 20)
    if device == "npu":
        lengths = torch.tensor([3, 3], dtype=torch.int32).npu()
        weight = torch.cat((w, u))
        y = torch_npu.npu_lstm(
            *(x, weight, b, lengths, h, c, True, 1, 0.0, True, False, False, False, False)
        )[:3]
        cell = torch_npu.npu_lstm_cell(x[0], w, u, h[0], c[0], b, torch.zeros_like(b))[1:3]
        gru = torch_npu.npu_gru(
            *(x, h, w[:, :15], u[:, :15], b[:15], b[5:], lengths, True, 1, 0.0, True, False, False)
        )
        return y[0], y[1][-1], y[2][-1], *cell, gru[0], gru[1][-1]
    flat = (w.t().contiguous(), u.t().contiguous(), b, torch.zeros_like(b))
    out, hn, cn = torch._VF.lstm(x, (h, c), flat, True, 1, 0.0, True, False, False)
    flat_gru = (w[:, :15].t().contiguous(), u[:, :15].t().contiguous(), b[:15], b[5:])
    gru_out, gru_h = torch._VF.gru(x, h, flat_gru, True, 1, 0.0, True, False, False)
    cell = torch._VF.lstm_cell(x[0], (h[0], c[0]), *flat)
    return out, hn[0], cn[0], *cell, gru_out, gru_h[0]


def corners(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x[0] - x[2] / 2, x[1] - x[3] / 2, x[0] + x[2] / 2, x[1] + x[3] / 2


def boxes(device: str) -> Any:
    box, truth = rand(device, 4, 9).abs() * 3 + 0.1, rand(device, 4, 9).abs() * 3 + 0.1
    if device == "npu":
        found = [
            operator(box, truth, trans=True, is_cross=False, mode=0).reshape(-1)
            for operator in (torch_npu.npu_giou, torch_npu.npu_diou, torch_npu.npu_ciou)
        ]
        return tuple(found)
    (left, t, r, b), (gl, gt, gr, gb) = corners(box), corners(truth)
    inter = (r.minimum(gr) - left.maximum(gl)).clamp_min(0)
    inter = inter * (b.minimum(gb) - t.maximum(gt)).clamp_min(0)
    union = box[2] * box[3] + truth[2] * truth[3] - inter
    wide, high = r.maximum(gr) - left.minimum(gl), b.maximum(gb) - t.minimum(gt)
    giou = inter / union - (wide * high - union) / (wide * high)
    diou = inter / union - (box[:2] - truth[:2]).square().sum(0) / (wide**2 + high**2)
    v = 4 / math.pi**2 * ((truth[2] / truth[3]).atan() - (box[2] / box[3]).atan()) ** 2
    ciou = diou - v * v / (1 - inter / union + v)
    return giou, diou, ciou


def regions(device: str) -> Any:
    image = torch.arange(1.0, 37.0).view(1, 1, 6, 6).to(device)
    boxes = torch.tensor([[0, 0, 8, 8], [8, 0, 16, 8.0]]).to(device)
    if device == "npu":
        roi = torch.tensor([[0, -2.0, -2.0, 22.0, 22.0]]).npu()
        return (
            torch_npu.npu_roi_align(image, roi, 0.25, 3, 3, 2, 0),
            torch_npu.npu_anchor_response_flags(boxes, [2, 2], [8, 8], 2),
        )
    # The first from torch_npu's own test.
    rows = torch.tensor([4.5, 16.5, 28.5])[:, None] + torch.tensor([0.0, 2, 4])
    return rows[None, None], torch.tensor([1, 1, 1, 1, 0, 0, 0, 0], dtype=torch.uint8)


label = torch.linspace(-2, 2, 30).view(6, 5).softmax(1)
CASES: dict[str, Case] = {
    "formats-aligned": formats((32, 48), torch.float16),
    "formats-padded": formats((3, 15, 17), torch.float32),
    "legacy-shapes": shapes,
    "legacy-activations": beside(
        lambda x: (torch_npu.npu_mish(x), torch_npu.npu_silu(x)),
        lambda x: (functional.mish(x), functional.silu(x)),
        (5, 7),
    ),
    "legacy-losses": beside(
        lambda x: torch_npu.npu_softmax_cross_entropy_with_logits(x, label.to(x.device)),
        lambda x: -(label * functional.log_softmax(x, 1)).sum(1),
        (6, 5),
    ),
    "legacy-signs": signs,
    "legacy-views": views,
    "legacy-gemms": gemms,
    "legacy-dropout-softmax": beside(
        lambda x, other: torch_npu.npu_dropout_with_add_softmax(other, x, 0.5, 0.0, -1)[1:],
        lambda x, other: [(x + 0.5 * other).softmax(-1)] * 2,
        *((2, 3, 4, 8), (2, 3, 4, 8)),
        gradients=False,
    ),
    "legacy-layer-norm": beside(
        lambda *given: torch_npu.npu_layer_norm_eval(given[0], [6], *given[1:], 1e-5),
        lambda *given: functional.layer_norm(given[0], (6,), *given[1:], 1e-5),
        *((4, 6), (6,), (6,)),
        gradients=False,
    ),
    "legacy-scatter-update": scatter_update,
    "legacy-recurrent": recurrent,
    "legacy-boxes": boxes,
    "legacy-regions": regions,
}
