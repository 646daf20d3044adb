// Fused attention, forward and backward, as npu_fusion_attention calls it: layouts BSH, SBH, BSND,
// BNSD and TND (packed), sparse modes 0-8, GQA, dropout bits, position bias.
//
// The argument rules are those of op-plugin's document of npu_fusion_attention ("约束说明"); what
// the document leaves undefined (a mask that disagrees with the band, for instance) is refused here.
#include <algorithm>
#include <cstring>
#include <limits>

#include <ATen/CPUGeneratorImpl.h>

#include "attention.h"

using namespace emulated;

namespace {

using at::Tensor;

constexpr int64_t kTriangle = 2048;  // side of the compressed masks of modes 2, 3, 4, 7 and 8
constexpr int64_t kRectangle = 1024;  // what the one of mode 6 has below its triangle
constexpr int64_t kBits = 8;

// One batch: [b, n, s, d] in float32, K and V with the query's number of heads.
struct Batch {
  Tensor q, k, v;
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

// What can be said of a call before its tensors are filled.
void look(const Problem& p) {
  Limits limits{"npu_fusion_attention"};
  limits("dtype", *p.q);
  auto type = p.q->scalar_type();
  require(p.k->scalar_type() == type && p.v->scalar_type() == type, "query, key and value must have one dtype");
  limits("layout", p.layout);
  limits("sink", p.sink ? 1 : 0);
  limits("packed_softmax", p.packed_softmax ? 1 : 0);
  if (p.bias) require(p.bias_kind > 1 || p.bias->scalar_type() == type, "pse must have the query's dtype");
  require(p.bias_kind >= 0 && p.bias_kind <= 3, "pse_type must be 0 to 3");
  if (p.bias_kind > 1) require(p.bias && p.bias->scalar_type() == at::kFloat, "pse_type 2 and 3 take slopes in float32");
  if (p.sink) require(p.sink->scalar_type() == at::kFloat && p.sink->numel() == p.heads, "sink must be float32 [head_num]");
  int64_t kv_heads = kv_heads_of(p);
  limits("heads", p.heads);
  require(kv_heads > 0 && p.heads % kv_heads == 0, "head_num must be a multiple of the key's heads");
  int64_t size = p.layout == "BSH" || p.layout == "SBH" ? p.q->size(2) / p.heads : p.q->size(-1);
  limits("head_size", size);
  bool split = p.layout != "BSH" && p.layout != "SBH";
  require((split ? p.k->size(-1) : p.k->size(2) / kv_heads) == size, "query and key must have one head dimension");
  if (split) limits("value_size", size - p.v->size(-1));
  if (p.packed()) {
    for (const Tensor& rows : {*p.q, *p.k}) limits("packed_tokens", rows.size(0));
    limits("documents", static_cast<int64_t>((*p.q_ends).size()));
  } else {
    int64_t batch = p.layout == "SBH" ? 1 : 0, sequence = p.layout == "SBH" ? 0 : p.layout == "BNSD" ? 2 : 1;
    limits("batch", p.q->size(batch));
    for (const Tensor& rows : {*p.q, *p.k}) limits("sequence", rows.size(sequence));
  }
  require(!(p.bias && p.packed()), "pse with TND is not emulated");
  limits(p.packed() ? "packed_mode" : "mode", p.mode);
  // torch_npu itself checks keep_prob, and that TND has ends of one length.
  if (!p.mask) return;
  limits("mask_dtype", *p.mask);
  if (p.mode == 4) require(p.before + p.after >= 0, "sparse_mode 4: pre_tockens and next_tockens leave no band");
  if (p.mode == 5 || p.mode == 6) {
    require(bool(p.prefix), "sparse_mode 5 and 6 need prefix");
    limits("prefixes", static_cast<int64_t>((*p.prefix).size()));
  }
  require(p.mode != 5 || p.mask->dim() == 4, "sparse_mode 5 takes a mask of BNSS or B1SS");
  if (p.mode == 0 || p.mode == 1 || p.mode == 5) return;
  const Tensor& wanted = compressed_mask(p.mode);
  require(p.mask->sizes() == wanted.sizes(), "sparse_mode " + std::to_string(p.mode) + " takes the compressed mask of " +
                                                 std::to_string(wanted.size(0)) + " x 2048");
}

// What is said once they are.
void check(const Problem& p) {
  if (!p.mask || p.mode == 0 || p.mode == 1 || p.mode == 5) return;
  require(is_mask(*p.mask, compressed_mask(p.mode)),
          "the compressed mask must be the upper triangle without the diagonal" +
              std::string(p.mode == 6 ? ", above a rectangle of which the right half is hidden" : ""));
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

// What is added to the scores, [b or 1, n, sq or 1, sk]; undefined where there is nothing.
Tensor bias_of(const Problem& p, int64_t sq, int64_t sk) {
  if (!p.bias) return Tensor();
  Tensor given = p.bias->to(at::kFloat);
  if (p.bias_kind > 1) {  // slopes [n] or [b, n]; the diagonal starts at the top left
    int64_t shift = (p.kv_start ? (*p.kv_start)[0] : 0) - (p.q_start ? (*p.q_start)[0] : 0);
    Tensor distance = (at::arange(sk).unsqueeze(0) + shift - at::arange(sq).unsqueeze(1)).abs().to(at::kFloat);
    if (p.bias_kind == 3) distance = distance.sqrt();
    return -given.view({-1, p.heads, 1, 1}) * distance;
  }
  if (given.size(-2) == sq || given.size(-2) == 1) return given;
  // The last 1024 rows of ALiBi's bias; the others are its first one, moved to the left.
  require(sq > given.size(-2) && sq == sk, "pse must be BNSS, BN1S, 1NSS, or its last 1024 rows");
  int64_t missing = sq - given.size(-2);
  Tensor first = at::constant_pad_nd(given.select(-2, 0), {0, missing});
  std::vector<Tensor> rows;
  for (int64_t i = 0; i < missing; i++) rows.push_back(first.slice(-1, missing - i, missing - i + sk));
  return at::cat({at::stack(rows, -2), given}, -2);
}

// Scores [b, n, sq, sk] in float32, hidden ones at the lowest number; the mask, if there is one.
std::pair<Tensor, Tensor> scores_of(const Problem& p, const Batch& x, int64_t b, int64_t count) {
  Tensor scores = multiply(x.q, x.k.transpose(-1, -2), p.q->scalar_type());
  Tensor bias = bias_of(p, scores.size(-2), scores.size(-1));
  if (bias.defined() && p.bias_kind == 1) scores = scores + bias;
  scores = scores * p.scale;
  if (bias.defined() && p.bias_kind != 1) scores = scores + bias;
  Tensor mask = hidden(p, scores.size(-2), scores.size(-1), b, count);
  if (mask.defined()) scores = scores.masked_fill(mask, std::numeric_limits<float>::lowest());
  return {scores, mask};
}

// Rows that see nothing: zero where the kernel looks for them, an average of all values else.
Tensor without_blind(const Problem& p, const Tensor& probabilities, const Tensor& mask) {
  bool looks = p.precise == 2 || (p.mode == 3 && probabilities.size(-2) > probabilities.size(-1));
  return mask.defined() && looks ? probabilities.masked_fill(mask.all(-1, true), 0.0) : probabilities;
}

struct Softmax {
  Tensor probabilities, maximum, sum;
};

Softmax softmax(const Problem& p, const Batch& x, int64_t b, int64_t count) {
  auto [scores, mask] = scores_of(p, x, b, count);
  Softmax s;
  s.maximum = scores.amax(-1, true);
  // A sink is a score for which there is no value.
  Tensor sink = p.sink ? p.sink->view({1, -1, 1, 1}) : Tensor();
  if (sink.defined()) s.maximum = at::maximum(s.maximum, sink);
  Tensor e = (scores - s.maximum).exp();
  s.sum = e.sum(-1, true);
  if (sink.defined()) s.sum = s.sum + (sink - s.maximum).exp();
  s.probabilities = without_blind(p, e / s.sum, mask);
  return s;
}

// One scaled 0/1 per probability from the mask's bits, starting at `first`.
Tensor kept(const Problem& p, at::IntArrayRef sizes, int64_t first) {
  if (p.keep == 1 || (!p.dropout && !p.seed)) return Tensor();
  int64_t count = c10::multiply_integers(sizes);
  if (!p.dropout) {
    auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(*p.seed));
    return at::empty(first + count).bernoulli_(p.keep, generator).slice(0, first).view(sizes) / p.keep;
  }
  Tensor powers = at::pow(2, at::arange(kBits)).to(at::kByte);
  Tensor bits = p.dropout->view({-1, 1}).bitwise_and(powers).ne(0).view(-1).slice(0, first, first + count);
  return bits.view(sizes).to(at::kFloat) / p.keep;
}

struct Gradients {
  Tensor q, k, v, scores, sink;
};

// `maximum` and `sum` [b, n, sq, 1]; `y`, the forward call's result, and its gradient [b, n, sq, d].
Gradients gradients(const Problem& p, const Batch& x, int64_t b, int64_t count, const Tensor& maximum, const Tensor& sum,
                    const Tensor& y, const Tensor& dy, int64_t first_bit) {
  auto [scores, mask] = scores_of(p, x, b, count);
  Tensor probabilities = without_blind(p, (scores - maximum).exp() / sum, mask);
  Tensor drop = kept(p, probabilities.sizes(), first_bit);
  Tensor dropped = drop.defined() ? probabilities * drop : probabilities;
  auto type = p.q->scalar_type();
  Tensor dp = multiply(dy, x.v.transpose(-1, -2), type);
  if (drop.defined()) dp = dp * drop;
  Tensor spent = (dy * y).sum(-1, true);
  Tensor ds = probabilities * (dp - spent);
  Gradients g{multiply(ds, x.k, type) * p.scale,
              fold_heads(multiply(ds.transpose(-1, -2), x.q, type) * p.scale, x.kv_heads),
              fold_heads(multiply(dropped.transpose(-1, -2), dy, type), x.kv_heads),
              p.bias_kind == 1 ? ds * p.scale : ds, Tensor()};
  if (p.sink) g.sink = -((p.sink->view({1, -1, 1, 1}) - maximum).exp() / sum * spent).sum({0, 2, 3});
  return g;
}

Batch whole(const Problem& p) {
  int64_t kv_heads = kv_heads_of(p), times = p.heads / kv_heads;
  return {to_bnsd(p.q, p.heads, p.layout), repeat_heads(to_bnsd(p.k, kv_heads, p.layout), times),
          repeat_heads(to_bnsd(p.v, kv_heads, p.layout), times), kv_heads};
}

Tensor with_rope(In x, In rope) { return rope && rope->numel() ? at::cat({*x, *rope}, -1) : *x; }

// A part of packed [t, n, d], as [1, n, s, d] in float32; and back.
Tensor unpacked(const Tensor& x, int64_t from, int64_t to) {
  return x.slice(0, from, to).to(at::kFloat).transpose(0, 1).unsqueeze(0);
}
Tensor packed_rows(const Tensor& x) { return x.squeeze(0).transpose(0, 1); }

// The softmax's [1, n, s, 8] in packed memory [t, n, 8]: unless told otherwise, the kernel writes the
// heads of a sequence one after the other. Source: MindSpeed, `flatten_softmax`.
Tensor softmax_rows(const Problem& p, const Tensor& all, int64_t from, int64_t to) {
  if (p.packed_softmax) return all.slice(0, from, to).transpose(0, 1).unsqueeze(0);
  return all.slice(0, from, to).view({1, p.heads, to - from, all.size(-1)});
}

// Sequence by sequence over packed [t, n, d]. `visit(batch, index, count, q_from, kv_from, first_bit)`.
template <typename Visit>
void each_sequence(const Problem& p, Visit visit) {
  int64_t kv_heads = kv_heads_of(p), times = p.heads / kv_heads;
  int64_t q_start = 0, kv_start = 0, first_bit = 0;
  Tensor q = with_rope(p.q, p.q_rope), k = with_rope(p.k, p.k_rope);
  // Trailing zeros are batches that take no part.
  auto count = static_cast<int64_t>((*p.q_ends).size());
  while (count > 0 && (*p.q_ends)[count - 1] == 0) count--;
  for (int64_t b = 0; b < count; b++) {
    int64_t q_end = (*p.q_ends)[b], kv_end = (*p.kv_ends)[b];
    require(q_end >= q_start && kv_end >= kv_start && q_end <= q.size(0) && kv_end <= k.size(0),
            "actual_seq_qlen and actual_seq_kvlen must be cumulative, without a leading 0, and end within T");
    Batch x{unpacked(q, q_start, q_end), repeat_heads(unpacked(k, kv_start, kv_end), times),
            repeat_heads(unpacked(p.v, kv_start, kv_end), times), kv_heads};
    if (q_end > q_start && kv_end > kv_start) visit(x, b, count, q_start, kv_start, first_bit);
    first_bit += p.heads * (q_end - q_start) * (kv_end - kv_start);
    q_start = q_end;
    kv_start = kv_end;
  }
}

// A gradient of [t, n, d] in the parts that had come together.
void write_rows(Out target, Out rope, int64_t from, const Tensor& rows) {
  int64_t size = target->size(-1), length = rows.size(0);
  target->slice(0, from, from + length).copy_(rows.slice(-1, 0, size));
  if (rope && rope->numel()) rope->slice(0, from, from + length).copy_(rows.slice(-1, size));
}

}  // namespace

void emulated::attention_forward(const Problem& p, Out maximum, Out sum, Out out) {
  look(p);
  if (only_looking()) return;
  check(p);
  if (!p.packed()) {
    Batch x = whole(p);
    Softmax s = softmax(p, x, 0, x.q.size(0));
    Tensor drop = kept(p, s.probabilities.sizes(), 0);
    Tensor y = multiply(drop.defined() ? s.probabilities * drop : s.probabilities, x.v, p.q->scalar_type());
    out = from_bnsd(y, p.layout, out->sizes());
    maximum = s.maximum;
    sum = s.sum;
    return;
  }
  out->zero_();
  each_sequence(p, [&](const Batch& x, int64_t b, int64_t count, int64_t q_start, int64_t, int64_t bit) {
    Softmax s = softmax(p, x, b, count);
    Tensor drop = kept(p, s.probabilities.sizes(), bit);
    Tensor y = multiply(drop.defined() ? s.probabilities * drop : s.probabilities, x.v, p.q->scalar_type());
    int64_t q_end = q_start + x.q.size(2);
    out->slice(0, q_start, q_end).copy_(packed_rows(y));
    softmax_rows(p, *maximum, q_start, q_end).copy_(s.maximum.expand({-1, -1, -1, 8}));
    softmax_rows(p, *sum, q_start, q_end).copy_(s.sum.expand({-1, -1, -1, 8}));
  });
}

void emulated::attention_backward(const Problem& p, In dy, const Forward& forward, const Filled& filled) {
  look(p);
  if (only_looking()) return;
  check(p);
  require(forward.maximum && forward.sum && forward.out, "the backward needs softmax_max, softmax_sum and attention_in");
  if (!p.packed()) {
    Batch x = whole(p);
    Gradients g = gradients(p, x, 0, x.q.size(0), forward.maximum->slice(-1, 0, 1), forward.sum->slice(-1, 0, 1),
                            to_bnsd(forward.out, p.heads, p.layout), to_bnsd(dy, p.heads, p.layout), 0);
    Out dq = filled.q, dk = filled.k, dv = filled.v, dbias = filled.bias, dsink = filled.sink;
    dq = from_bnsd(g.q, p.layout, dq->sizes());
    dk = from_bnsd(g.k, p.layout, dk->sizes());
    dv = from_bnsd(g.v, p.layout, dv->sizes());
    if (dbias && dbias->numel() && p.bias_kind < 2) dbias = at::sum_to(g.scores, dbias->sizes());
    if (dsink && dsink->numel()) dsink = g.sink;
    return;
  }
  for (Out out : {filled.q, filled.k, filled.v, filled.q_rope, filled.k_rope, filled.sink}) {
    if (out && out->numel()) out->zero_();
  }
  each_sequence(p, [&](const Batch& x, int64_t b, int64_t count, int64_t q_start, int64_t kv_start, int64_t bit) {
    int64_t q_end = q_start + x.q.size(2);
    Gradients g = gradients(p, x, b, count, softmax_rows(p, forward.maximum, q_start, q_end).slice(-1, 0, 1),
                            softmax_rows(p, forward.sum, q_start, q_end).slice(-1, 0, 1),
                            unpacked(forward.out, q_start, q_end), unpacked(dy, q_start, q_end), bit);
    write_rows(filled.q, filled.q_rope, q_start, packed_rows(g.q));
    write_rows(filled.k, filled.k_rope, kv_start, packed_rows(g.k));
    write_rows(filled.v, Out{}, kv_start, packed_rows(g.v));
    if (filled.sink && filled.sink->numel()) filled.sink->add_(g.sink);
  });
}
