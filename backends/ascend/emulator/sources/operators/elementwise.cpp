// One output element for each input element.
#include "operator.h"

using namespace emulated;

#define UNARY(NAME, f) ACLNN(NAME, (In self, Out out), out = at::f(self))

UNARY(Abs, abs)
UNARY(BitwiseNot, bitwise_not)
UNARY(IsFinite, isfinite)
UNARY(IsNegInf, isneginf)
UNARY(IsPosInf, isposinf)
UNARY(Neg, neg)
UNARY(Round, round)
UNARY(Sign, sign)
UNARY(Signbit, signbit)
UNARY(Trunc, trunc)

// Operators that torch_npu also calls in place.
#define UNARY_IN_PLACE(NAME, f) \
  UNARY(NAME, f)               \
  ACLNN(Inplace##NAME, (Out self), self = at::f(self))

UNARY_IN_PLACE(Acos, acos)
UNARY_IN_PLACE(Acosh, acosh)
UNARY_IN_PLACE(Asin, asin)
UNARY_IN_PLACE(Asinh, asinh)
UNARY_IN_PLACE(Atan, atan)
UNARY_IN_PLACE(Atanh, atanh)
UNARY_IN_PLACE(Ceil, ceil)
UNARY_IN_PLACE(Cos, cos)
UNARY_IN_PLACE(Cosh, cosh)
UNARY_IN_PLACE(Erf, erf)
UNARY_IN_PLACE(Erfc, erfc)
UNARY_IN_PLACE(Erfinv, erfinv)
UNARY_IN_PLACE(Exp, exp)
UNARY_IN_PLACE(Exp2, exp2)
UNARY_IN_PLACE(Expm1, expm1)
UNARY_IN_PLACE(Floor, floor)
UNARY_IN_PLACE(Frac, frac)
UNARY_IN_PLACE(Log, log)
UNARY_IN_PLACE(Log10, log10)
UNARY_IN_PLACE(Log1p, log1p)
UNARY_IN_PLACE(Log2, log2)
UNARY_IN_PLACE(LogicalNot, logical_not)
UNARY_IN_PLACE(Reciprocal, reciprocal)
UNARY_IN_PLACE(Relu, relu)
UNARY_IN_PLACE(Rsqrt, rsqrt)
UNARY_IN_PLACE(Sigmoid, sigmoid)
UNARY_IN_PLACE(Sin, sin)
UNARY_IN_PLACE(Sinh, sinh)
UNARY_IN_PLACE(Sqrt, sqrt)
UNARY_IN_PLACE(Tan, tan)
UNARY_IN_PLACE(Tanh, tanh)
ACLNN(RoundDecimals, (In self, int64_t decimals, Out out), out = at::round(self, decimals))
ACLNN(InplaceRoundDecimals, (Out self, int64_t decimals), self = at::round(self, decimals))

// self op other * alpha, with a tensor or a scalar, and in place.
#define ADDITION(NAME, f)                                                                            \
  ACLNN(NAME, (In self, In other, Number alpha, Out out), out = at::f(self, other, alpha))            \
  ACLNN(NAME##s, (In self, Number other, Number alpha, Out out), out = at::f(self, other, alpha))     \
  ACLNN(Inplace##NAME, (Out self, In other, Number alpha), self = at::f(self, other, alpha))          \
  ACLNN(Inplace##NAME##s, (Out self, Number other, Number alpha), self = at::f(self, other, alpha))

ADDITION(Add, add)
ADDITION(Sub, sub)
ACLNN(AddV3, (Number self, In other, Number alpha, Out out), out = at::add(at::mul(other, alpha), self))
ACLNN(Rsub, (In self, In other, Number alpha, Out out), out = at::rsub(self, other, alpha))
ACLNN(Rsubs, (In self, Number other, Number alpha, Out out), out = at::rsub(self, other, alpha))

#define PRODUCT(NAME, f)                                                            \
  ACLNN(NAME, (In self, In other, Out out), out = at::f(self, other))                \
  ACLNN(NAME##s, (In self, Number other, Out out), out = at::f(self, other))         \
  ACLNN(Inplace##NAME, (Out self, In other), self = at::f(self, other))              \
  ACLNN(Inplace##NAME##s, (Out self, Number other), self = at::f(self, other))

PRODUCT(Mul, mul)
PRODUCT(Div, div)
PRODUCT(FloorDivide, floor_divide)

static std::optional<c10::string_view> rounding(int mode) {
  if (mode == 1) return "trunc";
  if (mode == 2) return "floor";
  return std::nullopt;
}
ACLNN(DivMod, (In self, In other, int mode, Out out), out = at::div(self, other, rounding(mode)))
ACLNN(DivMods, (In self, Number other, int mode, Out out), out = at::div(self, other, rounding(mode)))
ACLNN(InplaceDivMod, (Out self, In other, int mode), self = at::div(self, other, rounding(mode)))
ACLNN(InplaceDivMods, (Out self, Number other, int mode), self = at::div(self, other, rounding(mode)))
ACLNN(RemainderTensorTensor, (In self, In other, Out out), out = at::remainder(self, other))
ACLNN(RemainderTensorScalar, (In self, Number other, Out out), out = at::remainder(self, other))
ACLNN(RemainderScalarTensor, (Number self, In other, Out out), out = at::remainder(self, other))
ACLNN(InplaceRemainderTensorTensor, (Out self, In other), self = at::remainder(self, other))
ACLNN(InplaceRemainderTensorScalar, (Out self, Number other), self = at::remainder(self, other))
ACLNN(FmodTensor, (In self, In other, Out out), out = at::fmod(self, other))
ACLNN(FmodScalar, (In self, Number other, Out out), out = at::fmod(self, other))
ACLNN(InplaceFmodTensor, (Out self, In other), self = at::fmod(self, other))
ACLNN(InplaceFmodScalar, (Out self, Number other), self = at::fmod(self, other))

#define COMPARISON(NAME, f)                                                                \
  ACLNN(NAME##Tensor, (In self, In other, Out out), out = at::f(self, other))               \
  ACLNN(NAME##Scalar, (In self, Number other, Out out), out = at::f(self, other))           \
  ACLNN(Inplace##NAME##Tensor, (Out self, In other), self = at::f(self, other))             \
  ACLNN(Inplace##NAME##Scalar, (Out self, Number other), self = at::f(self, other))

COMPARISON(Eq, eq)
COMPARISON(Ne, ne)
COMPARISON(Lt, lt)
COMPARISON(Le, le)
COMPARISON(Gt, gt)
COMPARISON(Ge, ge)

#define BITWISE(NAME, f)                                                               \
  ACLNN(Bitwise##NAME##Tensor, (In self, In other, Out out), out = at::f(self, other))  \
  ACLNN(Bitwise##NAME##Scalar, (In self, Number other, Out out), out = at::f(self, other))
#define BITWISE_IN_PLACE(NAME, f)                                                     \
  ACLNN(InplaceBitwise##NAME##Tensor, (Out self, In other), self = at::f(self, other)) \
  ACLNN(InplaceBitwise##NAME##Scalar, (Out self, Number other), self = at::f(self, other))

BITWISE(And, bitwise_and)
BITWISE(Or, bitwise_or)
BITWISE(Xor, bitwise_xor)
BITWISE_IN_PLACE(And, bitwise_and)
BITWISE_IN_PLACE(Xor, bitwise_xor)
ACLNN(LeftShift, (In self, In other, Out out), out = at::bitwise_left_shift(self, other))
ACLNN(RightShift, (In self, In other, Out out), out = at::bitwise_right_shift(self, other))

#define LOGICAL(NAME, f)                                                    \
  ACLNN(NAME, (In self, In other, Out out), out = at::f(self, other))        \
  ACLNN(Inplace##NAME, (Out self, In other), self = at::f(self, other))

LOGICAL(LogicalAnd, logical_and)
LOGICAL(LogicalOr, logical_or)
LOGICAL(Atan2, atan2)
ACLNN(LogicalXor, (In self, In other, Out out), out = at::logical_xor(self, other))
ACLNN(LogAddExp, (In self, In other, Out out), out = at::logaddexp(self, other))
ACLNN(LogAddExp2, (In self, In other, Out out), out = at::logaddexp2(self, other))
ACLNN(IsClose, (In self, In other, double relative, double absolute, bool nan, Out out),
      out = at::isclose(self, other, relative, absolute, nan))

ACLNN(Maximum, (In self, In other, Out out), out = at::maximum(self, other))
ACLNN(Minimum, (In self, In other, Out out), out = at::minimum(self, other))
ACLNN(Clamp, (In self, Number low, Number high, Out out), out = at::clamp(self, low.optional(), high.optional()))
ACLNN(ClampTensor, (In self, In low, In high, Out out), out = at::clamp(self, low.optional(), high.optional()))
ACLNN(ClampMin, (In self, Number low, Out out), out = at::clamp_min(self, low))
ACLNN(ClampMax, (In self, Number high, Out out), out = at::clamp_max(self, high))
ACLNN(InplaceClampMax, (Out self, Number high), self = at::clamp_max(self, high))
ACLNN(ClampMinTensor, (In self, In low, Out out), out = at::clamp_min(self, low))
ACLNN(ClampMaxTensor, (In self, In high, Out out), out = at::clamp_max(self, high))
ACLNN(InplaceClampMinTensor, (Out self, In low), self = at::clamp_min(self, low))
ACLNN(InplaceClampMaxTensor, (Out self, In high), self = at::clamp_max(self, high))

ACLNN(PowTensorScalar, (In self, Number exponent, Out out), out = at::pow(self, exponent))
ACLNN(PowScalarTensor, (Number self, In exponent, Out out), out = at::pow(self, exponent))
ACLNN(PowTensorTensor, (In self, In exponent, Out out), out = at::pow(self, exponent))
ACLNN(InplacePowTensorScalar, (Out self, Number exponent), self = at::pow(self, exponent))
ACLNN(InplacePowTensorTensor, (Out self, In exponent), self = at::pow(self, exponent))

ACLNN(Addcmul, (In self, In one, In other, Number value, Out out), out = at::addcmul(self, one, other, value))
ACLNN(Addcdiv, (In self, In one, In other, Number value, Out out), out = at::addcdiv(self, one, other, value))
ACLNN(InplaceAddcmul, (Out self, In one, In other, Number value), self = at::addcmul(self, one, other, value))
ACLNN(InplaceAddcdiv, (Out self, In one, In other, Number value), self = at::addcdiv(self, one, other, value))
ACLNN(Lerp, (In self, In end, In weight, Out out), out = at::lerp(self, end, weight))
ACLNN(Lerps, (In self, In end, Number weight, Out out), out = at::lerp(self, end, weight))
ACLNN(InplaceLerp, (Out self, In end, In weight), self = at::lerp(self, end, weight))
ACLNN(InplaceLerps, (Out self, In end, Number weight), self = at::lerp(self, end, weight))

ACLNN(SWhere, (In condition, In self, In other, Out out), out = at::where(condition, self, other))
ACLNN(InplaceMaskedFillScalar, (Out self, In mask, Number value), self->masked_fill_(mask, *value))
ACLNN(InplaceMaskedFillTensor, (Out self, In mask, In value), self->masked_fill_(mask, *value))
ACLNN(NanToNum, (In self, float nan, float high, float low, Out out), out = at::nan_to_num(self, nan, high, low))
ACLNN(InplaceNanToNum, (Out self, float nan, float high, float low), self = at::nan_to_num(self, nan, high, low))

ACLNN(Cast, (In self, int type, Out out), out = self->to(scalar_type(type)))
ACLNN(InplaceCopy, (Out self, In source), self = *source)
ACLNN(InplaceZero, (Out self), self->zero_())
ACLNN(InplaceOne, (Out self), self->fill_(1))
ACLNN(InplaceFillScalar, (Out self, Number value), self->fill_(*value))
ACLNN(InplaceFillTensor, (Out self, In value), self->fill_(*value))
