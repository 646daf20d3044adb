// Activations, norms and rotary embeddings, forward and backward. Half precisions are
// computed in float32 and rounded once, as the kernels' documents say.
#include <algorithm>

#include "operator.h"

using namespace emulated;

namespace {

// The last half with its sign changed, then the first half (mode 0); or the same in pairs (mode 1).
at::Tensor rotate(const at::Tensor& x, int64_t mode) {
  if (mode == 0) {
    auto half = x.chunk(2, -1);
    return at::cat({-half[1], half[0]}, -1);
  }
  auto pairs = x.unflatten(-1, {-1, 2});
  return at::stack({-pairs.select(-1, 1), pairs.select(-1, 0)}, -1).flatten(-2);
}
// Its transpose.
at::Tensor rotate_back(const at::Tensor& x, int64_t mode) { return -rotate(x, mode); }

void look_at_rotary(const at::Tensor& x, const at::Tensor& cosine, int64_t mode) {
  Limits limits{"npu_rotary_mul"};
  limits("dtype", x);
  require(mode == 0 || mode == 1, "rotary mode must be 0 (half) or 1 (interleave)");
  limits("size", x.size(-1));
  // Batch and heads are where the angles are the same for all.
  int64_t product = 1;
  for (int64_t dim = 0; dim + 1 < x.dim() && x.dim() == cosine.dim(); dim++) {
    if (cosine.size(dim) != 1) continue;
    product *= x.size(dim);
    if (mode == 0) limits("side", x.size(dim));
  }
  if (mode == 1) limits("product", product);
}

void check_norm(const at::Tensor& x, const at::Tensor& weight) {
  auto type = x.scalar_type(), other = weight.scalar_type();
  require(other == type || (other == at::kFloat && type != at::kDouble), "gamma must be float32 or have the input's dtype");
}

void check_softmax(const at::Tensor& x) {
  Limits limits{"npu_scaled_masked_softmax"};
  require(x.dim() == 4, "scaled_masked_softmax takes 4 dimensions");
  limits("dtype", x);
  for (int64_t dim : {2, 3}) limits("side", x.size(dim));
}

at::Tensor softmax_mask(const at::Tensor& x, In mask, bool triangle) {
  if (triangle) return at::ones({x.size(2), x.size(3)}, at::kBool).triu(1);
  return mask->to(at::kBool);
}

void masked_softmax(In self, In mask, double scale, bool triangle, Out out) {
  check_softmax(self);
  out = at::softmax((wide(self) * scale).masked_fill(softmax_mask(self, mask, triangle), -10000.0), -1);
}

void masked_softmax_backward(In grad, In result, In mask, double scale, bool triangle, Out out) {
  check_softmax(result);
  auto g = wide(grad), p = wide(result);
  out = (scale * p * (g - (g * p).sum(-1, true))).masked_fill(softmax_mask(result, mask, triangle), 0.0);
}

}  // namespace

// Always the tanh form (op-plugin, torch_npu-npu_gelu.md); V2 takes the form.
ACLNN(Gelu, (In self, Out out), out = at::gelu(wide(self), "tanh"))
ACLNN(GeluBackward, (In grad, In self, Out out), out = at::gelu_backward(wide(grad), wide(self), "tanh"))
ACLNN(GeluV2, (In self, int64_t tanh, Out out), out = at::gelu(wide(self), tanh ? "tanh" : "none"))
ACLNN_WITH(GeluBackwardV2, (In grad, In self, const char* kind, Out out), (=, kind = std::string(kind)),
           out = at::gelu_backward(wide(grad), wide(self), kind))
// gelu(first half) * second half
ACLNN_WITH(GeluMul, (In self, const char* kind, Out out), (=, kind = std::string(kind)),
           auto half = wide(self).chunk(2, -1); out = at::gelu(half[0], kind) * half[1])
// x * sigmoid(1.702 x)
ACLNN(FastGelu, (In self, Out out), auto x = wide(self); out = x * at::sigmoid(1.702 * x))
ACLNN(FastGeluBackward, (In grad, In self, Out out), auto x = wide(self); auto s = at::sigmoid(1.702 * x);
      out = wide(grad) * (s + 1.702 * x * s * (1 - s)))
ACLNN(Silu, (In self, Out out), out = at::silu(wide(self)))
ACLNN(SiluBackward, (In grad, In self, Out out), out = at::silu_backward(wide(grad), wide(self)))
ACLNN(SigmoidBackward, (In grad, In result, Out out), out = at::sigmoid_backward(wide(grad), wide(result)))
ACLNN(TanhBackward, (In grad, In result, Out out), out = at::tanh_backward(wide(grad), wide(result)))
ACLNN(ThresholdBackward, (In grad, In self, Number threshold, Out out), out = at::threshold_backward(grad, self, *threshold))
ACLNN(Softplus, (In self, Number beta, Number threshold, Out out), out = at::softplus(self, *beta, *threshold))
ACLNN(SoftplusBackward, (In grad, In self, Number beta, Number threshold, Out out),
      out = at::softplus_backward(grad, self, *beta, *threshold))
ACLNN(LeakyRelu, (In self, Number slope, Out out), out = at::leaky_relu(self, *slope))
ACLNN(InplaceLeakyRelu, (Out self, Number slope), self = at::leaky_relu(self, *slope))
ACLNN(LeakyReluBackward, (In grad, In self, Number slope, bool is_result, Out out),
      out = at::leaky_relu_backward(grad, self, *slope, is_result))
ACLNN(Hardtanh, (In self, Number low, Number high, Out out), out = at::hardtanh(self, *low, *high))
ACLNN(HardtanhBackward, (In grad, In self, Number low, Number high, Out out),
      out = at::hardtanh_backward(grad, self, *low, *high))
ACLNN(Threshold, (In self, Number threshold, Number value, Out out), out = at::threshold(self, *threshold, *value))
ACLNN(InplaceThreshold, (Out self, Number threshold, Number value), self = at::threshold(self, *threshold, *value))
ACLNN(Glu, (In self, int64_t dim, Out out), out = at::glu(wide(self), dim))
ACLNN(GluBackward, (In grad, In self, int64_t dim, Out out), out = at::glu_backward(wide(grad), wide(self), dim))

// silu(first half) * second half
ACLNN_LIMITED(SwiGlu, (In self, int64_t dim, Out out),
      Limits{"npu_swiglu"}("dtype", *self); if (only_looking()) return;
      auto half = wide(self).chunk(2, dim); out = at::silu(half[0]) * half[1])
ACLNN(SwiGluGrad, (In grad, In self, int64_t dim, Out out),
      auto half = wide(self).chunk(2, dim); auto g = wide(grad);
      out = at::cat({at::silu_backward(g * half[1], half[0]), g * at::silu(half[0])}, dim))

ACLNN(Softmax, (In self, int64_t dim, Out out), out = at::softmax(wide(self), dim))
ACLNN(SoftmaxBackward, (In grad, In result, int64_t dim, Out out),
      auto g = wide(grad); auto p = wide(result); out = p * (g - (g * p).sum(dim, true)))
ACLNN(LogSoftmax, (In self, int64_t dim, Out out), out = at::log_softmax(wide(self), dim))
ACLNN(LogSoftmaxBackward, (In grad, In result, int64_t dim, Out out),
      auto g = wide(grad); out = g - wide(result).exp() * g.sum(dim, true))
// On this chip torch_npu calls them through the older interface.
ACLNN(ScaledMaskedSoftmax, (In self, In mask, double scale, bool triangle, Out out),
      masked_softmax(self, mask, scale, triangle, out))
ACLNN(ScaledMaskedSoftmaxBackward, (In grad, In result, In mask, double scale, bool triangle, Out out),
      masked_softmax_backward(grad, result, mask, scale, triangle, out))
ACLOP(ScaledMaskedSoftmax,
      masked_softmax(in[0], in[1], call.number("scale", 1), call.number("fixed_triu_mask") != 0, out[0]))
ACLOP(ScaledMaskedSoftmaxGrad,
      masked_softmax_backward(in[0], in[1], in[2], call.number("scale", 1), call.number("fixed_triu_mask") != 0, out[0]))

ACLNN(LayerNorm, (In self, Ints shape, In weight, In bias, double eps, Out out, Out mean, Out rstd),
      auto [y, m, r] = at::native_layer_norm(wide(self), shape, wide_optional(weight), wide_optional(bias), eps);
      out = y; mean = m; rstd = r)
ACLNN(LayerNormBackward,
      (In grad, In self, Ints shape, In mean, In rstd, In weight, In bias, const aclBoolArray*, Out dx, Out dw, Out db),
      auto [x, w, b] = at::native_layer_norm_backward(wide(grad), wide(self), shape, wide(mean), wide(rstd),
                                                      wide_optional(weight), wide_optional(bias),
                                                      {bool(dx), bool(dw), bool(db)});
      if (dx) dx = x; if (dw) dw = w; if (db) db = b)
ACLNN_LIMITED(RmsNorm, (In self, In weight, double eps, Out out, Out rstd),
      Limits{"npu_rms_norm"}("dtype", *self); check_norm(self, weight); if (only_looking()) return;
      auto x = self->to(at::kFloat); auto r = at::rsqrt(x.square().mean(-1, true) + eps);
      rstd = r; out = x * r * weight->to(at::kFloat))
ACLNN(RmsNormGrad, (In grad, In self, In rstd, In weight, Out dx, Out dw),
      auto x = self->to(at::kFloat); auto g = grad->to(at::kFloat); auto r = rstd->to(at::kFloat);
      auto normal = x * r; auto scaled = g * weight->to(at::kFloat);
      dw = (g * normal).reshape({-1, x.size(-1)}).sum(0);
      dx = r * (scaled - normal * (scaled * normal).mean(-1, true)))
ACLNN(AddRmsNorm, (In one, In other, In weight, double eps, Out out, Out rstd, Out sum),
      auto x = one->to(at::kFloat) + other->to(at::kFloat); auto r = at::rsqrt(x.square().mean(-1, true) + eps);
      rstd = r; sum = x; out = x * r * weight->to(at::kFloat))

ACLNN_LIMITED(RotaryPositionEmbedding, (In self, In cosine, In sine, int64_t mode, Out out),
      look_at_rotary(self, cosine, mode); if (only_looking()) return;
      auto x = self->to(at::kFloat); out = x * *cosine + rotate(x, mode) * *sine)
ACLNN_LIMITED(RotaryPositionEmbeddingGrad, (In grad, In cosine, In sine, In self, int64_t mode, Out dx, Out dcos, Out dsin),
      look_at_rotary(grad, cosine, mode); if (only_looking()) return;
      auto g = grad->to(at::kFloat); dx = g * *cosine + rotate_back(g * *sine, mode);
      if (self && dcos && dcos->numel()) {
        auto x = self->to(at::kFloat);
        dcos = at::sum_to(g * x, dcos->sizes());
        dsin = at::sum_to(g * rotate(x, mode), dsin->sizes());
      })
