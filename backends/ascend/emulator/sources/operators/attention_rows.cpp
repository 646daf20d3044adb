// The versions of the fused attention's aclnn function. Later ones add arguments; which one torch_npu
// calls depends on the arguments and the chip. Source: op-plugin, FlashAttention*KernelNpuOpApi.cpp.
#include "attention.h"

using namespace emulated;

#define LAYOUT (=, layout = std::string(layout))
#define LAYOUTS (=, layout = std::string(layout), softmax_layout = std::string(softmax_layout))
#define SAME (softmax_layout == "same_as_input")

#define INPUTS In q, In k, In v, In bias, In dropout, In padding, In mask
#define GRAD_INPUTS \
  In q, In k, In v, In dy, In bias, In dropout, In padding, In mask, In maximum, In sum, In reserved, In out
#define NUMBERS double scale, double keep, int64_t before, int64_t after, int64_t heads, const char* layout, \
                int64_t precise, int64_t mode
#define ENDS Ints q_ends, Ints kv_ends
#define STARTS Ints q_start, Ints kv_start

// The problem, with what a version has beyond the first one.
#define PROBLEM(Q_ENDS, KV_ENDS, ...)                                                                                  \
  Problem {                                                                                                            \
    q, k, v, bias, dropout, mask, prefix, Q_ENDS, KV_ENDS, scale, keep, before, after, heads, layout, precise, mode,   \
        ##__VA_ARGS__                                                                                                  \
  }

ACLNN_LIMITED_WITH(FlashAttentionScore, (INPUTS, Ints prefix, NUMBERS, Out maximum, Out sum, Out reserved, Out out), LAYOUT,
           attention_forward(PROBLEM({}, {}), maximum, sum, out))
ACLNN_LIMITED_WITH(FlashAttentionScoreGrad, (GRAD_INPUTS, Ints prefix, NUMBERS, Out dq, Out dk, Out dv, Out dbias), LAYOUT,
           attention_backward(PROBLEM({}, {}), dy, {maximum, sum, out}, {dq, dk, dv, dbias}))
ACLNN_LIMITED_WITH(FlashAttentionScoreV2,
           (INPUTS, Ints prefix, STARTS, NUMBERS, int64_t kind, Out maximum, Out sum, Out reserved, Out out), LAYOUT,
           attention_forward(PROBLEM({}, {}, {}, {}, {}, kind, q_start, kv_start), maximum, sum, out))
ACLNN_LIMITED_WITH(FlashAttentionScoreGradV2,
           (GRAD_INPUTS, Ints prefix, STARTS, NUMBERS, int64_t kind, Out dq, Out dk, Out dv, Out dbias), LAYOUT,
           attention_backward(PROBLEM({}, {}, {}, {}, {}, kind, q_start, kv_start), dy, {maximum, sum, out},
                              {dq, dk, dv, dbias}))
ACLNN_LIMITED_WITH(FlashAttentionScoreV3,
           (INPUTS, In sink, Ints prefix, STARTS, NUMBERS, int64_t kind, Out maximum, Out sum, Out reserved, Out out),
           LAYOUT, attention_forward(PROBLEM({}, {}, {}, {}, sink, kind, q_start, kv_start), maximum, sum, out))
ACLNN_LIMITED_WITH(FlashAttentionScoreGradV3,
           (GRAD_INPUTS, In sink, Ints prefix, STARTS, NUMBERS, int64_t kind, Out dq, Out dk, Out dv, Out dbias, Out dsink),
           LAYOUT,
           attention_backward(PROBLEM({}, {}, {}, {}, sink, kind, q_start, kv_start), dy, {maximum, sum, out},
                              {dq, dk, dv, dbias, {}, {}, dsink}))

ACLNN_LIMITED_WITH(FlashAttentionVarLenScore,
           (INPUTS, Ints prefix, ENDS, NUMBERS, Out maximum, Out sum, Out reserved, Out out), LAYOUT,
           attention_forward(PROBLEM(q_ends, kv_ends), maximum, sum, out))
ACLNN_LIMITED_WITH(FlashAttentionUnpaddingScoreGrad,
           (GRAD_INPUTS, Ints prefix, ENDS, NUMBERS, Out dq, Out dk, Out dv, Out dbias), LAYOUT,
           attention_backward(PROBLEM(q_ends, kv_ends), dy, {maximum, sum, out}, {dq, dk, dv, dbias}))
ACLNN_LIMITED_WITH(FlashAttentionVarLenScoreV2,
           (INPUTS, Ints prefix, ENDS, STARTS, NUMBERS, int64_t kind, Out maximum, Out sum, Out reserved, Out out), LAYOUT,
           attention_forward(PROBLEM(q_ends, kv_ends, {}, {}, {}, kind, q_start, kv_start), maximum, sum, out))
ACLNN_LIMITED_WITH(FlashAttentionUnpaddingScoreGradV2,
           (GRAD_INPUTS, Ints prefix, ENDS, STARTS, NUMBERS, int64_t kind, Out dq, Out dk, Out dv, Out dbias), LAYOUT,
           attention_backward(PROBLEM(q_ends, kv_ends, {}, {}, {}, kind, q_start, kv_start), dy, {maximum, sum, out},
                              {dq, dk, dv, dbias}))
ACLNN_LIMITED_WITH(FlashAttentionVarLenScoreV3,
           (In q, In q_rope, In k, In k_rope, In v, In bias, In dropout, In padding, In mask, Ints prefix, ENDS, STARTS,
            NUMBERS, int64_t kind, Out maximum, Out sum, Out reserved, Out out),
           LAYOUT,
           attention_forward(PROBLEM(q_ends, kv_ends, q_rope, k_rope, {}, kind, q_start, kv_start), maximum, sum, out))
ACLNN_LIMITED_WITH(FlashAttentionUnpaddingScoreGradV3,
           (In q, In q_rope, In k, In k_rope, In v, In dy, In bias, In dropout, In padding, In mask, In maximum, In sum,
            In reserved, In out, Ints prefix, ENDS, STARTS, NUMBERS, int64_t kind, Out dq, Out dq_rope, Out dk,
            Out dk_rope, Out dv, Out dbias),
           LAYOUT,
           attention_backward(PROBLEM(q_ends, kv_ends, q_rope, k_rope, {}, kind, q_start, kv_start), dy,
                              {maximum, sum, out}, {dq, dk, dv, dbias, dq_rope, dk_rope}))
// With the softmax packed like the query, which the first version does not offer.
ACLNN_LIMITED_WITH(FlashAttentionVarLenScoreV4,
           (INPUTS, Ints prefix, ENDS, NUMBERS, const char* softmax_layout, Out maximum, Out sum, Out reserved, Out out),
           LAYOUTS, attention_forward(PROBLEM(q_ends, kv_ends, {}, {}, {}, 1, {}, {}, SAME), maximum, sum, out))
ACLNN_LIMITED_WITH(FlashAttentionUnpaddingScoreGradV4,
           (GRAD_INPUTS, Ints prefix, ENDS, NUMBERS, Out dq, Out dk, Out dv, Out dbias, const char* softmax_layout), LAYOUTS,
           attention_backward(PROBLEM(q_ends, kv_ends, {}, {}, {}, 1, {}, {}, SAME), dy, {maximum, sum, out},
                              {dq, dk, dv, dbias}))
ACLNN_LIMITED_WITH(FlashAttentionVarLenScoreV5,
           (In q, In q_rope, In k, In k_rope, In v, In bias, In dropout, In padding, In mask, In sink, Ints prefix, ENDS,
            STARTS, NUMBERS, int64_t kind, const char* softmax_layout, Out maximum, Out sum, Out reserved, Out out),
           LAYOUTS,
           attention_forward(PROBLEM(q_ends, kv_ends, q_rope, k_rope, sink, kind, q_start, kv_start, SAME), maximum, sum,
                             out))
ACLNN_LIMITED_WITH(FlashAttentionUnpaddingScoreGradV5,
           (In q, In q_rope, In k, In k_rope, In v, In dy, In bias, In dropout, In padding, In mask, In maximum, In sum,
            In reserved, In out, In sink, Ints prefix, ENDS, STARTS, NUMBERS, int64_t kind, const char* softmax_layout,
            Out dq, Out dq_rope, Out dk, Out dk_rope, Out dv, Out dbias, Out dsink),
           LAYOUTS,
           attention_backward(PROBLEM(q_ends, kv_ends, q_rope, k_rope, sink, kind, q_start, kv_start, SAME), dy,
                              {maximum, sum, out}, {dq, dk, dv, dbias, dq_rope, dk_rope, dsink}))

// One version for all layouts: what torch_npu calls on a 950, whose kernel makes the bits of dropout
// itself. What FP8 adds is not emulated.
#define SEED (seed ^ (offset << 20))
ACLNN_LIMITED_WITH(FlashAttentionScoreV4,
                   (INPUTS, In, In, In, In, In, In, Ints prefix, ENDS, STARTS, NUMBERS, int64_t, int64_t kind,
                    const char* softmax_layout, int64_t seed, int64_t offset, Out maximum, Out sum, Out reserved, Out out),
                   LAYOUTS,
                   attention_forward(PROBLEM(q_ends, kv_ends, {}, {}, {}, kind, q_start, kv_start, SAME, SEED), maximum, sum, out))
ACLNN_LIMITED_WITH(FlashAttentionScoreGradV4,
                   (GRAD_INPUTS, In, In, In, In, In, In, In, In, Ints prefix, ENDS, STARTS, double scale, double keep,
                    int64_t before, int64_t after, int64_t heads, const char* layout, const char* softmax_layout,
                    int64_t precise, int64_t mode, int64_t kind, int64_t seed, int64_t offset, int64_t, Out dq, Out dk, Out dv, Out,
                    Out, Out dbias, Out),
                   LAYOUTS,
                   attention_backward(PROBLEM(q_ends, kv_ends, {}, {}, {}, kind, q_start, kv_start, SAME, SEED), dy,
                                      {maximum, sum, out}, {dq, dk, dv, dbias}))

namespace {

using at::Tensor;

// Two parts of one attention, over different keys, joined by their softmax statistics.
void ring_update(In one, In one_maximum, In one_sum, In other, In other_maximum, In other_sum, const std::string& layout,
                 const std::string& softmax_layout, Out out, Out maximum, Out sum) {
  bool packed = layout == "TND";
  require(!packed || softmax_layout == "TND", "TND is emulated with a softmax in TND");
  Tensor largest = at::maximum(one_maximum, other_maximum);
  Tensor first = *one_sum * (*one_maximum - largest).exp(), second = *other_sum * (*other_maximum - largest).exp();
  Tensor total = first + second;
  // Per row and head: [b, n, s, 1] -> [s, b, n, 1], or [t, n, 1].
  auto share = [&](const Tensor& part) {
    Tensor each = (part / total).slice(-1, 0, 1);
    return packed ? each : each.permute({2, 0, 1, 3});
  };
  auto heads = [&](In x) {
    Tensor values = wide(x);
    return packed ? values : values.view({x->size(0), x->size(1), one_maximum->size(1), -1});
  };
  out = heads(one) * share(first) + heads(other) * share(second);
  maximum = largest;
  sum = total;
}

}  // namespace

// MindSpeed's own operator calls the first version, torch_npu the second.
ACLNN_WITH(RingAttentionUpdate,
           (In one, In one_maximum, In one_sum, In other, In other_maximum, In other_sum, In, const char* layout, Out out,
            Out maximum, Out sum),
           LAYOUT,
           ring_update(one, one_maximum, one_sum, other, other_maximum, other_sum, layout, layout, out, maximum, sum))
ACLNN_WITH(RingAttentionUpdateV2,
           (In one, In one_maximum, In one_sum, In other, In other_maximum, In other_sum, In, const char* layout,
            const char* softmax_layout, Out out, Out maximum, Out sum),
           LAYOUTS,
           ring_update(one, one_maximum, one_sum, other, other_maximum, other_sum, layout, softmax_layout, out, maximum,
                       sum))
