// Random numbers: a generator of ATen's for each (seed, offset) that torch_npu hands out. The values
// differ from an NPU's, and from the CPU's.
#include <ATen/CPUGeneratorImpl.h>

#include "operator.h"

using namespace emulated;

namespace {

at::Generator generator(uint64_t seed, uint64_t offset) {
  // Offsets step by small numbers; spread them, so that neighbours share no stream.
  return at::detail::createCPUGenerator(seed ^ (offset * 0x9E3779B97F4A7C15ull));
}

constexpr int64_t kBits = 8;

at::Tensor powers_of_two() { return at::pow(2, at::arange(kBits)).to(at::kByte); }

}  // namespace

ACLNN(InplaceUniform, (Out self, double low, double high, uint64_t seed, uint64_t offset),
      self = at::empty(self->sizes(), self->options()).uniform_(low, high, generator(seed, offset)))
ACLNN(InplaceNormal, (Out self, float mean, float deviation, int64_t seed, int64_t offset),
      self = at::empty(self->sizes(), self->options()).normal_(mean, deviation, generator(seed, offset)))
ACLNN(InplaceRandom, (Out self, int64_t low, int64_t high, int64_t seed, int64_t offset),
      self = at::empty(self->sizes(), self->options()).random_(low, high, generator(seed, offset)))
ACLNN(InplaceBernoulli, (Out self, Number p, int64_t seed, int64_t offset),
      self->bernoulli_(p->toDouble(), generator(seed, offset)))
ACLNN(InplaceBernoulliTensor, (Out self, In p, int64_t seed, int64_t offset), self->bernoulli_(*p, generator(seed, offset)))
ACLNN(Randperm, (int64_t n, int64_t seed, int64_t offset, Out out),
      out = at::randperm(n, generator(seed, offset), at::TensorOptions().dtype(at::kLong)))
ACLNN(Multinomial, (In self, int64_t samples, bool replacement, int64_t seed, int64_t offset, Out out),
      out = at::multinomial(self->to(at::kFloat), samples, replacement, generator(seed, offset)))

// A mask of bits, lowest first, in bytes; the kernel rounds its length up to 128 elements.
ACLNN(DropoutGenMaskV2, (Ints shape, double p, int64_t seed, int64_t offset, int type, Out mask),
      auto bits = at::rand({mask->numel(), kBits}, generator(seed, offset), at::TensorOptions()).ge(p).to(at::kByte);
      mask = (bits * powers_of_two()).sum(1).to(at::kByte))
ACLNN(DropoutDoMask, (In self, In mask, double p, Out out),
      auto keep = mask->view({-1, 1}).bitwise_and(powers_of_two()).ne(0).view(-1).slice(0, 0, self->numel());
      out = at::where(keep.view(self->sizes()), self->to(at::kFloat) / (1 - p), at::zeros({})))
