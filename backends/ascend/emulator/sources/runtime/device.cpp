// Devices, contexts and what a program asks about them.
#include <dirent.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "emulated.h"

namespace emulated {
namespace {

constexpr int kMostDevices = 64;
// One byte each: contexts are distinguished by address.
char contexts[kMostDevices];
thread_local int device_of_thread = -1;
int first_device = -1;

int davinci_files() {
  const char* root = std::getenv("ASCEND_EMULATOR_ROOT");
  if (root == nullptr) return 0;
  int count = 0;
  if (DIR* directory = opendir((std::string(root) + "/dev").c_str())) {
    while (dirent* entry = readdir(directory)) {
      const char* number = entry->d_name + 7;
      if (std::strncmp(entry->d_name, "davinci", 7) == 0 && *number >= '0' && *number <= '9') count++;
    }
    closedir(directory);
  }
  return std::min(count, kMostDevices);
}

// The list ends at the first entry that is not a device's number, as CANN documents it.
int visible(int devices) {
  const char* list = std::getenv("ASCEND_RT_VISIBLE_DEVICES");
  if (list == nullptr) return devices;
  std::stringstream words(list);
  std::string word;
  int count = 0;
  while (std::getline(words, word, ',')) {
    char* end = nullptr;
    long number = std::strtol(word.c_str(), &end, 10);
    if (word.empty() || *end != 0 || number < 0 || number >= devices) break;
    count++;
  }
  return count;
}

}  // namespace

int device_count() {
  static const int count = visible(davinci_files());
  return count;
}

int current_device() { return device_of_thread; }

}  // namespace emulated

using namespace emulated;

EXPORT aclError aclInit(const char*) {
  restore_allocator_keys();
  return ACL_SUCCESS;
}
EXPORT aclError aclFinalize() { return ACL_SUCCESS; }

EXPORT aclError aclrtGetDeviceCount(uint32_t* count) {
  *count = device_count();
  if (*count > 0) return ACL_SUCCESS;
  const char* list = std::getenv("ASCEND_RT_VISIBLE_DEVICES");
  std::string why = list ? std::string(": ASCEND_RT_VISIBLE_DEVICES=") + list + " leaves none of " +
                               std::to_string(davinci_files())
                         : "";
  return fail(ACL_ERROR_RT_NO_DEVICE, "there is no device" + why);
}

EXPORT aclError aclrtSetDevice(int32_t device) {
  if (device < 0 || device >= device_count()) {
    return fail(ACL_ERROR_RT_PARAM_INVALID,
                "there is no device " + std::to_string(device) + "; this process sees " +
                    std::to_string(device_count()));
  }
  device_of_thread = device;
  if (first_device < 0) first_device = device;
  return ACL_SUCCESS;
}

EXPORT aclError aclrtGetDevice(int32_t* device) {
  if (device_of_thread < 0) return ACL_ERROR_RT_CONTEXT_NULL;
  *device = device_of_thread;
  return ACL_SUCCESS;
}

EXPORT aclError aclrtResetDevice(int32_t) { return ACL_SUCCESS; }
EXPORT aclError aclrtSynchronizeDevice() { return ACL_SUCCESS; }
EXPORT aclError aclrtSynchronizeDeviceWithTimeout(int32_t) { return ACL_SUCCESS; }

EXPORT aclError aclrtGetCurrentContext(aclrtContext* context) {
  if (device_of_thread < 0) return ACL_ERROR_RT_CONTEXT_NULL;
  *context = &contexts[device_of_thread];
  return ACL_SUCCESS;
}

EXPORT aclError aclrtSetCurrentContext(aclrtContext context) {
  device_of_thread = static_cast<int>(static_cast<char*>(context) - contexts);
  return ACL_SUCCESS;
}

EXPORT aclError aclrtGetPrimaryCtxState(int32_t device, uint32_t* flags, int32_t* active) {
  if (flags) *flags = 0;
  *active = device == first_device;
  return ACL_SUCCESS;
}

EXPORT const char* aclrtGetSocName() {
  // The name decides which operators torch_npu expects.
  const char* chip = std::getenv("ASCEND_EMULATOR_CHIP");
  return chip ? chip : "Ascend910B1";
}

EXPORT aclError aclGetDeviceCapability(uint32_t, aclDeviceInfo what, int64_t* value) {
  // Cores of a 910B1: 24 cube (AI) and 48 vector cores.
  *value = what == ACL_DEVICE_INFO_VECTOR_CORE_NUM ? 48 : 24;
  return ACL_SUCCESS;
}

EXPORT aclError aclrtGetDeviceResLimit(int32_t, aclrtDevResLimitType type, uint32_t* value) {
  *value = type == ACL_RT_DEV_RES_VECTOR_CORE ? 48 : 24;
  return ACL_SUCCESS;
}

EXPORT aclError aclrtDeviceCanAccessPeer(int32_t* can, int32_t one, int32_t other) {
  *can = one != other;
  return ACL_SUCCESS;
}

EXPORT aclError aclrtDeviceEnablePeerAccess(int32_t, uint32_t) { return ACL_SUCCESS; }

EXPORT aclError aclrtGetMemInfo(aclrtMemAttr, size_t* free, size_t* total) {
  *total = total_memory();
  *free = free_memory(current_device());
  return ACL_SUCCESS;
}

EXPORT aclError aclrtGetDeviceUtilizationRate(int32_t device, aclrtUtilizationInfo* info) {
  std::memset(info, 0, sizeof *info);
  info->memoryUtilization = 100 - static_cast<int32_t>(100 * free_memory(device) / total_memory());
  return ACL_SUCCESS;
}
