// GEMMs. `int8_t` is the cube unit's math mode, which has no meaning here.
#include <algorithm>
#include <cstdlib>

#include "operator.h"

using namespace emulated;
using at::Tensor;

namespace {

bool as_cube() {
  static const char* mode = std::getenv("ASCEND_EMULATOR_NUMERICS");
  return mode != nullptr && std::string(mode) == "cube";
}

// In the first factor's dtype.
Tensor gemm(const Tensor& a, const Tensor& b) {
  if (!as_cube() || !a.is_floating_point() || a.dim() < 2 || b.dim() < 2) return at::matmul(a, b);
  return multiply(a, b, a.scalar_type()).to(a.scalar_type());
}

// beta * self + alpha * a b, the GEMM rounded to float32 only.
Tensor added(const Tensor& self, const Tensor& a, const Tensor& b, const at::Scalar& beta, const at::Scalar& alpha) {
  return (wide(self) * beta + multiply(a, b, a.scalar_type()) * alpha).to(self.scalar_type());
}

}  // namespace

Tensor emulated::multiply(const Tensor& a, const Tensor& b, at::ScalarType inputs) {
  if (!as_cube()) return at::matmul(a, b);
  constexpr int64_t kBlock = 16;
  Tensor x = a.to(inputs).to(at::kDouble), y = b.to(inputs).to(at::kDouble), sum;
  for (int64_t k = 0; k < x.size(-1); k += kBlock) {
    int64_t end = std::min(k + kBlock, x.size(-1));
    Tensor part = at::matmul(x.slice(-1, k, end), y.slice(-2, k, end)).to(at::kFloat);
    sum = sum.defined() ? sum + part : part;
  }
  return sum.defined() ? sum : at::matmul(x, y).to(at::kFloat);
}

ACLNN(Mm, (In self, In other, Out out, int8_t), out = gemm(self, other))
ACLNN(Matmul, (In self, In other, Out out, int8_t), out = gemm(self, other))
ACLNN(BatchMatMul, (In self, In other, Out out, int8_t), out = gemm(self, other))
ACLNN(Mv, (In self, In vector, Out out, int8_t), out = at::mv(self, vector))
ACLNN(Dot, (In self, In other, Out out), out = at::dot(self, other))
ACLNN(Addmm, (In self, In one, In other, Number beta, Number alpha, Out out, int8_t),
      // The kernel takes a wider self (gradient accumulation); ATen's CPU kernel does not.
      auto type = self->scalar_type(); out = as_cube() ? added(self, one, other, *beta, *alpha)
                                                       : at::addmm(self, one->to(type), other->to(type), *beta, *alpha))
ACLNN(InplaceAddmm, (Out self, In one, In other, Number beta, Number alpha, int8_t),
      auto type = self->scalar_type(); self = as_cube() ? added(self, one, other, *beta, *alpha)
                                                        : at::addmm(self, one->to(type), other->to(type), *beta, *alpha))
// Unlike the others, alpha comes first.
ACLNN(Addmv, (In self, In matrix, In vector, Number alpha, Number beta, Out out, int8_t),
      out = at::addmv(self, matrix, vector, *beta, *alpha))
ACLNN(Baddbmm, (In self, In one, In other, Number beta, Number alpha, Out out, int8_t),
      out = as_cube() ? added(self, one, other, *beta, *alpha) : at::baddbmm(self, one, other, *beta, *alpha))
ACLNN(Addr, (In self, In one, In other, Number beta, Number alpha, Out out), out = at::addr(self, one, other, *beta, *alpha))
