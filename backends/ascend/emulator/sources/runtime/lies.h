// Faults that a test plants with ASCEND_EMULATOR_LIES, to see that `accel-bridge first-run` finds them.
#pragma once

#include <cstdlib>
#include <string>

namespace emulated {

inline bool lies(const char* about) {
  static const char* set = std::getenv("ASCEND_EMULATOR_LIES");
  return set != nullptr && std::string(set).find(about) != std::string::npos;
}

}  // namespace emulated
