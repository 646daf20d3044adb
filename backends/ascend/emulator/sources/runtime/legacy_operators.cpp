// The older operator interface (aclop). Nothing is emulated behind it: torch_npu comes here for
// an operator that has no aclnn function, and is told which one, and how to add it.
#include <cstring>

#include "acl/acl_op_compiler.h"
#include "emulated.h"

using namespace emulated;

namespace {
char handle[16];
template <typename T>
T* some() {
  return reinterpret_cast<T*>(handle);
}

aclError refuse(const char* name) {
  return fail(ACL_ERROR_OP_NOT_FOUND,
              std::string("the operator ") + name +
                  " is not emulated; add a row for its aclnn function to "
                  "backends/ascend/emulator/sources/operators (docs/ascend.md says how)");
}
}  // namespace

EXPORT aclTensorDesc* aclCreateTensorDesc(aclDataType, int, const int64_t*, aclFormat) { return some<aclTensorDesc>(); }
EXPORT void aclDestroyTensorDesc(const aclTensorDesc*) {}
EXPORT aclDataBuffer* aclCreateDataBuffer(void*, size_t) { return some<aclDataBuffer>(); }
EXPORT aclError aclDestroyDataBuffer(const aclDataBuffer*) { return ACL_SUCCESS; }
EXPORT aclError aclSetTensorFormat(aclTensorDesc*, aclFormat) { return ACL_SUCCESS; }
EXPORT aclError aclSetTensorShape(aclTensorDesc*, int, const int64_t*) { return ACL_SUCCESS; }
EXPORT void aclSetTensorDescName(aclTensorDesc*, const char*) {}
EXPORT aclError aclSetTensorPlaceMent(aclTensorDesc*, aclMemType) { return ACL_SUCCESS; }
EXPORT aclDataType aclGetTensorDescType(const aclTensorDesc*) { return ACL_FLOAT; }
EXPORT aclFormat aclGetTensorDescFormat(const aclTensorDesc*) { return ACL_FORMAT_ND; }
EXPORT size_t aclGetTensorDescNumDims(const aclTensorDesc*) { return 0; }
EXPORT aclError aclGetTensorDescDimV2(const aclTensorDesc*, size_t, int64_t* size) {
  *size = 0;
  return ACL_SUCCESS;
}

EXPORT aclopAttr* aclopCreateAttr() { return some<aclopAttr>(); }
EXPORT void aclopDestroyAttr(const aclopAttr*) {}
EXPORT aclError aclopSetAttrBool(aclopAttr*, const char*, uint8_t) { return ACL_SUCCESS; }
EXPORT aclError aclopSetAttrDataType(aclopAttr*, const char*, aclDataType) { return ACL_SUCCESS; }
EXPORT aclError aclopSetAttrFloat(aclopAttr*, const char*, float) { return ACL_SUCCESS; }
EXPORT aclError aclopSetAttrInt(aclopAttr*, const char*, int64_t) { return ACL_SUCCESS; }
EXPORT aclError aclopSetAttrString(aclopAttr*, const char*, const char*) { return ACL_SUCCESS; }
EXPORT aclError aclopSetAttrListBool(aclopAttr*, const char*, int, const uint8_t*) { return ACL_SUCCESS; }
EXPORT aclError aclopSetAttrListFloat(aclopAttr*, const char*, int, const float*) { return ACL_SUCCESS; }
EXPORT aclError aclopSetAttrListInt(aclopAttr*, const char*, int, const int64_t*) { return ACL_SUCCESS; }
EXPORT aclError aclopSetAttrListListInt(aclopAttr*, const char*, int, const int*, const int64_t* const*) {
  return ACL_SUCCESS;
}

EXPORT aclError aclopCompileAndExecute(const char* name, int, const aclTensorDesc* const[],
                                       const aclDataBuffer* const[], int, const aclTensorDesc* const[],
                                       aclDataBuffer* const[], const aclopAttr*, aclopEngineType,
                                       aclopCompileType, const char*, aclrtStream) {
  return refuse(name);
}
EXPORT aclError aclopCompileAndExecuteV2(const char* name, int, aclTensorDesc*[], aclDataBuffer*[], int,
                                         aclTensorDesc*[], aclDataBuffer*[], aclopAttr*,
                                         aclopEngineType, aclopCompileType, const char*, aclrtStream) {
  return refuse(name);
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
