// The foreach operators of optimizers, gradient clipping and loss scaling.
#include "operator.h"

using namespace emulated;

#define FOREACH(NAME, PARAMETERS, ...) \
  ACLNN(Foreach##NAME, PARAMETERS, for (size_t i = 0; i < out.size(); i++) out[i].copy_(__VA_ARGS__))

FOREACH(Abs, (Tensors self, Tensors out), at::abs(self[i]))
FOREACH(Exp, (Tensors self, Tensors out), at::exp(self[i]))
FOREACH(Neg, (Tensors self, Tensors out), at::neg(self[i]))
FOREACH(Reciprocal, (Tensors self, Tensors out), at::reciprocal(self[i]))
FOREACH(Sqrt, (Tensors self, Tensors out), at::sqrt(self[i]))
FOREACH(Copy, (Tensors source, Tensors out), source[i])
FOREACH(ZeroInplace, (Tensors out), at::zeros_like(out[i]))
FOREACH(Norm, (Tensors self, Number order, Tensors out), at::linalg_vector_norm(self[i], *order))

#define FOREACH_ARITHMETIC(NAME, f)                                                            \
  FOREACH(NAME##ScalarV2, (Tensors self, Number scalar, Tensors out), at::f(self[i], *scalar))  \
  FOREACH(NAME##ScalarList, (Tensors self, Numbers scalars, Tensors out), at::f(self[i], scalars[i]))

FOREACH_ARITHMETIC(Add, add)
FOREACH_ARITHMETIC(Sub, sub)
FOREACH_ARITHMETIC(Mul, mul)
FOREACH_ARITHMETIC(Div, div)
FOREACH_ARITHMETIC(Maximum, clamp_min)
FOREACH_ARITHMETIC(Minimum, clamp_max)

FOREACH(AddListV2, (Tensors self, Tensors other, Number alpha, Tensors out), at::add(self[i], other[i], *alpha))
FOREACH(SubListV2, (Tensors self, Tensors other, Number alpha, Tensors out), at::sub(self[i], other[i], *alpha))
FOREACH(MulList, (Tensors self, Tensors other, Tensors out), at::mul(self[i], other[i]))
FOREACH(DivList, (Tensors self, Tensors other, Tensors out), at::div(self[i], other[i]))
FOREACH(MaximumList, (Tensors self, Tensors other, Tensors out), at::maximum(self[i], other[i]))
FOREACH(MinimumList, (Tensors self, Tensors other, Tensors out), at::minimum(self[i], other[i]))

FOREACH(AddcmulScalarV2, (Tensors self, Tensors one, Tensors other, Number value, Tensors out),
        at::addcmul(self[i], one[i], other[i], *value))
FOREACH(AddcmulScalarList, (Tensors self, Tensors one, Tensors other, In values, Tensors out),
        at::addcmul(self[i], one[i], other[i], (*values)[static_cast<int64_t>(i)].item()))
FOREACH(AddcdivScalarV2, (Tensors self, Tensors one, Tensors other, Number value, Tensors out),
        at::addcdiv(self[i], one[i], other[i], *value))
FOREACH(AddcdivScalarList, (Tensors self, Tensors one, Tensors other, In values, Tensors out),
        at::addcdiv(self[i], one[i], other[i], (*values)[static_cast<int64_t>(i)].item()))
FOREACH(LerpScalar, (Tensors self, Tensors end, Number weight, Tensors out), at::lerp(self[i], end[i], *weight))
FOREACH(LerpList, (Tensors self, Tensors end, Tensors weights, Tensors out), at::lerp(self[i], end[i], weights[i]))
FOREACH(PowScalarV2, (Tensors self, Number exponent, Tensors out), at::pow(self[i], *exponent))
FOREACH(PowScalarAndTensor, (Number self, Tensors exponents, Tensors out), at::pow(*self, exponents[i]))

ACLNN(ForeachNonFiniteCheckAndUnscale, (Tensors gradients, Out found, In scale),
      for (size_t i = 0; i < gradients.size(); i++) {
        if (!at::isfinite(gradients[i]).all().item<bool>()) found->fill_(1);
        gradients[i].mul_(scale->item());
      })
