// Errors, versions, logs and profiling hooks.
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "acl/acl.h"
#include "emulated.h"

namespace emulated {
namespace {
thread_local std::string recent_error;
std::mutex missed_guard;
std::string missed;

// torch_npu logs, as a warning, what it does not find; by default it logs errors only.
__attribute__((constructor)) void hear_warnings() { setenv("ASCEND_GLOBAL_LOG_LEVEL", "2", 0); }
}  // namespace

std::string missed_function() {
  std::lock_guard<std::mutex> lock(missed_guard);
  return std::exchange(missed, "");
}

aclError fail(aclError code, const std::string& message) {
  recent_error = "[EMULATED Ascend] " + message;
  return code;
}

}  // namespace emulated

using namespace emulated;

EXPORT const char* aclGetRecentErrMsg() {
  // Can be read once, as in CANN: the next error starts afresh.
  static thread_local std::string told;
  told.swap(recent_error);
  recent_error.clear();
  return told.c_str();
}
// For the operator and communication libraries, which report their own errors.
EXPORT void emulated_set_error(const char* message) { fail(ACL_ERROR_INTERNAL_ERROR, message); }

EXPORT aclError aclrtGetLastError(aclrtLastErrLevel) { return ACL_SUCCESS; }
EXPORT aclError aclrtPeekAtLastError(aclrtLastErrLevel) { return ACL_SUCCESS; }

EXPORT aclError aclsysGetCANNVersion(aclCANNPackageName, aclCANNPackageVersion* version) {
  // As in version.info, which emulator/_launch.py writes.
  std::memset(version, 0, sizeof *version);
  const char* given = std::getenv("ASCEND_EMULATOR_CANN");
  std::string release = given ? given : "8.5.0";
  size_t first = release.find('.'), second = release.find('.', first + 1);
  auto write = [](char* target, const std::string& text) { std::strcpy(target, text.c_str()); };
  write(version->version, release);
  write(version->majorVersion, release.substr(0, first));
  write(version->minorVersion, release.substr(first + 1, second - first - 1));
  write(version->releaseVersion, release.substr(second + 1));
  return ACL_SUCCESS;
}

EXPORT void aclAppLog(aclLogLevel, const char*, const char*, uint32_t, const char* format, ...) {
  // A warning of torch_npu's: "[PTA]:%s or %sGetWorkspaceSize not in %s, or %s not found. Will call %s"
  if (std::strstr(format, "GetWorkspaceSize not in") == nullptr) return;
  va_list arguments;
  va_start(arguments, format);
  std::lock_guard<std::mutex> lock(missed_guard);
  missed = va_arg(arguments, const char*);
  va_end(arguments);
}

EXPORT aclError aclrtSetOpWaitTimeout(uint32_t) { return ACL_SUCCESS; }
EXPORT aclError aclrtSetOpExecuteTimeOut(uint32_t) { return ACL_SUCCESS; }
EXPORT aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode) { return ACL_SUCCESS; }
EXPORT aclError aclrtCtxSetSysParamOpt(aclSysParamOpt, int64_t) { return ACL_SUCCESS; }
EXPORT aclError aclrtSetSysParamOpt(aclSysParamOpt, int64_t) { return ACL_SUCCESS; }
EXPORT aclError aclrtGetSysParamOpt(aclSysParamOpt, int64_t* value) {
  *value = 0;
  return ACL_SUCCESS;
}
EXPORT aclError aclmdlInitDump() { return ACL_SUCCESS; }
EXPORT aclError aclmdlSetDump(const char*) { return ACL_SUCCESS; }
EXPORT aclError aclmdlFinalizeDump() { return ACL_SUCCESS; }
EXPORT aclError aclrtDeviceGetBareTgid(int32_t* pid) {
  *pid = 0;
  return ACL_ERROR_RT_FEATURE_NOT_SUPPORT;
}

// The profiler asks for these at import; nothing is recorded.
EXPORT uint64_t MsprofGetHashId(const char*, size_t) { return 0; }
EXPORT int32_t MsprofRegisterCallback(uint32_t, void*) { return 0; }
EXPORT int32_t MsprofReportAdditionalInfo(uint32_t, const void*, uint32_t) { return 0; }
EXPORT int32_t MsprofReportApi(uint32_t, const void*) { return 0; }
EXPORT int32_t MsprofReportCompactInfo(uint32_t, const void*, uint32_t) { return 0; }
EXPORT uint64_t MsprofSysCycleTime() { return 0; }
