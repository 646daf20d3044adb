// torch's CUDA build and torch_npu both register the allocator option names of their own, in static
// initialisers, and torch aborts on the second registration ("Duplicated key"). This library is
// loaded before torch_npu's, which needs it: it takes the names away, and aclInit puts them back, by
// when torch_npu's own initialisers have run.
#include <c10/core/AllocatorConfig.h>

#include <string>
#include <unordered_set>

#include "emulated.h"

namespace {

std::unordered_set<std::string>& keys() {
  return c10::CachingAllocator::AcceleratorAllocatorConfig::getMutableKeys();
}

std::unordered_set<std::string> take_keys() {
  auto found = keys();
  keys().clear();
  return found;
}

// An initialiser of its own: a constructor function would run before that of an empty set, which would forget them.
std::unordered_set<std::string> taken = take_keys();

}  // namespace

namespace emulated {

void restore_allocator_keys() {
  keys().insert(taken.begin(), taken.end());
  taken.clear();
}

}  // namespace emulated
