// Operators that torch_npu reaches through the older interface: conversions between formats, and
// custom operators without an aclnn function on this chip.
//
// What each computes is in op-plugin's documents (docs/zh/custom_APIs/torch_npu/torch_npu-OPERATOR.md);
// the order of inputs, outputs and attributes is that of its calls (op_plugin/ops/aclops).
#include "operator.h"

using namespace emulated;
using at::Tensor;

namespace {

Tensor sigmoid_product(const Tensor& x, double scale) { return x * at::sigmoid(x * scale); }

// ------------------------------------------------------------------------------- convolutions

// Of a list for NCHW or NCDHW, the numbers of the spatial dimensions; of pads, one of each pair.
std::vector<int64_t> spatial(const std::vector<int64_t>& all) { return {all.begin() + 2, all.end()}; }
std::vector<int64_t> one_side(const std::vector<int64_t>& pairs) {
  std::vector<int64_t> result;
  for (size_t i = 0; i < pairs.size(); i += 2) {
    require(pairs[i] == pairs[i + 1], "padding must be the same on both sides");
    result.push_back(pairs[i]);
  }
  return result;
}

// The input, its filter and the bias begin at `first`.
Tensor convolution(const Legacy& call, size_t first, bool transposed) {
  auto& in = call.in;
  auto strides = spatial(call.integers("strides"));
  std::vector<int64_t> extra(strides.size(), 0);
  if (auto given = call.integers("output_padding"); !given.empty()) extra = spatial(given);
  return at::convolution(wide(in[first]), wide(in[first + 1]),
                         in.size() > first + 2 ? wide_optional(in[first + 2]) : std::nullopt, strides,
                         one_side(call.integers("pads")), spatial(call.integers("dilations")), transposed, extra,
                         call.attributes.numbers.count("groups") ? static_cast<int64_t>(call.number("groups")) : 1);
}

// --------------------------------------------------------------------------------------- boxes

struct Boxes {
  Tensor left, top, right, bottom, width, height;
};

// [4, n]: centers and sizes if `centered`, else corners.
Boxes boxes(const Tensor& x, bool centered) {
  Tensor a = x[0], b = x[1], c = x[2], d = x[3];
  if (!centered) return {a, b, c, d, c - a, d - b};
  return {a - c / 2, b - d / 2, a + c / 2, b + d / 2, c, d};
}

// Of each box with its counterpart or, crossed, of all pairs: [gt, box].
struct Pairs {
  Boxes box, other;
  Tensor overlap, united, hull_width, hull_height;
};

Pairs pairs(const Legacy& call) {
  bool centered = call.number("trans") != 0, crossed = call.number("is_cross") != 0;
  constexpr double kEpsilon = 1e-10;
  Boxes p = boxes(wide(call.in[0]), centered), g = boxes(wide(call.in[1]), centered);
  if (crossed) {
    for (Tensor* x : {&g.left, &g.top, &g.right, &g.bottom, &g.width, &g.height}) *x = x->unsqueeze(1);
  }
  Tensor inter = (at::minimum(p.right, g.right) - at::maximum(p.left, g.left)).clamp_min(0) *
                 (at::minimum(p.bottom, g.bottom) - at::maximum(p.top, g.top)).clamp_min(0);
  bool of_foreground = call.text("mode") == "iof";
  Tensor united = (of_foreground ? g.width * g.height : p.width * p.height + g.width * g.height - inter) + kEpsilon;
  return {p, g, inter, united, at::maximum(p.right, g.right) - at::minimum(p.left, g.left),
          at::maximum(p.bottom, g.bottom) - at::minimum(p.top, g.top)};
}

// IoU less the squared distance of the centers by that of the hull's corners.
Tensor distance_iou(const Pairs& x) {
  Tensor across = (x.box.left + x.box.right - x.other.left - x.other.right) / 2;
  Tensor down = (x.box.top + x.box.bottom - x.other.top - x.other.bottom) / 2;
  return x.overlap / x.united -
         (across.square() + down.square()) / (x.hull_width.square() + x.hull_height.square() + 1e-10);
}

// ------------------------------------------------------------------------------ recurrent cells

// One direction of an LSTM over [time, batch, input]; `project(x, h)` gives the four gates' sums.
void lstm(const Legacy& call, const std::function<Tensor(const Tensor&, const Tensor&)>& project, In first_h, In first_c) {
  const Tensor& x = call.in[0];
  require(call.text("gate_order") == "ifjo" || call.text("gate_order") == "ifco" || call.text("gate_order") == "ijfo",
          "gate order " + call.text("gate_order"));
  bool i_before_f = call.text("gate_order") == "ijfo";
  bool reversed = call.text("direction") == "REDIRECTIONAL";
  Tensor h = wide(first_h)[0], c = wide(first_c)[0];
  for (int64_t step = 0; step < x.size(0); step++) {
    int64_t t = reversed ? x.size(0) - 1 - step : step;
    auto gates = project(wide(x)[t], h).chunk(4, -1);
    Tensor i = gates[0].sigmoid(), f = gates[i_before_f ? 2 : 1], j = gates[i_before_f ? 1 : 2].tanh();
    f = (f + call.number("forget_bias")).sigmoid();
    Tensor o = gates[3].sigmoid();
    c = f * c + i * j;
    Tensor bent = c.tanh();
    h = o * bent;
    Tensor results[] = {h, h, c, i, j, f, o, bent};
    for (size_t k = 0; k < call.out.size(); k++) (*call.out[k])[t].copy_(results[k]);
  }
}

// A GRU whose reset gate is applied after the GEMM (gates in the order r, z, h).
void gru(const Legacy& call) {
  auto& in = call.in;
  require(call.text("gate_order") == "rzh" && call.number("reset_after") != 0, "only gates rzh with reset_after");
  Tensor x = wide(in[0]), h = wide(in[6])[0];
  for (int64_t t = 0; t < x.size(0); t++) {
    auto from_x = at::addmm(wide(in[3]), x[t], wide(in[1])).chunk(3, -1);
    auto from_h = at::addmm(wide(in[4]), h, wide(in[2])).chunk(3, -1);
    Tensor r = (from_x[0] + from_h[0]).sigmoid(), z = (from_x[1] + from_h[1]).sigmoid();
    Tensor n = (from_x[2] + r * from_h[2]).tanh();
    h = (1 - z) * n + z * h;
    Tensor results[] = {h, h, z, r, n, from_h[2]};
    for (size_t k = 0; k < call.out.size(); k++) (*call.out[k])[t].copy_(results[k]);
  }
}

// ---------------------------------------------------------------------------- regions of images

// The mean of sample x sample points in each of height x width cells of every region, by bilinear
// interpolation between the pixels around.
Tensor roi_align(const Tensor& image, const Tensor& regions, double scale, int64_t height, int64_t width, int64_t sample,
                 int64_t end_mode) {
  require(sample > 0, "sample_num must be positive");
  require(end_mode == 0 || end_mode == 1, "roi_end_mode must be 0 or 1");
  int64_t rows = image.size(2), columns = image.size(3);
  Tensor result = at::zeros({regions.size(0), image.size(1), height, width});
  // Points along one axis, and the pixels on both sides with their weights.
  auto axis = [&](double first, double last, int64_t cells, int64_t pixels) {
    double length = std::max(last - first, 1.0), cell = length / static_cast<double>(cells);
    Tensor place = first + cell * (at::arange(cells * sample) + 0.5) / static_cast<double>(sample);
    Tensor inside = at::logical_and(place >= -1, place <= static_cast<double>(pixels));
    place = place.clamp(0, static_cast<double>(pixels - 1));
    Tensor before = place.floor(), share = place - before;
    Tensor weights = at::zeros({cells * sample, pixels});
    Tensor low = before.to(at::kLong), high = (low + 1).clamp_max(pixels - 1);
    weights.scatter_add_(1, low.unsqueeze(1), ((1 - share) * inside).unsqueeze(1));
    weights.scatter_add_(1, high.unsqueeze(1), (share * inside).unsqueeze(1));
    return weights.view({cells, sample, pixels}).mean(1);
  };
  for (int64_t r = 0; r < regions.size(0); r++) {
    auto corner = [&](int k) { return regions[r][k].item<double>(); };
    Tensor down = axis(corner(2) * scale, (corner(4) + end_mode) * scale, height, rows);
    Tensor across = axis(corner(1) * scale, (corner(3) + end_mode) * scale, width, columns);
    result[r] = at::matmul(at::matmul(down, image[static_cast<int64_t>(corner(0))]), across.t());
  }
  return result;
}

// The grid cells that hold the center of a box.
Tensor response_flags(const Legacy& call) {
  auto size = call.integers("featmap_size"), stride = call.integers("strides");
  Tensor box = wide(call.in[0]);
  Tensor x = ((box.select(1, 0) + box.select(1, 2)) * 0.5 / stride[0]).floor().to(at::kLong);
  Tensor y = ((box.select(1, 1) + box.select(1, 3)) * 0.5 / stride[1]).floor().to(at::kLong);
  Tensor flags = at::zeros({size[0] * size[1]}, at::kByte);
  flags.index_fill_(0, y * size[1] + x, 1);
  return flags.repeat_interleave(static_cast<int64_t>(call.number("num_base_anchors")));
}

Tensor sliced(const Tensor& x, const std::vector<int64_t>& first, const std::vector<int64_t>& last,
              const std::vector<int64_t>& step) {
  Tensor result = x;
  for (size_t dim = 0; dim < first.size(); dim++) result = result.slice(dim, first[dim], last[dim], step[dim]);
  return result;
}

Tensor slice_of(const Legacy& call) {
  auto first = call.integers(1), count = call.integers(2), last = first;
  for (size_t i = 0; i < last.size(); i++) last[i] += count[i];
  return sliced(call.in[0], first, last, std::vector<int64_t>(first.size(), 1));
}

Tensor padded(const Tensor& x, const std::vector<int64_t>& pairs) {
  std::vector<int64_t> reversed;  // torch counts from the last dimension
  for (size_t i = pairs.size(); i > 0; i -= 2) {
    reversed.push_back(pairs[i - 2]);
    reversed.push_back(pairs[i - 1]);
  }
  return at::constant_pad_nd(x, reversed);
}

Tensor unpacked_signs(const Tensor& bytes) {
  Tensor bits = at::bitwise_and(bytes.unsqueeze(1), at::bitwise_left_shift(at::ones({8}, at::kByte), at::arange(8, at::kByte)));
  return bits.ne(0).to(at::kFloat) * 2 - 1;
}

Tensor gemm(const Tensor& a, const Tensor& b, bool turn_a, bool turn_b) {
  return at::matmul(turn_a ? wide(a).transpose(-2, -1) : wide(a), turn_b ? wide(b).transpose(-2, -1) : wide(b));
}

void extreme(const Legacy& call, const std::tuple<Tensor, Tensor>& found) {
  call.out[0] = std::get<1>(found);
  call.out[1] = std::get<0>(found);
}

}  // namespace

ACLOP(Identity, out[0] = *in[0])
ACLOP(Fill, out[0]->fill_(in[1]->reshape({})))
ACLOP(ConcatD, std::vector<Tensor> parts(in.begin(), in.end()); out[0] = at::cat(parts, static_cast<int64_t>(call.number("concat_dim"))))
ACLOP(BroadcastTo, out[0] = in[0]->expand(out[0]->sizes()))
ACLOP(Transpose, out[0] = in[0]->permute(call.integers(1)))
ACLOP(ConfusionTransposeD,
      auto order = call.integers("perm"); auto shape = call.integers("shape");
      out[0] = call.number("transpose_first") != 0 ? in[0]->permute(order).reshape(shape)
                                                   : in[0]->reshape(shape).permute(order))
ACLOP(Slice, out[0] = slice_of(call))
ACLOP(StridedSlice, out[0] = sliced(in[0], call.integers(1), call.integers(2), call.integers(3)))
ACLOP(AsStrided, out[0] = in[0]->as_strided(call.integers(1), call.integers(2), call.integers(3).at(0)))
ACLOP(Pad, out[0] = padded(in[0], call.integers(1)))
ACLOP(OneHotD,
      auto hit = in[0]->to(at::kLong).unsqueeze(-1) == at::arange(static_cast<int64_t>(call.number("depth")));
      out[0] = at::where(hit, *in[1], *in[2]))
ACLOP(SortV2, out[0] = std::get<0>(in[0]->sort(static_cast<int64_t>(call.number("axis")), call.number("descending") != 0)))
ACLOP(ArgMaxWithValue,
      extreme(call, in[0]->max(static_cast<int64_t>(call.number("dimension")), call.number("keep_dims") != 0)))
ACLOP(ArgMinWithValue,
      extreme(call, in[0]->min(static_cast<int64_t>(call.number("dimension")), call.number("keep_dims") != 0)))
ACLOP(SignBitsUnpack, out[0] = unpacked_signs(in[0]))

// Of tensors in an internal format, for which torch_npu does not call aclnn functions.
ACLOP(Add, out[0] = wide(in[0]) + wide(in[1]))
ACLOP(Mul, out[0] = wide(in[0]) * wide(in[1]))

ACLOP(Mish, out[0] = at::mish(wide(in[0])))
ACLOP(MishGrad, out[0] = at::mish_backward(wide(in[0]), wide(in[1])))
ACLOP(Swish, out[0] = sigmoid_product(wide(in[0]), call.number("scale", 1)))
ACLOP(SwishGrad, out[0] = at::silu_backward(wide(in[0]), wide(in[1])))
ACLOP(SoftmaxCrossEntropyWithLogits,
      auto logits = at::log_softmax(wide(in[0]), 1); auto label = wide(in[1]);
      out[0] = -(label * logits).sum(1); out[1] = logits.exp() * label.sum(1, true) - label)

ACLOP(LayerNormV3,
      auto [y, mean, rstd] = at::native_layer_norm(
          wide(in[0]), in[0]->sizes().slice(static_cast<size_t>(call.number("begin_norm_axis"))), wide(in[1]), wide(in[2]),
          call.number("epsilon"));
      out[0] = y; out[1] = mean; out[2] = rstd)

ACLOP(BatchMatMul, out[0] = gemm(in[0], in[1], call.number("adj_x1") != 0, call.number("adj_x2") != 0))
ACLOP(Conv2D, out[0] = convolution(call, 0, false))
ACLOP(Conv3D, out[0] = convolution(call, 0, false))
ACLOP(Conv2DTranspose, out[0] = convolution(call, 1, true))
ACLOP(Conv3DTranspose, out[0] = convolution(call, 1, true))

ACLOP(DynamicRNN,
      Tensor weight = wide(in[1]); Tensor bias = wide(in[2]);
      lstm(call, [&](const Tensor& x, const Tensor& h) { return at::addmm(bias, at::cat({x, h}, 1), weight); }, in[4], in[5]))
ACLOP(DynamicRNNV2,
      Tensor from_x = wide(in[1]); Tensor from_h = wide(in[2]);
      Tensor bias = in[3] ? wide(in[3]) : at::zeros({from_x.size(1)});
      lstm(call, [&](const Tensor& x, const Tensor& h) { return at::addmm(bias, x, from_x) + at::mm(h, from_h); }, in[5], in[6]))
ACLOP(DynamicGRUV2, gru(call))

// One byte for each element, in contrast to the mask of bits of torch_npu's own dropout.
ACLOP(DropOutGenMaskV3, out[0] = at::bernoulli(at::full(out[0]->sizes(), in[1]->to(at::kFloat).reshape({}).item<double>())))
ACLOP(AxpyWithSoftmaxAndDropOutDoMask,
      double keep = call.number("input_keep_prob", 1);
      Tensor p = at::softmax(wide(in[0]) + wide(in[1]) * call.number("alpha", 1), call.integers("axis").at(0));
      out[0] = p; out[1] = p * in[2]->narrow(0, 0, p.numel()).view(p.sizes()) / keep)

ACLOP(DIoU, out[0] = distance_iou(pairs(call)))
ACLOP(GIoU,
      auto x = pairs(call); auto hull = x.hull_width * x.hull_height + 1e-10;
      out[0] = x.overlap / x.united - (hull - x.united) / hull)
ACLOP(CIoU,
      auto x = pairs(call);
      Tensor turn = at::atan(x.other.width / x.other.height) - at::atan(x.box.width / x.box.height);
      Tensor v = turn.square() * (4 / (M_PI * M_PI));
      out[0] = distance_iou(x) - v * v / (1 + 1e-10 - x.overlap / x.united + v);
      out[1] = turn)
// Of corners [n, 4], with the other order of the results: [gt, box].
ACLOP(Iou,
      auto p = boxes(wide(in[0]).t(), false); auto g = boxes(wide(in[1]).t().unsqueeze(2), false);
      auto inter = (at::minimum(p.right, g.right) - at::maximum(p.left, g.left)).clamp_min(0) *
                   (at::minimum(p.bottom, g.bottom) - at::maximum(p.top, g.top)).clamp_min(0);
      auto area = call.text("mode") == "iof" ? g.width * g.height : p.width * p.height + g.width * g.height - inter;
      out[0] = inter / (area + call.number("eps")))
ACLOP(AnchorResponseFlags, out[0] = response_flags(call))
ACLOP(ROIAlign,
      out[0] = roi_align(wide(in[0]), wide(in[1]), call.number("spatial_scale"), call.number("pooled_height"),
                         call.number("pooled_width"), call.number("sample_num"), call.number("roi_end_mode")))

// The processor's flag of overflow. Where INF and NaN are kept (the default), it is never set.
ACLOP(NPUAllocFloatStatus, out[0]->zero_())
ACLOP(NPUGetFloatStatusV2, out[0]->fill_(overflowed ? 1 : 0))
ACLOP(NPUClearFloatStatusV2, overflowed = false)


// Of each batch row, the elements from its index on along an axis.
ACLNN(InplaceScatterUpdate, (Out data, In indices, In updates, int64_t axis),
      require(indices->dim() == 1 && indices->size(0) == data->size(0), "indices must be 1-D, one for each batch row");
      for (int64_t row = 0; row < indices->size(0); row++) {
        auto part = (*updates)[row]; int64_t dim = (axis < 0 ? axis + data->dim() : axis) - 1;
        (*data)[row].narrow(dim, (*indices)[row].item<int64_t>(), part.size(dim)).copy_(part);
      })
