// What a row of the operator tables is made of.
//
//   ACLNN(Add, (In self, In other, Number alpha, Out out), out = at::add(self, other, alpha))
//
// defines aclnnAddGetWorkspaceSize and aclnnAdd with CANN's signatures: the parameters are those of
// the function in CANN's aclnnop headers, and the rest is what the operator computes, over ATen's
// CPU tensors that lie in the "device's" memory.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "acl/acl_base.h"
#include "acl/acl_rt.h"

#include "../runtime/legacy.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

struct aclTensor {
  at::Tensor value;
};
struct aclScalar {
  at::Scalar value;
};
struct aclIntArray {
  std::vector<int64_t> value;
};
struct aclFloatArray {
  std::vector<float> value;
};
struct aclBoolArray {
  std::vector<bool> value;
};
struct aclTensorList {
  std::vector<at::Tensor> value;
};
struct aclScalarList {
  std::vector<at::Scalar> value;
};
struct aclOpExecutor {
  std::string name;
  std::function<void()> compute;
};

namespace emulated {

at::ScalarType scalar_type(int acl_type);

// Whether a float16 result was too large since the flag was cleared; kept only where they saturate.
extern bool overflowed;

// An input that may be absent. All of these are one pointer wide, as the C interface wants it.
struct In {
  const aclTensor* handle;

  explicit operator bool() const { return handle != nullptr; }
  const at::Tensor& operator*() const { return handle->value; }
  const at::Tensor* operator->() const { return &handle->value; }
  operator const at::Tensor&() const { return handle->value; }  // NOLINT: rows read like ATen code
  std::optional<at::Tensor> optional() const {
    return handle ? std::optional<at::Tensor>(handle->value) : std::nullopt;
  }
};

// An output, or an argument that is changed in place. Absent ones take no result.
struct Out : In {
  void operator=(const at::Tensor& result) const;  // NOLINT: it writes through
  at::Tensor& operator*() const { return const_cast<aclTensor*>(handle)->value; }
  at::Tensor* operator->() const { return &const_cast<aclTensor*>(handle)->value; }
};

struct Number {
  const aclScalar* handle;

  explicit operator bool() const { return handle != nullptr; }
  operator const at::Scalar&() const { return handle->value; }  // NOLINT
  const at::Scalar& operator*() const { return handle->value; }
  const at::Scalar* operator->() const { return &handle->value; }
  std::optional<at::Scalar> optional() const {
    return handle ? std::optional<at::Scalar>(handle->value) : std::nullopt;
  }
};

struct Ints {
  const aclIntArray* handle;

  explicit operator bool() const { return handle && !handle->value.empty(); }
  operator at::IntArrayRef() const { return handle ? at::IntArrayRef(handle->value) : at::IntArrayRef(); }  // NOLINT
  at::IntArrayRef operator*() const { return *this; }
  // As dimensions of a reduction: none means all.
  at::OptionalIntArrayRef dimensions() const {
    return *this ? at::OptionalIntArrayRef(handle->value) : at::OptionalIntArrayRef();
  }
};

struct Tensors {
  const aclTensorList* handle;

  size_t size() const { return handle ? handle->value.size() : 0; }
  at::Tensor& operator[](size_t i) const { return const_cast<aclTensorList*>(handle)->value[i]; }
  operator at::TensorList() const { return handle ? at::TensorList(handle->value) : at::TensorList(); }  // NOLINT
};

struct Numbers {
  const aclScalarList* handle;
  const at::Scalar& operator[](size_t i) const { return handle->value[i]; }
};

// `looks`: the row asks its Limits before anything else, and returns where it is `only_looking()`.
int prepare(std::string name, std::function<void()> compute, uint64_t* workspace, aclOpExecutor** executor,
            bool looks = false);
int launch(aclOpExecutor* executor);

// For argument rules of the real kernels: see the tables in docs/ascend.md.
[[noreturn]] void refuse(const std::string& rule);
inline void require(bool holds, const std::string& rule) {
  if (!holds) refuse(rule);
}

// A call that the table of limits does not allow; `status` as CANN's documents number it.
struct OutOfLimits : std::invalid_argument {
  static constexpr int kParameter = 161002, kTiling = 561002;
  int status;
  OutOfLimits(const std::string& rule, int status) : std::invalid_argument(rule), status(status) {}
};

// The rows of one of torch_npu's operators: `limits("head_size", d)` refuses what the chip does not take.
struct Limits {
  const char* operation;
  void operator()(const char* key, int64_t value) const;
  void operator()(const char* key, const std::string& value) const;
  void operator()(const char* key, const at::Tensor& tensor) const;  // its dtype
};

// Whether this is the first of an operator's two calls, which looks at its arguments; or, where
// ASCEND_EMULATOR_LOOKS is set, the second, which then computes nothing.
bool only_looking();

// Half precisions in float32, in which the kernels compute before they round once.
inline at::Tensor wide(const at::Tensor& x) {
  return x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16 ? x.to(at::kFloat) : x;
}
inline std::optional<at::Tensor> wide_optional(In x) {
  return x ? std::optional<at::Tensor>(wide(x)) : std::nullopt;
}

// A GEMM of the cube unit. With ASCEND_EMULATOR_NUMERICS=cube, factors are rounded to `inputs` and
// every 16 terms are summed in float32 by themselves, as its blocks of 16 x 16 x 16 are; else ATen's.
at::Tensor multiply(const at::Tensor& a, const at::Tensor& b, at::ScalarType inputs);

// A call of the older interface, in which an operator has a name, inputs, outputs and attributes.
struct Legacy {
  std::vector<In> in;  // those left out are null
  std::vector<Out> out;
  const aclopAttr& attributes;

  double number(const char* name, double otherwise = 0) const;
  std::string text(const char* name) const;
  std::vector<int64_t> integers(const char* name) const;
  // An input that holds whole numbers: a shape, a permutation.
  std::vector<int64_t> integers(size_t input) const;
};

// Ends of the groups of a grouped GEMM, whether given as ends (type 0) or as lengths (type 1).
std::vector<int64_t> group_ends(const at::Tensor& list, int64_t type);

}  // namespace emulated

#define EMULATED_UNWRAP(...) __VA_ARGS__

// `CAPTURE` copies text arguments: the caller's strings are gone when the queue's thread runs.
#define ACLNN_ROW(NAME, PARAMETERS, CAPTURE, LOOKS, ...)                                                \
  EXPORT int aclnn##NAME##GetWorkspaceSize(EMULATED_UNWRAP PARAMETERS, uint64_t* workspace_,            \
                                           aclOpExecutor** executor_) {                                 \
    return emulated::prepare("aclnn" #NAME, [EMULATED_UNWRAP CAPTURE]() mutable { __VA_ARGS__; }, workspace_,   \
                             executor_, LOOKS);                                                         \
  }                                                                                                     \
  EXPORT int aclnn##NAME(void*, uint64_t, aclOpExecutor* executor_, aclrtStream) {                      \
    return emulated::launch(executor_);                                                                 \
  }
#define ACLNN_WITH(NAME, PARAMETERS, CAPTURE, ...) ACLNN_ROW(NAME, PARAMETERS, CAPTURE, false, __VA_ARGS__)
// With limits: the arguments are looked at in the first call, as CANN does.
#define ACLNN_LIMITED_WITH(NAME, PARAMETERS, CAPTURE, ...) ACLNN_ROW(NAME, PARAMETERS, CAPTURE, true, __VA_ARGS__)
#define ACLNN_LIMITED(NAME, PARAMETERS, ...) ACLNN_LIMITED_WITH(NAME, PARAMETERS, (=), __VA_ARGS__)
#define ACLNN(NAME, PARAMETERS, ...) ACLNN_WITH(NAME, PARAMETERS, (=), __VA_ARGS__)

// A row of the older interface: `in`, `out` and the attributes are those that torch_npu's OpCommand
// names.
#define ACLOP(NAME, ...)                                             \
  EXPORT void aclop_##NAME(emulated::Legacy& call) {                 \
    [[maybe_unused]] auto& in = call.in;                             \
    [[maybe_unused]] auto& out = call.out;                           \
    __VA_ARGS__;                                                     \
  }
