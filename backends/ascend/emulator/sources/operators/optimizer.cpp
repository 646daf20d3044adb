// Fused optimizer steps.
#include <cmath>

#include "operator.h"

using namespace emulated;

// Source: torch.optim.AdamW. `step` counts the steps before this one; the moments may be float32
// beside half-precision parameters.
ACLNN(ApplyAdamWV2,
      (Out parameter, Out first, Out second, Out largest, In gradient, In step, float lr, float beta1, float beta2,
       float decay, float eps, bool amsgrad, bool maximize),
      double n = step->item<double>() + 1;
      auto g = gradient->to(at::kFloat); if (maximize) g = -g;
      auto p = parameter->to(at::kFloat) * (1 - double(lr) * decay);
      auto m = first->to(at::kFloat) * beta1 + g * (1 - double(beta1));
      auto v = second->to(at::kFloat) * beta2 + g * g * (1 - double(beta2));
      first = m; second = v;
      auto bound = v; if (amsgrad) { bound = at::maximum(largest->to(at::kFloat), v); largest = bound; }
      auto root = (bound / (1 - std::pow(double(beta2), n))).sqrt() + eps;
      parameter = p - lr * (m / (1 - std::pow(double(beta1), n))) / root)
