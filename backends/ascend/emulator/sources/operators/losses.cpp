// Losses, forward and backward. Half precisions are computed in float32 and rounded once.
#include "operator.h"

using namespace emulated;

namespace {

at::Tensor wide(const at::Tensor& x) {
  return x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16 ? x.to(at::kFloat) : x;
}
std::optional<at::Tensor> wide_optional(In x) { return x ? std::optional<at::Tensor>(wide(x)) : std::nullopt; }

}  // namespace

#define NEGATIVE_LOG_LIKELIHOOD(NAME, f)                                                                            \
  ACLNN(NAME, (In self, In target, In weight, int64_t reduction, int64_t ignore, Out out, Out total),                \
        auto [loss, sum] = at::f##_forward(wide(self), target->to(at::kLong), wide_optional(weight), reduction,      \
                                           ignore);                                                                 \
        out = loss; total = sum)                                                                                    \
  ACLNN(NAME##Backward,                                                                                             \
        (In grad, In self, In target, In weight, int64_t reduction, int64_t ignore, In total, Out out),              \
        out = at::f##_backward(wide(grad), wide(self), target->to(at::kLong), wide_optional(weight), reduction,      \
                               ignore, wide(total)))

NEGATIVE_LOG_LIKELIHOOD(NLLLoss, nll_loss)
NEGATIVE_LOG_LIKELIHOOD(NLLLoss2d, nll_loss2d)

ACLNN(MseLoss, (In self, In target, int64_t reduction, Out out), out = at::mse_loss(wide(self), wide(target), reduction))
ACLNN(MseLossBackward, (In grad, In self, In target, int64_t reduction, Out out),
      out = at::mse_loss_backward(wide(grad), wide(self), wide(target), reduction))
ACLNN(SmoothL1Loss, (In self, In target, int64_t reduction, float beta, Out out),
      out = at::smooth_l1_loss(wide(self), wide(target), reduction, beta))
ACLNN(SmoothL1LossBackward, (In grad, In self, In target, int64_t reduction, float beta, Out out),
      out = at::smooth_l1_loss_backward(wide(grad), wide(self), wide(target), reduction, beta))
ACLNN(L1Loss, (In self, In target, int64_t reduction, Out out), out = at::l1_loss(wide(self), wide(target), reduction))
ACLNN(L1LossBackward, (In grad, In self, In target, int64_t reduction, Out out),
      auto g = wide(grad) * at::sign(wide(self) - wide(target));
      out = reduction == at::Reduction::Mean ? g / self->numel() : g)
ACLNN(KlDiv, (In self, In target, int64_t reduction, bool log_target, Out out),
      out = at::kl_div(wide(self), wide(target), reduction, log_target))
ACLNN(KlDivBackward, (In grad, In self, In target, int64_t reduction, bool log_target, Out out),
      auto t = log_target ? wide(target).exp() : wide(target); auto g = -t * wide(grad);
      if (!log_target) g = g.masked_fill(t.le(0), 0.0);
      out = reduction == at::Reduction::Mean ? g / self->numel() : g)
ACLNN(KlDivTargetBackward, (In grad, In self, In target, int64_t reduction, bool log_target, Out out),
      auto t = wide(target); auto x = wide(self);
      auto g = wide(grad) * (log_target ? t.exp() * (t + 1 - x) : (t.log() + 1 - x).masked_fill(t.le(0), 0.0));
      out = reduction == at::Reduction::Mean ? g / self->numel() : g)
ACLNN(BinaryCrossEntropy, (In self, In target, In weight, int64_t reduction, Out out),
      out = at::binary_cross_entropy(wide(self), wide(target), wide_optional(weight), reduction))
ACLNN(BinaryCrossEntropyBackward, (In grad, In self, In target, In weight, int64_t reduction, Out out),
      out = at::binary_cross_entropy_backward(wide(grad), wide(self), wide(target), wide_optional(weight), reduction))
ACLNN(BinaryCrossEntropyWithLogits, (In self, In target, In weight, In positive, int64_t reduction, Out out),
      out = at::binary_cross_entropy_with_logits(wide(self), wide(target), wide_optional(weight), wide_optional(positive),
                                                 reduction))
ACLNN(BinaryCrossEntropyWithLogitsBackward,
      (In grad, In self, In target, In weight, In positive, int64_t reduction, Out out),
      auto t = wide(target); auto s = at::sigmoid(wide(self));
      auto g = positive ? ((wide(*positive) * t + 1 - t) * s - wide(*positive) * t) : s - t;
      g = g * wide(grad); if (weight) g = g * wide(*weight);
      out = reduction == at::Reduction::Mean ? g / self->numel() : g)
