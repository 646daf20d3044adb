// Norms fused with what stands around them. Statistics and sums are in float32.
#include "operator.h"

using namespace emulated;

namespace {

using at::Tensor;

// [rows, what gamma covers]
Tensor rows_of(const Tensor& x, const Tensor& gamma) { return x.reshape({-1, gamma.numel()}).to(at::kFloat); }

struct Normal {
  Tensor value, mean, rstd;
};

Normal layer_normal(const Tensor& rows, double eps) {
  Tensor mean = rows.mean(-1, true);
  Tensor centred = rows - mean;
  Tensor rstd = at::rsqrt(centred.square().mean(-1, true) + eps);
  return {centred * rstd, mean, rstd};
}

// Gradients of gamma * normal(x) + beta: of x, gamma and beta.
std::tuple<Tensor, Tensor, Tensor> layer_normal_backward(const Tensor& grad, const Tensor& rows, const Tensor& mean,
                                                         const Tensor& rstd, const Tensor& gamma) {
  Tensor normal = (rows - mean) * rstd;
  Tensor scaled = grad * gamma;
  Tensor dx = rstd * (scaled - scaled.mean(-1, true) - normal * (scaled * normal).mean(-1, true));
  return {dx, (grad * normal).sum(0), grad.sum(0)};
}

Tensor flat(const Tensor& x) { return x.reshape(-1).to(at::kFloat); }
Tensor column(const Tensor& x) { return x.reshape({-1, 1}).to(at::kFloat); }

// A group norm times sigmoid(scale * itself).
void group_norm_swish(In x, In weight, In bias, int64_t groups, double eps, double scale, Out out, Out mean, Out rstd) {
  int64_t n = x->size(0), c = x->size(1), area = x->numel() / (n * c);
  auto [y, m, r] = at::native_group_norm(wide(x->contiguous()), wide_optional(weight), wide_optional(bias), n, c, area,
                                         groups, eps);
  out = y * at::sigmoid(scale * y);
  mean = m;
  rstd = r;
}

}  // namespace

ACLNN(AddLayerNorm,
      (In one, In other, In gamma, In beta, In bias, double eps, bool keep_sum, Out out, Out mean, Out rstd, Out sum),
      Tensor rows = rows_of(one, gamma) + rows_of(other, gamma); if (bias) rows = rows + flat(bias);
      auto n = layer_normal(rows, eps); out = n.value * flat(gamma) + flat(beta); mean = n.mean; rstd = n.rstd;
      if (keep_sum) sum = rows)
ACLNN(AddLayerNormGrad,
      (In grad, In one, In other, In rstd, In mean, In gamma, In dsum, Out dx, Out dgamma, Out dbeta),
      auto [x, g, b] = layer_normal_backward(rows_of(grad, gamma), rows_of(one, gamma) + rows_of(other, gamma), column(mean),
                                             column(rstd), flat(gamma));
      dx = dsum ? x + rows_of(dsum, gamma) : x; dgamma = g; dbeta = b)
// A layer norm of alpha * x + gx (Wang et al. 2022, arXiv:2203.00555).
ACLNN(DeepNorm, (In x, In gx, In beta, In gamma, double alpha, double eps, Out mean, Out rstd, Out out),
      auto n = layer_normal(alpha * rows_of(x, gamma) + rows_of(gx, gamma), eps);
      out = n.value * flat(gamma) + flat(beta); mean = n.mean; rstd = n.rstd)
ACLNN(DeepNormGrad,
      (In grad, In x, In gx, In gamma, In mean, In rstd, double alpha, Out dx, Out dgx, Out dbeta, Out dgamma),
      auto [d, g, b] = layer_normal_backward(rows_of(grad, gamma), alpha * rows_of(x, gamma) + rows_of(gx, gamma),
                                             column(mean), column(rstd), flat(gamma));
      dx = alpha * d; dgx = d; dgamma = g; dbeta = b)
ACLNN(GemmaRmsNorm, (In self, In gamma, double eps, Out out, Out rstd),
      Tensor x = rows_of(self, gamma); Tensor r = at::rsqrt(x.square().mean(-1, true) + eps); rstd = r;
      out = x * r * (1 + flat(gamma)))
ACLNN(AddRmsNormCast, (In one, In other, In gamma, double eps, Out wide_out, Out out, Out rstd, Out sum),
      Tensor x = rows_of(one, gamma) + rows_of(other, gamma); Tensor r = at::rsqrt(x.square().mean(-1, true) + eps);
      rstd = r; sum = x; Tensor y = (x * r * flat(gamma)).to(out->scalar_type()); out = y; wide_out = y)
ACLNN(GroupNormSwish,
      (In self, In weight, In bias, int64_t groups, const char*, double eps, bool, double scale, Out out, Out mean, Out rstd),
      group_norm_swish(self, weight, bias, groups, eps, scale, out, mean, rstd))
ACLNN(GroupNormSwishGrad,
      (In grad, In mean, In rstd, In self, In weight, In bias, int64_t groups, const char*, double scale, bool, bool, Out dx,
       Out dweight, Out dbias),
      int64_t n = self->size(0); int64_t c = self->size(1); int64_t area = self->numel() / (n * c);
      Tensor x = wide(self->contiguous()); std::vector<int64_t> channels(self->dim(), 1); channels[1] = c;
      Tensor normal = ((x.view({n, groups, -1}) - column(mean).view({n, groups, 1})) * column(rstd).view({n, groups, 1}));
      Tensor y = normal.view(x.sizes()) * flat(weight).view(channels) + flat(bias).view(channels);
      Tensor gate = at::sigmoid(scale * y); Tensor g = wide(grad->contiguous()) * (gate + scale * y * gate * (1 - gate));
      auto [a, b, d] = at::native_group_norm_backward(g, x, wide(mean), wide(rstd), wide_optional(weight), n, c, area, groups,
                                                      {true, true, true});
      dx = a; dweight = b; dbias = d)
