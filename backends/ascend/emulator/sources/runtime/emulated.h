// What all parts of the emulated CANN runtime share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "acl/acl_base.h"
#include "acl/acl_rt.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace emulated {

// Keeps `message` for aclGetRecentErrMsg, which torch_npu appends to its own error.
aclError fail(aclError code, const std::string& message);

// The aclnn function that torch_npu last looked for without finding it, or nothing. torch_npu then
// falls back to the older operator interface; adding this function avoids that. Reported once.
std::string missed_function();

// Number of devices: the davinci files of the emulated machine that the process may see.
int device_count();

// The device of the calling thread; -1 before the first aclrtSetDevice.
int current_device();

// Bytes of one device's memory that this process has not taken yet, and of the whole device.
size_t free_memory(int device);
size_t total_memory();

// Undoes what allocator_keys.cpp did when this library was loaded.
void restore_allocator_keys();

// Milliseconds on a clock that only goes forward.
double milliseconds();

}  // namespace emulated
