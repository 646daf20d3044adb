// GE, the graph engine, and its relatives: nothing is emulated behind these names. torchair's
// libraries load only if all of them can be found, and MindSpeed imports torchair.
#include <stdexcept>
#include <string>

#define ABSENT(NAME)                                                                                    \
  extern "C" __attribute__((visibility("default"))) void NAME() {                                       \
    throw std::runtime_error(std::string(#NAME) + ": CANN's graph engine is not emulated (torchair, "   \
                             "torch.compile with the npu backend)");                                    \
  }

// The names that the installed torchair asks for, which _build.py writes.
#include "absent.inc"
