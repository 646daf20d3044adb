// Device memory: host memory, counted against a device's size, and copies.
#include <sys/types.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "emulated.h"

namespace emulated {
namespace {

// CANN aligns device memory to 512 bytes.
constexpr size_t kAlignment = 512;
constexpr size_t kDefaultMemory = size_t{16} << 30;

struct Block {
  size_t bytes;
  int device;
};

std::mutex guard;
std::map<const char*, Block> blocks;
std::map<int, size_t> used;

aclError allocate(void** pointer, size_t bytes) {
  int device = current_device();
  std::lock_guard<std::mutex> lock(guard);
  if (used[device] + bytes > total_memory() ||
      posix_memalign(pointer, kAlignment, bytes ? bytes : 1) != 0) {
    return fail(ACL_ERROR_RT_MEMORY_ALLOCATION,
                "out of memory: " + std::to_string(bytes) + " bytes asked for, " +
                    std::to_string(used[device]) + " of " + std::to_string(total_memory()) +
                    " are taken (emulate-ascend --memory sets the size)");
  }
  used[device] += bytes;
  blocks[static_cast<char*>(*pointer)] = {bytes, device};
  return ACL_SUCCESS;
}

const Block* block_of(const void* pointer) {
  auto after = blocks.upper_bound(static_cast<const char*>(pointer));
  if (after == blocks.begin()) return nullptr;
  --after;
  return pointer < after->first + after->second.bytes ? &after->second : nullptr;
}

}  // namespace

size_t total_memory() {
  static const size_t bytes = [] {
    const char* text = std::getenv("ASCEND_EMULATOR_MEMORY");
    return text ? std::strtoull(text, nullptr, 10) : kDefaultMemory;
  }();
  return bytes;
}

size_t free_memory(int device) {
  std::lock_guard<std::mutex> lock(guard);
  return total_memory() - used[device];
}

}  // namespace emulated

using namespace emulated;

EXPORT aclError aclrtMalloc(void** pointer, size_t bytes, aclrtMemMallocPolicy) {
  return allocate(pointer, bytes);
}
EXPORT aclError aclrtMallocAlign32(void** pointer, size_t bytes, aclrtMemMallocPolicy) {
  return allocate(pointer, bytes);
}

EXPORT aclError aclrtFree(void* pointer) {
  std::lock_guard<std::mutex> lock(guard);
  auto found = blocks.find(static_cast<char*>(pointer));
  if (found == blocks.end()) return fail(ACL_ERROR_RT_PARAM_INVALID, "freed memory that is not the device's");
  used[found->second.device] -= found->second.bytes;
  blocks.erase(found);
  std::free(pointer);
  return ACL_SUCCESS;
}

EXPORT aclError aclrtMallocHost(void** pointer, size_t bytes) {
  return posix_memalign(pointer, kAlignment, bytes ? bytes : 1) == 0 ? ACL_SUCCESS
                                                                     : ACL_ERROR_RT_MEMORY_ALLOCATION;
}
EXPORT aclError aclrtMallocHostWithCfg(void** pointer, uint64_t bytes, aclrtMallocConfig*) {
  return aclrtMallocHost(pointer, bytes);
}
EXPORT aclError aclrtFreeHost(void* pointer) {
  std::free(pointer);
  return ACL_SUCCESS;
}
EXPORT aclError aclrtHostRegister(void* pointer, uint64_t, aclrtHostRegisterType, void** device) {
  *device = pointer;
  return ACL_SUCCESS;
}
EXPORT aclError aclrtHostUnregister(void*) { return ACL_SUCCESS; }

EXPORT aclError aclrtMemcpy(void* to, size_t room, const void* from, size_t bytes, aclrtMemcpyKind) {
  if (bytes > room) return fail(ACL_ERROR_RT_PARAM_INVALID, "a copy longer than its target");
  std::memmove(to, from, bytes);
  return ACL_SUCCESS;
}
EXPORT aclError aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t bytes,
                                 aclrtMemcpyKind kind, aclrtStream) {
  return aclrtMemcpy(to, room, from, bytes, kind);
}
EXPORT aclError aclrtMemset(void* to, size_t, int32_t value, size_t bytes) {
  std::memset(to, value, bytes);
  return ACL_SUCCESS;
}
EXPORT aclError aclrtMemsetAsync(void* to, size_t room, int32_t value, size_t bytes, aclrtStream) {
  return aclrtMemset(to, room, value, bytes);
}

EXPORT aclError aclrtPointerGetAttributes(const void* pointer, aclrtPtrAttributes* attributes) {
  std::lock_guard<std::mutex> lock(guard);
  const Block* block = block_of(pointer);
  attributes->location.type =
      block ? ACL_MEM_LOCATION_TYPE_DEVICE : ACL_MEM_LOCATION_TYPE_UNREGISTERED;
  attributes->location.id = block ? block->device : 0;
  return ACL_SUCCESS;
}

// Virtual memory management is refused: torch_npu then does without expandable segments.
EXPORT aclError aclrtReserveMemAddress(void**, size_t, size_t, void*, uint64_t) {
  return fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "expandable segments are not emulated");
}
EXPORT aclError aclrtReleaseMemAddress(void*) { return ACL_ERROR_RT_FEATURE_NOT_SUPPORT; }
EXPORT aclError aclrtMallocPhysical(aclrtDrvMemHandle*, size_t, const aclrtPhysicalMemProp*, uint64_t) {
  return fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "physical memory handles are not emulated");
}
EXPORT aclError aclrtFreePhysical(aclrtDrvMemHandle) { return ACL_ERROR_RT_FEATURE_NOT_SUPPORT; }
EXPORT aclError aclrtMapMem(void*, size_t, size_t, aclrtDrvMemHandle, uint64_t) {
  return ACL_ERROR_RT_FEATURE_NOT_SUPPORT;
}
EXPORT aclError aclrtUnmapMem(void*) { return ACL_ERROR_RT_FEATURE_NOT_SUPPORT; }
EXPORT aclError aclrtMemExportToShareableHandle(aclrtDrvMemHandle, aclrtMemHandleType, uint64_t, uint64_t*) {
  return ACL_ERROR_RT_FEATURE_NOT_SUPPORT;
}
EXPORT aclError aclrtMemImportFromShareableHandle(uint64_t, int32_t, aclrtDrvMemHandle*) {
  return ACL_ERROR_RT_FEATURE_NOT_SUPPORT;
}
EXPORT aclError aclrtMemSetPidToShareableHandle(uint64_t, int32_t*, size_t) {
  return ACL_ERROR_RT_FEATURE_NOT_SUPPORT;
}
