// Losses, forward and backward. Half precisions are computed in float32 and rounded once.
#include "operator.h"

using namespace emulated;

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

namespace {

using at::Tensor;

// Each row's weight: that of its target's class, and none where the target is to be ignored.
Tensor row_weights(In target, In weight, int64_t classes, int64_t ignore) {
  Tensor counted = target->ne(ignore).to(at::kFloat);
  Tensor safe = target->to(at::kLong).clamp(0, classes - 1);
  return weight ? weight->to(at::kFloat).index_select(0, safe) * counted : counted;
}

Tensor class_weights(In weight, int64_t classes) { return weight ? weight->to(at::kFloat) : at::ones({classes}); }

}  // namespace

ACLNN_LIMITED_WITH(CrossEntropyLoss,
           (In self, In target, In weight, const char* reduction, int64_t ignore, double smoothing, double, bool zloss,
            Out loss, Out log_probabilities, Out, Out),
           (=, reduction = std::string(reduction)),
           require(!zloss, "return_zloss is not supported (op-plugin, torch_npu-npu_cross_entropy_loss.md)");
           Limits{"npu_cross_entropy_loss"}("rows", self->size(0)); if (only_looking()) return;
           int64_t classes = self->size(-1); Tensor logs = at::log_softmax(wide(self), -1); log_probabilities = logs;
           Tensor rows = row_weights(target, weight, classes, ignore); Tensor counted = target->ne(ignore).to(at::kFloat);
           Tensor picked = at::gather(logs, -1, target->to(at::kLong).clamp(0, classes - 1).unsqueeze(-1)).squeeze(-1);
           Tensor smooth = -(logs * class_weights(weight, classes)).sum(-1) * counted;
           Tensor each = (1 - smoothing) * -picked * rows + smoothing / static_cast<double>(classes) * smooth;
           loss = reduction == "none" ? each : reduction == "sum" ? each.sum() : each.sum() / rows.sum())
ACLNN_WITH(CrossEntropyLossGrad,
           (In grad, In log_probabilities, In target, In weight, In, In, const char* reduction, int64_t ignore,
            double smoothing, double, Out out),
           (=, reduction = std::string(reduction)),
           int64_t classes = log_probabilities->size(-1); Tensor logs = wide(log_probabilities);
           Tensor rows = row_weights(target, weight, classes, ignore); Tensor counted = target->ne(ignore).to(at::kFloat);
           Tensor safe = target->to(at::kLong).clamp(0, classes - 1); Tensor g = wide(grad).expand_as(rows);
           if (reduction == "mean") g = g / rows.sum();
           // Of each log probability, then of the logits.
           Tensor inner = -(smoothing / static_cast<double>(classes)) * class_weights(weight, classes).unsqueeze(0) *
                          (counted * g).unsqueeze(-1);
           inner = at::scatter_add(inner, -1, safe.unsqueeze(-1), (-(1 - smoothing) * rows * g).unsqueeze(-1));
           out = inner - logs.exp() * inner.sum(-1, true))
