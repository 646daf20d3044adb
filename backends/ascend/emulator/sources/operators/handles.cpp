// Tensors, scalars and lists as CANN's functions take them, and how an operator is run.
#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "operator.h"

// In libascendcl: what torch_npu reads with aclGetRecentErrMsg.
extern "C" void emulated_set_error(const char* message);

namespace emulated {

bool overflowed = false;

at::ScalarType scalar_type(int acl_type) {
  switch (acl_type) {
    case ACL_FLOAT: return at::kFloat;
    case ACL_FLOAT16: return at::kHalf;
    case ACL_BF16: return at::kBFloat16;
    case ACL_DOUBLE: return at::kDouble;
    case ACL_INT8: return at::kChar;
    case ACL_INT16: return at::kShort;
    case ACL_INT32: return at::kInt;
    case ACL_INT64: return at::kLong;
    case ACL_UINT8: return at::kByte;
    case ACL_UINT16: return at::kUInt16;
    case ACL_UINT32: return at::kUInt32;
    case ACL_UINT64: return at::kUInt64;
    case ACL_BOOL: return at::kBool;
    case ACL_COMPLEX64: return at::kComplexFloat;
    case ACL_COMPLEX128: return at::kComplexDouble;
    default: throw std::runtime_error("dtype " + std::to_string(acl_type) + " is not emulated");
  }
}

// Where INF_NAN_MODE_FORCE_DISABLE is set, float16 saturates and the processor keeps that it did.
bool saturates() {
  static const char* set = std::getenv("INF_NAN_MODE_FORCE_DISABLE");
  return set != nullptr && std::string(set) == "1";
}

void Out::operator=(const at::Tensor& given) const {
  if (handle == nullptr) return;
  at::Tensor& target = **this;
  at::Tensor result = given;
  if (target.scalar_type() == at::kHalf && result.is_floating_point() && saturates()) {
    constexpr double kMost = 65504;
    if (result.numel() > 0 && result.abs().max().item<double>() > kMost) overflowed = true;
    result = result.clamp(-kMost, kMost);
  }
  if (result.sizes() == target.sizes()) {
    target.copy_(result);
  } else if (result.numel() == target.numel()) {
    // Some operators keep reduced dimensions of size one that CANN's output does not have.
    target.copy_(result.reshape(target.sizes()));
  } else {
    target.copy_(result.expand_as(target));
  }
}

void refuse(const std::string& rule) { throw std::invalid_argument(rule); }

thread_local bool looking = false;

bool only_looking() {
  static const bool never_computes = std::getenv("ASCEND_EMULATOR_LOOKS") != nullptr;
  return looking || never_computes;
}

namespace {

// With ASCEND_EMULATOR_TRACE=FILE, one line for each operator that ran.
void trace(const std::string& name) {
  static std::ofstream* file = [] {
    const char* path = std::getenv("ASCEND_EMULATOR_TRACE");
    return path ? new std::ofstream(path, std::ios::app) : nullptr;
  }();
  if (file) *file << name << std::endl;
}

}  // namespace

namespace {

int run(const std::string& name, const std::function<void()>& compute) {
  std::string message;
  int status = ACL_ERROR_INTERNAL_ERROR;
  try {
    // Rows compute values only: torch_npu has recorded the graph, and casts are its own affair.
    c10::impl::ExcludeDispatchKeyGuard no_autograd(c10::autograd_dispatch_keyset |
                                                   c10::autocast_dispatch_keyset);
    compute();
    return ACL_SUCCESS;
  } catch (const OutOfLimits& error) {
    // As torch_npu's users see it of a real CANN, e.g. Ascend/pytorch's and vllm-ascend's issues.
    message = std::string(error.status == OutOfLimits::kParameter ? "AclNN_Parameter_Error(EZ1001): "
                                                                  : "EZ9999: Inner Error! Tiling failed. ") +
              error.what();
    status = error.status;
  } catch (const std::exception& error) {
    message = name + ": " + error.what();
  }
  message = message.substr(0, message.find("\nException raised from"));
  emulated_set_error(message.c_str());
  // Errors surface later, in whatever call waits for the queue: report them where they happen too.
  std::fprintf(stderr, "[EMULATED Ascend] %s\n", message.c_str());
  return status;
}

}  // namespace

int prepare(std::string name, std::function<void()> compute, uint64_t* workspace, aclOpExecutor** executor, bool looks) {
  *workspace = 0;
  if (looks) {
    looking = true;
    int status = run(name, compute);
    looking = false;
    if (status != ACL_SUCCESS) return status;
  }
  *executor = new aclOpExecutor{std::move(name), std::move(compute)};
  return ACL_SUCCESS;
}

int launch(aclOpExecutor* executor) {
  trace(executor->name);
  int status = run(executor->name, executor->compute);
  delete executor;
  return status;
}

double Legacy::number(const char* name, double otherwise) const {
  auto found = attributes.numbers.find(name);
  return found == attributes.numbers.end() ? otherwise : found->second;
}
std::string Legacy::text(const char* name) const {
  auto found = attributes.texts.find(name);
  return found == attributes.texts.end() ? "" : found->second;
}
std::vector<int64_t> Legacy::integers(const char* name) const {
  auto found = attributes.lists.find(name);
  if (found == attributes.lists.end()) return {};
  return {found->second.begin(), found->second.end()};
}
std::vector<int64_t> Legacy::integers(size_t input) const {
  auto values = in.at(input)->to(at::kLong).contiguous();
  return {values.data_ptr<int64_t>(), values.data_ptr<int64_t>() + values.numel()};
}

namespace {

template <typename Array, typename T>
Array* make(const T* values, uint64_t count) {
  auto* array = new Array;
  array->value.assign(values, values + count);
  return array;
}

// Lists own the handles that they are made of.
template <typename List, typename Handle>
List* gather(const Handle* const* handles, uint64_t count) {
  auto* list = new List;
  for (uint64_t i = 0; i < count; i++) {
    list->value.push_back(handles[i]->value);
    delete handles[i];
  }
  return list;
}

}  // namespace
}  // namespace emulated

using namespace emulated;

EXPORT aclTensor* aclCreateTensor(const int64_t* sizes, uint64_t dimensions, aclDataType type,
                                  const int64_t* strides, int64_t offset, aclFormat, const int64_t*,
                                  uint64_t, void* data) {
  auto options = at::TensorOptions().dtype(scalar_type(type));
  at::IntArrayRef shape(sizes, dimensions);
  if (data == nullptr) return new aclTensor{at::empty(shape, options)};
  char* first = static_cast<char*>(data) + offset * static_cast<int64_t>(c10::elementSize(scalar_type(type)));
  if (strides == nullptr) return new aclTensor{at::from_blob(first, shape, options)};
  return new aclTensor{at::from_blob(first, shape, at::IntArrayRef(strides, dimensions), options)};
}
EXPORT aclScalar* aclCreateScalar(void* value, aclDataType type) {
  return new aclScalar{at::from_blob(value, {}, at::TensorOptions().dtype(scalar_type(type))).item()};
}
EXPORT aclIntArray* aclCreateIntArray(const int64_t* values, uint64_t count) { return make<aclIntArray>(values, count); }
EXPORT aclFloatArray* aclCreateFloatArray(const float* values, uint64_t count) { return make<aclFloatArray>(values, count); }
EXPORT aclBoolArray* aclCreateBoolArray(const bool* values, uint64_t count) { return make<aclBoolArray>(values, count); }
EXPORT aclTensorList* aclCreateTensorList(const aclTensor* const* tensors, uint64_t count) {
  return gather<aclTensorList>(tensors, count);
}
EXPORT aclScalarList* aclCreateScalarList(const aclScalar* const* scalars, uint64_t count) {
  return gather<aclScalarList>(scalars, count);
}

// A row of the older interface, which the runtime has found by its name.
EXPORT int emulated_launch_legacy(const char* name, void (*row)(Legacy&), const aclTensor* const* tensors, int inputs,
                                  int outputs, const aclopAttr* attributes) {
  static const aclopAttr none;
  Legacy call{{}, {}, attributes ? *attributes : none};
  for (int i = 0; i < inputs; i++) call.in.push_back({tensors[i]});
  for (int i = 0; i < outputs; i++) call.out.push_back({{tensors[inputs + i]}});
  uint64_t workspace = 0;
  aclOpExecutor* executor = nullptr;
  prepare(std::string("aclop_") + name, [&] { row(call); }, &workspace, &executor);
  return launch(executor);
}

#define DESTROY(TYPE)                              \
  EXPORT int aclDestroy##TYPE(const acl##TYPE* p) { \
    delete p;                                      \
    return ACL_SUCCESS;                            \
  }
DESTROY(Tensor)
DESTROY(Scalar)
DESTROY(IntArray)
DESTROY(FloatArray)
DESTROY(BoolArray)
DESTROY(TensorList)
DESTROY(ScalarList)

// The size of an output that only the operator knows (nonzero, masked_select, unique).
EXPORT int aclGetViewShape(const aclTensor* tensor, int64_t** sizes, uint64_t* count) {
  auto shape = tensor->value.sizes();
  *count = shape.size();
  *sizes = new int64_t[shape.size()];  // the caller deletes it
  std::copy(shape.begin(), shape.end(), *sizes);
  return ACL_SUCCESS;
}
