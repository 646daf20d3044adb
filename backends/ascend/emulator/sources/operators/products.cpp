// Matrix products. `int8_t` is the cube unit's math mode, which has no meaning here.
#include "operator.h"

using namespace emulated;

ACLNN(Mm, (In self, In other, Out out, int8_t), out = at::mm(self, other))
ACLNN(Matmul, (In self, In other, Out out, int8_t), out = at::matmul(self, other))
ACLNN(BatchMatMul, (In self, In other, Out out, int8_t), out = at::bmm(self, other))
ACLNN(Mv, (In self, In vector, Out out, int8_t), out = at::mv(self, vector))
ACLNN(Dot, (In self, In other, Out out), out = at::dot(self, other))
ACLNN(Addmm, (In self, In one, In other, Number beta, Number alpha, Out out, int8_t),
      // The kernel takes a wider self (gradient accumulation); ATen's CPU kernel does not.
      auto type = self->scalar_type(); out = at::addmm(self, one->to(type), other->to(type), *beta, *alpha))
ACLNN(InplaceAddmm, (Out self, In one, In other, Number beta, Number alpha, int8_t),
      auto type = self->scalar_type(); self = at::addmm(self, one->to(type), other->to(type), *beta, *alpha))
// Unlike the others, alpha comes first.
ACLNN(Addmv, (In self, In matrix, In vector, Number alpha, Number beta, Out out, int8_t),
      out = at::addmv(self, matrix, vector, *beta, *alpha))
ACLNN(Baddbmm, (In self, In one, In other, Number beta, Number alpha, Out out, int8_t),
      out = at::baddbmm(self, one, other, *beta, *alpha))
ACLNN(Addr, (In self, In one, In other, Number beta, Number alpha, Out out), out = at::addr(self, one, other, *beta, *alpha))
