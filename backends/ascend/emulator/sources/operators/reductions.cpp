// Fewer output elements than input elements, and running sums.
#include "operator.h"

using namespace emulated;

ACLNN(ReduceSum, (In self, Ints dims, bool keep, int type, Out out),
      out = at::sum(self, dims.dimensions(), keep, scalar_type(type)))
ACLNN(Mean, (In self, Ints dims, bool keep, int type, Out out),
      out = at::mean(self, dims.dimensions(), keep, scalar_type(type)))
ACLNN(Prod, (In self, int type, Out out), out = at::prod(self, scalar_type(type)))
ACLNN(ProdDim, (In self, int64_t dim, bool keep, int type, Out out), out = at::prod(self, dim, keep, scalar_type(type)))
ACLNN(All, (In self, Ints dims, bool keep, Out out), out = at::all(self, dims.dimensions(), keep))
ACLNN(Any, (In self, Ints dims, bool keep, Out out), out = at::any(self, dims.dimensions(), keep))
ACLNN(Max, (In self, Out out), out = at::max(self))
ACLNN(Min, (In self, Out out), out = at::min(self))
ACLNN(Amax, (In self, Ints dims, bool keep, Out out), out = at::amax(self, dims, keep))
ACLNN(Amin, (In self, Ints dims, bool keep, Out out), out = at::amin(self, dims, keep))
ACLNN(MaxDim, (In self, int64_t dim, bool keep, Out values, Out indices),
      auto [value, index] = at::max(self, dim, keep); values = value; indices = index)
ACLNN(MinDim, (In self, int64_t dim, bool keep, Out values, Out indices),
      auto [value, index] = at::min(self, dim, keep); values = value; indices = index)
ACLNN(Aminmax, (In self, Ints dims, bool keep, Out low, Out high),
      low = at::amin(self, dims, keep); high = at::amax(self, dims, keep))
ACLNN(Median, (In self, Out out), out = at::median(self))
ACLNN(MedianDim, (In self, int64_t dim, bool keep, Out values, Out indices),
      auto [value, index] = at::median(self, dim, keep); values = value; indices = index)
ACLNN(ArgMax, (In self, int64_t dim, bool keep, Out out), out = at::argmax(self, dim, keep))
ACLNN(ArgMin, (In self, int64_t dim, bool keep, Out out), out = at::argmin(self, dim, keep))
ACLNN(LogSumExp, (In self, Ints dims, bool keep, Out out), out = at::logsumexp(self, dims, keep))
ACLNN(Equal, (In self, In other, Out out), out->fill_(self->sizes() == other->sizes() && at::equal(self, other)))

ACLNN(Norm, (In self, Number p, Ints dims, bool keep, Out out),
      out = dims ? at::norm(self->to(at::kFloat), *p, dims, keep) : at::norm(self->to(at::kFloat), *p))
ACLNN(LinalgVectorNorm, (In self, Number order, Ints dims, bool keep, int type, Out out),
      out = at::linalg_vector_norm(self, *order, dims.dimensions(), keep, scalar_type(type)))
ACLNN(VarCorrection, (In self, Ints dims, int64_t correction, bool keep, Out out),
      out = at::var(self, dims.dimensions(), at::Scalar(correction), keep))
ACLNN(Std, (In self, Ints dims, int64_t correction, bool keep, Out out),
      out = at::std(self, dims.dimensions(), at::Scalar(correction), keep))
ACLNN(StdMeanCorrection, (In self, Ints dims, int64_t correction, bool keep, Out deviation, Out mean),
      auto [s, m] = at::std_mean(self, dims.dimensions(), at::Scalar(correction), keep); deviation = s; mean = m)
ACLNN(VarMean, (In self, Ints dims, int64_t correction, bool keep, Out variance, Out mean),
      auto [v, m] = at::var_mean(self, dims.dimensions(), at::Scalar(correction), keep); variance = v; mean = m)

ACLNN(Cumsum, (In self, int64_t dim, int type, Out out), out = at::cumsum(self, dim, scalar_type(type)))
ACLNN(Cumprod, (In self, Number dim, int type, Out out), out = at::cumprod(self, dim->toLong(), scalar_type(type)))
ACLNN(Cummax, (In self, int64_t dim, Out values, Out indices),
      auto [value, index] = at::cummax(self, dim); values = value; indices = index)
ACLNN(Cummin, (In self, int64_t dim, Out values, Out indices),
      auto [value, index] = at::cummin(self, dim); values = value; indices = index)

ACLNN(Sort, (In self, bool stable, int64_t dim, bool descending, Out values, Out indices),
      auto [value, index] = at::sort(self, stable, dim, descending); values = value; indices = index)
ACLNN(Topk, (In self, int64_t k, int64_t dim, bool largest, bool sorted, Out values, Out indices),
      auto [value, index] = at::topk(self, k, dim, largest, sorted); values = value; indices = index)
ACLNN(Kthvalue, (In self, int64_t k, int64_t dim, bool keep, Out values, Out indices),
      auto [value, index] = at::kthvalue(self, k, dim, keep); values = value; indices = index)
ACLNN(Bincount, (In self, In weights, int64_t least, Out out), out = at::bincount(self, weights.optional(), least))
ACLNN(Histc, (In self, int64_t bins, Number low, Number high, Out out), out = at::histc(self, bins, *low, *high))
ACLNN(SearchSorted, (In sorted, In self, bool int32, bool right, In sorter, Out out),
      out = at::searchsorted(sorted, *self, int32, right, std::nullopt, sorter.optional()))
