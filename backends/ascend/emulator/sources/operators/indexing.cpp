// Shapes, indices and copies.
#include "operator.h"

using namespace emulated;

namespace {

// torch_npu marks a dimension that is not indexed by an empty vector.
c10::List<std::optional<at::Tensor>> index_list(Tensors indices, const at::Tensor& self) {
  c10::List<std::optional<at::Tensor>> list;
  for (size_t i = 0; i < indices.size(); i++) {
    const at::Tensor& index = indices[i];
    bool absent = index.numel() == 0 && index.dim() == 1 && index.scalar_type() != at::kBool && self.numel() > 0;
    if (absent) {
      list.push_back(std::optional<at::Tensor>());
    } else {
      list.push_back(index.scalar_type() == at::kInt ? index.to(at::kLong) : index);
    }
  }
  return list;
}

// Whether nothing is indexed: an empty index (an all-False mask becomes one) looks like the mark above,
// and torch_npu never passes marks alone.
bool addresses_nothing(Tensors indices) {
  for (size_t i = 0; i < indices.size(); i++)
    if (indices[i].numel() != 0 || indices[i].dim() != 1) return false;
  return true;
}

// The output has the largest possible length; aclGetViewShape tells how much of it is used.
void shrink(Out out, const at::Tensor& result) {
  at::Tensor flat = out->view(-1).slice(0, 0, result.numel());
  flat.copy_(result.reshape(-1));
  *out = flat.view(result.sizes());
}

c10::string_view reduction(int64_t kind) { return kind == 1 ? "add" : "multiply"; }

at::Tensor scatter(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source, int64_t kind) {
  return kind == 0 ? at::scatter(self, dim, index, source) : at::scatter(self, dim, index, source, reduction(kind));
}
at::Tensor scatter(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Scalar& value, int64_t kind) {
  return kind == 0 ? at::scatter(self, dim, index, value) : at::scatter(self, dim, index, value, reduction(kind));
}

}  // namespace

ACLNN(Cat, (Tensors tensors, int64_t dim, Out out), out = at::cat(tensors, dim))
ACLNN(Stack, (Tensors tensors, int64_t dim, Out out), out = at::stack(tensors, dim))
ACLNN(Repeat, (In self, Ints repeats, Out out), out = self->repeat(repeats))
ACLNN(Flip, (In self, Ints dims, Out out), out = at::flip(self, dims))
ACLNN(Roll, (In self, Ints shifts, Ints dims, Out out), out = at::roll(self, shifts, dims))
ACLNN(ConstantPadNd, (In self, Ints pad, Number value, Out out), out = at::constant_pad_nd(self, pad, *value))
ACLNN(RepeatInterleave, (In self, In repeats, int64_t size, Out out), out = at::repeat_interleave(self, *repeats, std::nullopt, size))
ACLNN(RepeatInterleaveInt, (In self, int64_t repeats, int64_t size, Out out),
      out = at::repeat_interleave(self, repeats, std::nullopt, size))
ACLNN(RepeatInterleaveIntWithDim, (In self, int64_t repeats, int64_t dim, int64_t size, Out out),
      out = at::repeat_interleave(self, repeats, dim, size))
ACLNN(RepeatInterleaveWithDim, (In self, In repeats, int64_t dim, int64_t size, Out out),
      out = at::repeat_interleave(self, *repeats, dim, size))
ACLNN(RepeatInterleaveTensor, (In repeats, int64_t size, Out out),
      out = at::repeat_interleave(*repeats, std::optional<int64_t>(size)))
ACLNN(RepeatInterleaveGrad, (In grad, In repeats, int64_t dim, Out out),
      auto source = at::repeat_interleave(at::arange(repeats->numel()), *repeats);
      out = at::zeros(out->sizes()).index_add(dim, source, grad->to(at::kFloat)))

ACLNN(Triu, (In self, int64_t diagonal, Out out), out = at::triu(self, diagonal))
ACLNN(Tril, (In self, int64_t diagonal, Out out), out = at::tril(self, diagonal))
ACLNN(InplaceTriu, (Out self, int64_t diagonal), self = at::triu(self, diagonal))
ACLNN(InplaceTril, (Out self, int64_t diagonal), self = at::tril(self, diagonal))
ACLNN(Eye, (int64_t rows, int64_t columns, Out out), out = at::eye(rows, columns, out->options()))
ACLNN(Arange, (Number start, Number end, Number step, Out out), out = at::arange(*start, *end, *step, out->options()))
ACLNN(Range, (Number start, Number end, Number step, Out out), out = at::range(*start, *end, *step, out->options()))
ACLNN(Linspace, (Number start, Number end, int64_t steps, Out out), out = at::linspace(*start, *end, steps, out->options()))
ACLNN(OneHot, (In self, int depth, In on, In off, int64_t, Out out),
      out = at::where(at::one_hot(self->to(at::kLong), depth).to(at::kBool), *on, *off))
ACLNN(Trace, (In self, Out out), out = at::trace(self))

ACLNN(Embedding, (In weight, In index, Out out), out = at::embedding(weight, index))
ACLNN(EmbeddingDenseBackward, (In grad, In index, uint64_t words, uint64_t padding, bool scale, Out out),
      // The padding index arrives unsigned: -1 (none) as the largest value.
      out = at::embedding_dense_backward(grad->to(at::kFloat), index, static_cast<int64_t>(words),
                                         static_cast<int64_t>(padding), scale))

ACLNN(Gather, (In self, int64_t dim, In index, Out out), out = at::gather(self, dim, index))
ACLNN(IndexSelect, (In self, int64_t dim, In index, Out out), out = at::index_select(self, dim, index))
ACLNN(Index, (In self, Tensors indices, Out out),
      if (!addresses_nothing(indices)) out = at::index(self, index_list(indices, self)))
ACLNN(IndexPutImpl, (Out self, Tensors indices, In values, bool accumulate, bool unsafe),
      if (!addresses_nothing(indices)) at::_index_put_impl_(*self, index_list(indices, self), values, accumulate, unsafe))
ACLNN(IndexAdd, (In self, int64_t dim, In index, In source, Number alpha, Out out),
      out = at::index_add(self, dim, index, source, *alpha))
ACLNN(IndexCopy, (In self, int64_t dim, In index, In source, Out out), out = at::index_copy(self, dim, index, source))
ACLNN(InplaceIndexCopy, (Out self, int64_t dim, In index, In source), self->index_copy_(dim, index, source))
ACLNN(InplaceIndexFill, (Out self, int64_t dim, In index, Number value), self->index_fill_(dim, index, *value))
ACLNN(Scatter, (In self, int64_t dim, In index, In source, int64_t kind, Out out), out = scatter(self, dim, index, *source, kind))
ACLNN(ScatterValue, (In self, int64_t dim, In index, Number value, int64_t kind, Out out),
      out = scatter(self, dim, index, *value, kind))
ACLNN(InplaceScatter, (Out self, int64_t dim, In index, In source, int64_t kind), self = scatter(self, dim, index, *source, kind))
ACLNN(InplaceScatterValue, (Out self, int64_t dim, In index, Number value, int64_t kind),
      self = scatter(self, dim, index, *value, kind))
ACLNN(ScatterAdd, (In self, int64_t dim, In index, In source, Out out), out = at::scatter_add(self, dim, index, source))
ACLNN(InplaceMaskedScatter, (Out self, In mask, In source), self->masked_scatter_(mask, source))

ACLNN(Nonzero, (In self, Out out), shrink(out, at::nonzero(self)))
ACLNN(NonzeroV2, (In self, Out out), shrink(out, at::nonzero(self).t().contiguous()))
ACLNN(MaskedSelect, (In self, In mask, Out out), shrink(out, at::masked_select(self, mask->to(at::kBool))))
ACLNN(Unique2, (In self, bool sorted, bool inverse, bool counts, Out values, Out inverses, Out numbers),
      auto [value, back, count] = at::_unique2(self, sorted, inverse, counts); shrink(values, value);
      if (inverse) inverses = back; if (counts) shrink(numbers, count))
ACLNN(ScatterNdUpdate, (Out self, In index, In values),
      // The last dimension of the index addresses the first dimensions of self.
      auto parts = index->to(at::kLong).unbind(-1);
      c10::List<std::optional<at::Tensor>> places; for (auto& part : parts) places.push_back(part);
      self->index_put_(places, values))
