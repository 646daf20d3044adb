// Fused attention as npu_fusion_attention calls it, in all the versions of its aclnn function.
#pragma once

#include "operator.h"

namespace emulated {

// The inputs of both directions. The last line is what the later versions added.
struct Problem {
  In q, k, v, bias, dropout, mask;
  Ints prefix, q_ends, kv_ends;
  double scale, keep;
  int64_t before, after, heads;
  std::string layout;
  int64_t precise, mode;
  In q_rope{}, k_rope{}, sink{};
  int64_t bias_kind = 1;  // 0: added after the scale, 1: before it, 2 and 3: ALiBi slopes
  Ints q_start{}, kv_start{};
  bool packed_softmax = false;  // with TND, whether the softmax's rows are packed like the query's
  std::optional<int64_t> seed{};  // without bits: the kernel makes them itself

  bool packed() const { return layout == "TND"; }
};

void attention_forward(const Problem& p, Out maximum, Out sum, Out out);

// The softmax of the forward call, which may have seen more keys than these (ring attention).
struct Forward {
  In maximum, sum, out;
};
// What the backward call fills; absent ones take nothing.
struct Filled {
  Out q, k, v, bias{}, q_rope{}, k_rope{}, sink{};
};
void attention_backward(const Problem& p, In dy, const Forward& forward, const Filled& filled);

}  // namespace emulated
