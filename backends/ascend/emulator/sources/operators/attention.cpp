// Fused attention, forward and backward, as npu_fusion_attention calls it: layouts BSH, SBH, BSND,
// BNSD and TND (packed), sparse modes 0-8, GQA, dropout bits, position bias.
//
// The argument rules are those of op-plugin's document of npu_fusion_attention ("约束说明"); what
// the document leaves undefined (a mask that disagrees with the band, for instance) is refused here.
#include <algorithm>
#include <cstring>
#include <limits>

#include "operator.h"

using namespace emulated;

namespace {

using at::Tensor;

constexpr int64_t kTriangle = 2048;  // side of the compressed masks of modes 2, 3, 4, 7 and 8
constexpr int64_t kRectangle = 1024;  // what the one of mode 6 has below its triangle
constexpr int64_t kBits = 8;

// The inputs of both directions.
struct Problem {
  In q, k, v, bias, dropout, mask;
  Ints prefix, q_ends, kv_ends;
  double scale, keep;
  int64_t before, after, heads;
  std::string layout;
  int64_t precise, mode;

  bool packed() const { return layout == "TND"; }
};

// One batch: [b, n, s, d] in float32, K and V with the query's number of heads.
struct Batch {
  Tensor q, k, v, bias;
  int64_t kv_heads;
};

Tensor to_bnsd(const Tensor& x, int64_t heads, const std::string& layout) {
  Tensor wide = x.to(at::kFloat);
  if (layout == "BNSD") return wide;
  if (layout == "BSND") return wide.transpose(1, 2);
  Tensor split = wide.view({x.size(0), x.size(1), heads, -1});
  return layout == "SBH" ? split.permute({1, 2, 0, 3}) : split.transpose(1, 2);
}

Tensor from_bnsd(const Tensor& x, const std::string& layout, at::IntArrayRef sizes) {
  if (layout == "SBH") return x.permute({2, 0, 1, 3}).reshape(sizes);
  if (layout == "BNSD") return x;
  return x.transpose(1, 2).reshape(sizes);
}

// The mask of 2048 x 2048 (mode 6: 3072 x 2048) from which the kernel cuts everything it needs.
// Both are kept: every call of every layer is compared with one.
const Tensor& compressed_mask(int64_t mode) {
  static const Tensor triangle = at::ones({kTriangle, kTriangle}, at::kBool).triu(1);
  static const Tensor whole = [] {
    Tensor rectangle = at::zeros({kRectangle, kTriangle}, at::kBool);
    rectangle.slice(1, kTriangle / 2).fill_(true);
    return at::cat({triangle, rectangle});
  }();
  return mode == 6 ? whole : triangle;
}

// at::equal, but ten times as fast where the bytes are the same.
bool is_mask(const Tensor& given, const Tensor& wanted) {
  Tensor mask = given.to(at::kBool).contiguous();
  return std::memcmp(mask.const_data_ptr(), wanted.const_data_ptr(), wanted.nbytes()) == 0 || at::equal(mask, wanted);
}

int64_t kv_heads_of(const Problem& p) {
  if (p.layout == "BNSD" || p.packed()) return p.k->size(1);
  if (p.layout == "BSND") return p.k->size(2);
  return p.k->size(2) / (p.q->size(2) / p.heads);
}

Tensor repeat_heads(const Tensor& x, int64_t times) { return times == 1 ? x : x.repeat_interleave(times, 1); }

// Gradients of repeated heads, added up.
Tensor fold_heads(const Tensor& x, int64_t kv_heads) {
  if (x.size(1) == kv_heads) return x;
  return x.view({x.size(0), kv_heads, -1, x.size(2), x.size(3)}).sum(2);
}

void check(const Problem& p) {
  auto type = p.q->scalar_type();
  require(type == at::kHalf || type == at::kBFloat16 || type == at::kFloat,
          "query must be float16, bfloat16 or float32");
  require(p.k->scalar_type() == type && p.v->scalar_type() == type, "query, key and value must have one dtype");
  if (p.bias) require(p.bias->scalar_type() == type, "pse must have the query's dtype");
  int64_t kv_heads = kv_heads_of(p);
  require(p.heads >= 1 && p.heads <= 256, "head_num must be 1 to 256");
  require(kv_heads > 0 && p.heads % kv_heads == 0, "head_num must be a multiple of the key's heads");
  int64_t size = p.layout == "BSH" || p.layout == "SBH" ? p.q->size(2) / p.heads : p.q->size(-1);
  require(size >= 1 && size <= 768, "the head dimension must be 1 to 768");
  bool split = p.layout != "BSH" && p.layout != "SBH";
  require((split ? p.k->size(-1) : p.k->size(2) / kv_heads) == size, "query and key must have one head dimension");
  require(!split || p.v->size(-1) <= size, "value's head dimension must not be above key's");
  require(!(p.bias && p.packed()), "pse with TND is not emulated");
  // torch_npu itself checks sparse_mode, keep_prob, and that TND has ends of one length.
  if (!p.mask) return;
  require(p.mask->scalar_type() == at::kBool || p.mask->scalar_type() == at::kByte, "atten_mask must be bool or uint8");
  if (p.mode == 0) return;
  if (p.mode != 1 && p.mode != 5) {
    const Tensor& wanted = compressed_mask(p.mode);
    require(p.mask->sizes() == wanted.sizes(), "sparse_mode " + std::to_string(p.mode) + " takes the compressed mask of " +
                                                   std::to_string(wanted.size(0)) + " x 2048");
    require(is_mask(*p.mask, wanted),
            "the compressed mask must be the upper triangle without the diagonal" +
                std::string(p.mode == 6 ? ", above a rectangle of which the right half is hidden" : ""));
  }
  if (p.mode == 4) require(p.before + p.after >= 0, "sparse_mode 4: pre_tockens and next_tockens leave no band");
  if (p.mode == 5 || p.mode == 6) {
    require(bool(p.prefix), "sparse_mode 5 and 6 need prefix");
    require((*p.prefix).size() <= 32, "prefix takes at most 32 batches");
  }
  require(p.mode != 5 || p.mask->dim() == 4, "sparse_mode 5 takes a mask of BNSS or B1SS");
}

// In [0, Skv], and with no more keys than queries were there to be causal from: [Skv - Sq, Skv].
int64_t checked_prefix(int64_t prefix, int64_t sq, int64_t sk) {
  require(prefix >= (sq > sk ? 0 : sk - sq) && prefix <= sk,
          "prefix must be within [max(0, Skv - Sq), Skv], it is " + std::to_string(prefix));
  return prefix;
}

// What lies outside the band: allowed is `i + shift - before <= j <= i + shift + after`.
Tensor outside_band(int64_t sq, int64_t sk, int64_t shift, int64_t before, int64_t after) {
  Tensor distance = at::arange(sk).unsqueeze(0) - (at::arange(sq).unsqueeze(1) + shift);
  return distance.gt(after).logical_or(distance.lt(-before));
}

// The masks of batch `b`, if masks have batches or heads.
Tensor given_mask(const Problem& p, int64_t sq, int64_t sk) {
  Tensor mask = p.mask->to(at::kBool);
  require(mask.size(-2) >= sq && mask.size(-1) >= sk,
          "atten_mask must cover every query and key of the longest sequence");
  require(p.packed() || (mask.size(-2) == sq && mask.size(-1) == sk),
          "atten_mask must be BNSS, B1SS, 11SS or SS");
  mask = mask.slice(-2, 0, sq).slice(-1, 0, sk);
  require(!p.packed() || !mask.all(-1).any().item<bool>(), "with TND, no row of atten_mask may be hidden as a whole");
  return mask;
}

// True where nothing may be attended to; an undefined tensor where all may. Last two dimensions
// [sq, sk]. `b` is the batch, or the sequence of a packed one; `count` how many there are.
Tensor hidden(const Problem& p, int64_t sq, int64_t sk, int64_t b, int64_t count) {
  if (!p.mask) return Tensor();  // the modes have no effect without a mask: full attention
  constexpr int64_t unlimited = std::numeric_limits<int32_t>::max();
  switch (p.mode) {
    case 0: {
      Tensor mask = given_mask(p, sq, sk);
      Tensor outside = outside_band(sq, sk, 0, p.before, p.after);
      require(outside.logical_and(mask.logical_not()).any().item<bool>() == false,
              "sparse_mode 0: atten_mask allows what pre_tockens and next_tockens forbid");
      return mask;
    }
    case 1: return given_mask(p, sq, sk);
    case 2: return outside_band(sq, sk, 0, unlimited, 0);
    case 3: return outside_band(sq, sk, sk - sq, unlimited, 0);
    case 4: return outside_band(sq, sk, sk - sq, p.before, p.after);
    case 5:
      for (int64_t prefix : *p.prefix) checked_prefix(prefix, sq, sk);
      return given_mask(p, sq, sk);
    case 6: {
      Tensor causal = outside_band(sq, sk, sk - sq, unlimited, 0);
      std::vector<Tensor> masks;
      for (int64_t i = 0; i < (p.packed() ? 1 : count); i++) {
        int64_t free = checked_prefix((*p.prefix)[p.packed() ? b : i], sq, sk);
        masks.push_back(causal.logical_and(at::arange(sk).ge(free)));
      }
      return at::stack(masks).unsqueeze(1);
    }
    // The last (7) or first (8) sequence is a part of one that was cut; its band is counted from the
    // bottom right, as in mode 4. The others are causal as in mode 3 (7) or 2 (8).
    case 7:
      if (b < count - 1) return outside_band(sq, sk, sk - sq, unlimited, 0);
      require(p.before >= sk && p.after <= 0, "sparse_mode 7: pre_tockens >= the last Skv, next_tockens <= 0");
      return outside_band(sq, sk, sk - sq, p.before, p.after);
    case 8:
      if (b > 0) return outside_band(sq, sk, 0, unlimited, 0);
      require(p.before >= sk, "sparse_mode 8: pre_tockens >= the first Skv");
      return outside_band(sq, sk, sk - sq, p.before, p.after);
    default: refuse("sparse_mode " + std::to_string(p.mode));
  }
}

struct Softmax {
  Tensor probabilities, maximum, sum;
};

Softmax softmax(const Problem& p, const Batch& x, int64_t b, int64_t count) {
  Tensor scores = at::matmul(x.q, x.k.transpose(-1, -2));
  if (x.bias.defined()) scores = scores + x.bias;
  scores = scores * p.scale;
  Tensor mask = hidden(p, scores.size(-2), scores.size(-1), b, count);
  if (mask.defined()) scores = scores.masked_fill(mask, std::numeric_limits<float>::lowest());
  Softmax s;
  s.maximum = scores.amax(-1, true);
  Tensor e = (scores - s.maximum).exp();
  s.sum = e.sum(-1, true);
  s.probabilities = e / s.sum;
  // Rows that see nothing: zero where the kernel looks for them, an average of all values else.
  bool looks = p.precise == 2 || (p.mode == 3 && scores.size(-2) > scores.size(-1));
  if (mask.defined() && looks) s.probabilities = s.probabilities.masked_fill(mask.all(-1, true), 0.0);
  return s;
}

// One scaled 0/1 per probability from the mask's bits, starting at `first`.
Tensor kept(const Problem& p, at::IntArrayRef sizes, int64_t first) {
  if (!p.dropout || p.keep == 1) return Tensor();
  int64_t count = c10::multiply_integers(sizes);
  Tensor powers = at::pow(2, at::arange(kBits)).to(at::kByte);
  Tensor bits = p.dropout->view({-1, 1}).bitwise_and(powers).ne(0).view(-1).slice(0, first, first + count);
  return bits.view(sizes).to(at::kFloat) / p.keep;
}

struct Gradients {
  Tensor q, k, v;
};

Gradients backward(const Problem& p, const Batch& x, const Softmax& s, const Tensor& drop, const Tensor& dy) {
  Tensor dropped = drop.defined() ? s.probabilities * drop : s.probabilities;
  Tensor dp = at::matmul(dy, x.v.transpose(-1, -2));
  if (drop.defined()) dp = dp * drop;
  Tensor ds = s.probabilities * (dp - (dp * s.probabilities).sum(-1, true)) * p.scale;
  return {at::matmul(ds, x.k), fold_heads(at::matmul(ds.transpose(-1, -2), x.q), x.kv_heads),
          fold_heads(at::matmul(dropped.transpose(-1, -2), dy), x.kv_heads)};
}

Batch whole(const Problem& p) {
  int64_t kv_heads = kv_heads_of(p), times = p.heads / kv_heads;
  Batch x{to_bnsd(p.q, p.heads, p.layout), repeat_heads(to_bnsd(p.k, kv_heads, p.layout), times),
          repeat_heads(to_bnsd(p.v, kv_heads, p.layout), times), Tensor(), kv_heads};
  if (p.bias) x.bias = p.bias->to(at::kFloat);
  return x;
}

// Sequence by sequence over packed [t, n, d]. `visit(batch, index, q_slice, kv_slice, first_bit)`.
template <typename Visit>
void each_sequence(const Problem& p, Visit visit) {
  int64_t kv_heads = kv_heads_of(p), times = p.heads / kv_heads;
  int64_t q_start = 0, kv_start = 0, first_bit = 0;
  // Trailing zeros are batches that take no part.
  auto count = static_cast<int64_t>((*p.q_ends).size());
  while (count > 0 && (*p.q_ends)[count - 1] == 0) count--;
  for (int64_t b = 0; b < count; b++) {
    int64_t q_end = (*p.q_ends)[b], kv_end = (*p.kv_ends)[b];
    require(q_end >= q_start && kv_end >= kv_start && q_end <= p.q->size(0) && kv_end <= p.k->size(0),
            "actual_seq_qlen and actual_seq_kvlen must be cumulative, without a leading 0, and end within T");
    auto part = [](const Tensor& x, int64_t from, int64_t to) {
      return x.slice(0, from, to).to(at::kFloat).transpose(0, 1).unsqueeze(0);
    };
    Batch x{part(p.q, q_start, q_end), repeat_heads(part(p.k, kv_start, kv_end), times),
            repeat_heads(part(p.v, kv_start, kv_end), times), Tensor(), kv_heads};
    if (q_end > q_start && kv_end > kv_start) visit(x, b, count, q_start, kv_start, first_bit);
    first_bit += p.heads * (q_end - q_start) * (kv_end - kv_start);
    q_start = q_end;
    kv_start = kv_end;
  }
}

// [1, n, s, d] -> [s, n, d]
Tensor packed_rows(const Tensor& x) { return x.squeeze(0).transpose(0, 1); }

void forward(const Problem& p, Out maximum, Out sum, Out out) {
  check(p);
  if (!p.packed()) {
    Batch x = whole(p);
    Softmax s = softmax(p, x, 0, x.q.size(0));
    Tensor drop = kept(p, s.probabilities.sizes(), 0);
    Tensor y = at::matmul(drop.defined() ? s.probabilities * drop : s.probabilities, x.v);
    out = from_bnsd(y, p.layout, out->sizes());
    maximum = s.maximum;
    sum = s.sum;
    return;
  }
  out->zero_();
  each_sequence(p, [&](const Batch& x, int64_t b, int64_t count, int64_t q_start, int64_t, int64_t bit) {
    Softmax s = softmax(p, x, b, count);
    Tensor drop = kept(p, s.probabilities.sizes(), bit);
    Tensor y = at::matmul(drop.defined() ? s.probabilities * drop : s.probabilities, x.v);
    int64_t length = x.q.size(2);
    out->slice(0, q_start, q_start + length).copy_(packed_rows(y));
    maximum->slice(0, q_start, q_start + length).copy_(packed_rows(s.maximum).expand({length, p.heads, 8}));
    sum->slice(0, q_start, q_start + length).copy_(packed_rows(s.sum).expand({length, p.heads, 8}));
  });
}

void backward(const Problem& p, In dy, Out dq, Out dk, Out dv) {
  check(p);
  if (!p.packed()) {
    Batch x = whole(p);
    Softmax s = softmax(p, x, 0, x.q.size(0));
    Gradients g = backward(p, x, s, kept(p, s.probabilities.sizes(), 0), to_bnsd(dy, p.heads, p.layout));
    dq = from_bnsd(g.q, p.layout, dq->sizes());
    dk = from_bnsd(g.k, p.layout, dk->sizes());
    dv = from_bnsd(g.v, p.layout, dv->sizes());
    return;
  }
  for (Out out : {dq, dk, dv}) out->zero_();
  each_sequence(p, [&](const Batch& x, int64_t b, int64_t count, int64_t q_start, int64_t kv_start, int64_t bit) {
    int64_t q_end = q_start + x.q.size(2), kv_end = kv_start + x.k.size(2);
    Softmax s = softmax(p, x, b, count);
    Tensor g = dy->slice(0, q_start, q_end).to(at::kFloat).transpose(0, 1).unsqueeze(0);
    Gradients d = backward(p, x, s, kept(p, s.probabilities.sizes(), bit), g);
    dq->slice(0, q_start, q_end).copy_(packed_rows(d.q));
    dk->slice(0, kv_start, kv_end).copy_(packed_rows(d.k));
    dv->slice(0, kv_start, kv_end).copy_(packed_rows(d.v));
  });
}

}  // namespace

#define LAYOUT (=, layout = std::string(layout))

ACLNN_WITH(FlashAttentionScore,
           (In q, In k, In v, In bias, In dropout, In padding, In mask, Ints prefix, double scale, double keep,
            int64_t before, int64_t after, int64_t heads, const char* layout, int64_t precise, int64_t mode, Out maximum,
            Out sum, Out reserved, Out out),
           LAYOUT,
           forward({q, k, v, bias, dropout, mask, prefix, {}, {}, scale, keep, before, after, heads, layout, precise, mode},
                   maximum, sum, out))
ACLNN_WITH(FlashAttentionScoreGrad,
           (In q, In k, In v, In dy, In bias, In dropout, In padding, In mask, In maximum, In sum, In reserved, In out,
            Ints prefix, double scale, double keep, int64_t before, int64_t after, int64_t heads, const char* layout,
            int64_t precise, int64_t mode, Out dq, Out dk, Out dv, Out dbias),
           LAYOUT,
           backward({q, k, v, bias, dropout, mask, prefix, {}, {}, scale, keep, before, after, heads, layout, precise, mode},
                    dy, dq, dk, dv))
ACLNN_WITH(FlashAttentionVarLenScore,
           (In q, In k, In v, In bias, In dropout, In padding, In mask, Ints prefix, Ints q_ends, Ints kv_ends,
            double scale, double keep, int64_t before, int64_t after, int64_t heads, const char* layout, int64_t precise,
            int64_t mode, Out maximum, Out sum, Out reserved, Out out),
           LAYOUT,
           forward({q, k, v, bias, dropout, mask, prefix, q_ends, kv_ends, scale, keep, before, after, heads, layout,
                    precise, mode},
                   maximum, sum, out))
ACLNN_WITH(FlashAttentionUnpaddingScoreGrad,
           (In q, In k, In v, In dy, In bias, In dropout, In padding, In mask, In maximum, In sum, In reserved, In out,
            Ints prefix, Ints q_ends, Ints kv_ends, double scale, double keep, int64_t before, int64_t after,
            int64_t heads, const char* layout, int64_t precise, int64_t mode, Out dq, Out dk, Out dv, Out dbias),
           LAYOUT,
           backward({q, k, v, bias, dropout, mask, prefix, q_ends, kv_ends, scale, keep, before, after, heads, layout,
                     precise, mode},
                    dy, dq, dk, dv))
