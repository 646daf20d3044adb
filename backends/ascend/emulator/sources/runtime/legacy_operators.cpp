// The older operator interface (aclop), for operators without an aclnn function and for conversions
// between formats. Rows are in the operator library; if there is none, the error names the operator.
//
// Formats such as NZ are kept by name and size only: the elements always lie in their plain order.
#include <dlfcn.h>

#include <cstring>
#include <stdexcept>
#include <vector>

#include "acl/acl_op_compiler.h"
#include "emulated.h"
#include "legacy.h"

struct aclTensorDesc {
  aclDataType type;
  aclFormat format;
  std::vector<int64_t> sizes;
};
struct aclDataBuffer {
  void* data;
};

using namespace emulated;

namespace {

// A function of the operator library, which torch_npu has opened by now; or nothing.
template <typename Function>
Function* in_operator_library(const std::string& name) {
  static void* library = dlopen("libopapi.so", RTLD_NOW);
  return library ? reinterpret_cast<Function*>(dlsym(library, name.c_str())) : nullptr;
}

aclError refuse(const char* name) {
  std::string missed = missed_function();
  return fail(ACL_ERROR_OP_NOT_FOUND,
              std::string("the operator ") + name + " is not emulated; add a row for " +
                  (missed.empty() ? "its aclnn function" : missed + " (which torch_npu looked for last)") +
                  " to backends/ascend/emulator/sources/operators (docs/ascend.md says how)");
}

aclError execute(const char* name, int inputs, const aclTensorDesc* const in[], const aclDataBuffer* const in_data[],
                 int outputs, const aclTensorDesc* const out[], const aclDataBuffer* const out_data[],
                 const aclopAttr* attributes) {
  void* row = in_operator_library<void>(std::string("aclop_") + name);
  if (row == nullptr) return refuse(name);
  auto create = in_operator_library<void*(const int64_t*, uint64_t, aclDataType, const int64_t*, int64_t, aclFormat,
                                          const int64_t*, uint64_t, void*)>("aclCreateTensor");
  auto destroy = in_operator_library<int(void*)>("aclDestroyTensor");
  auto launch = in_operator_library<int(const char*, void*, void* const*, int, int, const aclopAttr*)>(
      "emulated_launch_legacy");
  std::vector<void*> tensors;  // inputs, then outputs
  try {
    auto add = [&](const aclTensorDesc* desc, const aclDataBuffer* buffer) {
      tensors.push_back(desc->type == ACL_DT_UNDEFINED
                            ? nullptr
                            : create(desc->sizes.data(), desc->sizes.size(), desc->type, nullptr, 0, desc->format,
                                     nullptr, 0, buffer->data));
    };
    for (int i = 0; i < inputs; i++) add(in[i], in_data[i]);
    for (int i = 0; i < outputs; i++) add(out[i], out_data[i]);
  } catch (const std::exception& error) {
    return fail(ACL_ERROR_INTERNAL_ERROR, std::string(name) + ": " + error.what());
  }
  int status = launch(name, row, tensors.data(), inputs, outputs, attributes);
  for (void* tensor : tensors) destroy(tensor);
  return status;
}

}  // namespace

EXPORT aclTensorDesc* aclCreateTensorDesc(aclDataType type, int dimensions, const int64_t* sizes, aclFormat format) {
  return new aclTensorDesc{type, format, std::vector<int64_t>(sizes, sizes + dimensions)};
}
EXPORT void aclDestroyTensorDesc(const aclTensorDesc* desc) { delete desc; }
EXPORT aclDataBuffer* aclCreateDataBuffer(void* data, size_t) { return new aclDataBuffer{data}; }
EXPORT aclError aclDestroyDataBuffer(const aclDataBuffer* buffer) {
  delete buffer;
  return ACL_SUCCESS;
}
EXPORT aclError aclSetTensorFormat(aclTensorDesc*, aclFormat) { return ACL_SUCCESS; }
EXPORT aclError aclSetTensorShape(aclTensorDesc*, int, const int64_t*) { return ACL_SUCCESS; }
EXPORT void aclSetTensorDescName(aclTensorDesc*, const char*) {}
EXPORT aclError aclSetTensorPlaceMent(aclTensorDesc*, aclMemType) { return ACL_SUCCESS; }
EXPORT aclDataType aclGetTensorDescType(const aclTensorDesc* desc) { return desc->type; }
EXPORT aclFormat aclGetTensorDescFormat(const aclTensorDesc* desc) { return desc->format; }
EXPORT size_t aclGetTensorDescNumDims(const aclTensorDesc* desc) { return desc->sizes.size(); }
EXPORT aclError aclGetTensorDescDimV2(const aclTensorDesc* desc, size_t dimension, int64_t* size) {
  *size = desc->sizes.at(dimension);
  return ACL_SUCCESS;
}

EXPORT aclopAttr* aclopCreateAttr() { return new aclopAttr; }
EXPORT void aclopDestroyAttr(const aclopAttr* attributes) { delete attributes; }
EXPORT aclError aclopSetAttrBool(aclopAttr* attributes, const char* name, uint8_t value) {
  attributes->numbers[name] = value;
  return ACL_SUCCESS;
}
EXPORT aclError aclopSetAttrFloat(aclopAttr* attributes, const char* name, float value) {
  attributes->numbers[name] = value;
  return ACL_SUCCESS;
}
EXPORT aclError aclopSetAttrInt(aclopAttr* attributes, const char* name, int64_t value) {
  attributes->numbers[name] = static_cast<double>(value);
  return ACL_SUCCESS;
}
EXPORT aclError aclopSetAttrDataType(aclopAttr* attributes, const char* name, aclDataType value) {
  attributes->numbers[name] = value;
  return ACL_SUCCESS;
}
EXPORT aclError aclopSetAttrString(aclopAttr* attributes, const char* name, const char* value) {
  attributes->texts[name] = value;
  return ACL_SUCCESS;
}
EXPORT aclError aclopSetAttrListBool(aclopAttr* attributes, const char* name, int count, const uint8_t* values) {
  attributes->lists[name].assign(values, values + count);
  return ACL_SUCCESS;
}
EXPORT aclError aclopSetAttrListFloat(aclopAttr* attributes, const char* name, int count, const float* values) {
  attributes->lists[name].assign(values, values + count);
  return ACL_SUCCESS;
}
EXPORT aclError aclopSetAttrListInt(aclopAttr* attributes, const char* name, int count, const int64_t* values) {
  attributes->lists[name].assign(values, values + count);
  return ACL_SUCCESS;
}
// No operator that is emulated has lists of lists.
EXPORT aclError aclopSetAttrListListInt(aclopAttr*, const char*, int, const int*, const int64_t* const*) {
  return ACL_SUCCESS;
}

EXPORT aclError aclopCompileAndExecute(const char* name, int inputs, const aclTensorDesc* const in[],
                                       const aclDataBuffer* const in_data[], int outputs, const aclTensorDesc* const out[],
                                       aclDataBuffer* const out_data[], const aclopAttr* attributes, aclopEngineType,
                                       aclopCompileType, const char*, aclrtStream) {
  return execute(name, inputs, in, in_data, outputs, out, out_data, attributes);
}
EXPORT aclError aclopCompileAndExecuteV2(const char* name, int inputs, aclTensorDesc* in[], aclDataBuffer* in_data[],
                                         int outputs, aclTensorDesc* out[], aclDataBuffer* out_data[],
                                         aclopAttr* attributes, aclopEngineType, aclopCompileType, const char*,
                                         aclrtStream) {
  return execute(name, inputs, in, in_data, outputs, out, out_data, attributes);
}

EXPORT aclError aclSetCompileopt(aclCompileOpt, const char*) { return ACL_SUCCESS; }
EXPORT aclError aclopSetCompileFlag(aclOpCompileFlag) { return ACL_SUCCESS; }
EXPORT size_t aclGetCompileoptSize(aclCompileOpt) { return 64; }
EXPORT aclError aclGetCompileopt(aclCompileOpt, char* value, size_t) {
  // Asked for ACL_OP_JIT_COMPILE: kernels are compiled ahead.
  std::strcpy(value, "disable");
  return ACL_SUCCESS;
}

// Kernels in binary form (torch_npu's own AscendC kernels): there is no processor for them.
EXPORT aclError aclrtBinaryLoadFromData(const void*, size_t, const aclrtBinaryLoadOptions*, aclrtBinHandle*) {
  return fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "binary kernels are not emulated");
}
EXPORT aclError aclrtBinaryGetFunction(const aclrtBinHandle, const char*, aclrtFuncHandle*) {
  return ACL_ERROR_RT_FEATURE_NOT_SUPPORT;
}
EXPORT aclError aclrtGetFunctionAddr(aclrtFuncHandle, void**, void**) { return ACL_ERROR_RT_FEATURE_NOT_SUPPORT; }
EXPORT int32_t rtDevBinaryRegister(const void*, void**) { return -1; }
EXPORT int32_t rtFunctionRegister(void*, const void*, const char*, const void*, uint32_t) { return -1; }
EXPORT int32_t rtGetC2cCtrlAddr(uint64_t*, uint32_t*) { return -1; }
EXPORT int32_t rtKernelLaunch(const void*, uint32_t, void*, uint32_t, void*, void*) { return -1; }
