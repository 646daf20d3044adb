// Mixture of experts: grouped GEMMs, and tokens sorted by expert and back.
// Source of the rules: CANN's documents of aclnnGroupedMatmulV4, aclnnMoeTokenPermute* and the like.
#include "operator.h"

using namespace emulated;

namespace {

using at::Tensor;

// One for each group, or all in one, of a dimension more than `dim`.
Tensor of_group(Tensors all, int64_t dim, size_t group) {
  return all.size() == 1 && all[0].dim() > dim ? all[0][static_cast<int64_t>(group)] : all[group];
}

// Summed in float32 with its bias, rounded once.
Tensor gemm(const Tensor& x, Tensors weights, Tensors biases, size_t group) {
  Tensor y = multiply(wide(x), wide(of_group(weights, 2, group)), x.scalar_type());
  return biases.size() > 0 ? y + wide(of_group(biases, 1, group)) : y;
}

void grouped_gemm(Tensors xs, Tensors weights, Tensors biases, In list, int64_t type, int64_t list_type, Tensors results) {
  Limits limits{"npu_grouped_matmul"};
  for (size_t i = 0; i < xs.size(); i++) limits("dtype", xs[i]);
  for (size_t i = 0; i < weights.size(); i++) limits("inner", weights[i].size(-1));
  for (size_t i = 0; i < xs.size(); i++) limits("inner", xs[i].size(-1));
  if (list) limits("groups", list->size(0));
  if (only_looking()) return;
  // A group's rows: a result of their own, or their place in the one.
  auto write = [&](size_t group, int64_t start, const Tensor& rows) {
    (results.size() == 1 ? results[0].slice(0, start, start + rows.size(0)) : results[group]).copy_(rows);
    return start + rows.size(0);
  };
  if (!list) {  // several x, one weight each
    int64_t end = 0;
    for (size_t i = 0; i < xs.size(); i++) end = write(i, end, gemm(xs[i], weights, biases, i));
    return;
  }
  require(xs.size() == 1, "with group_list there must be one x");
  require(type == 0 || type == 2, "group_type must be 0 (rows of x) or 2 (the summed dimension)");
  int64_t start = 0;
  auto ends = group_ends(list, list_type);
  int64_t length = type == 0 ? xs[0].size(0) : xs[0].size(1);
  require(ends.empty() || ends.back() <= length, "group_list ends beyond x");
  for (size_t g = 0; g < ends.size(); g++) {
    require(ends[g] >= start, "group_list must not decrease");
    if (type == 0) {
      write(g, start, gemm(xs[0].slice(0, start, ends[g]), weights, biases, g));
    } else {
      Tensor part = multiply(wide(xs[0].slice(1, start, ends[g])), wide(weights[0].slice(0, start, ends[g])),
                             xs[0].scalar_type());
      (results.size() == 1 ? results[0][static_cast<int64_t>(g)] : results[g]).copy_(part);
    }
    start = ends[g];
  }
}

// For each (token, choice) in order: the row where its copy stands, sorted by expert.
Tensor rows_of(const Tensor& experts) { return at::argsort(at::argsort(experts.reshape(-1), true, 0, false), true, 0, false); }

// The same from a map [tokens, experts] with the same number of ones in every row.
Tensor rows_of_map(const Tensor& map) {
  Tensor tokens = at::nonzero(map.to(at::kBool).t()).select(1, 1);
  return at::argsort(tokens, true, 0, false);
}

Tensor sum_choices(const Tensor& rows, int64_t tokens) {
  return rows.view({tokens, -1, rows.size(-1)}).to(at::kFloat).sum(1);
}

}  // namespace

std::vector<int64_t> emulated::group_ends(const Tensor& list, int64_t type) {
  require(type == 0 || type == 1, "group_list_type must be 0 (cumulative) or 1 (counts)");
  Tensor ends = list.to(at::kLong);
  if (type == 1) ends = ends.cumsum(0);
  return std::vector<int64_t>(ends.data_ptr<int64_t>(), ends.data_ptr<int64_t>() + ends.numel());
}

ACLNN_LIMITED(GroupedMatmulV4,
      (Tensors x, Tensors weight, Tensors bias, Tensors, Tensors, Tensors, Tensors, Tensors, In list, Tensors, Tensors,
       Tensors, int64_t split, int64_t type, int64_t list_type, int64_t activation, Tensors result, Tensors, Tensors),
      require(activation == 0, "activations in grouped_matmul are not emulated");
      grouped_gemm(x, weight, bias, list, type, list_type, result))
ACLNN_LIMITED(GroupedMatmulV5,
      (Tensors x, Tensors weight, Tensors bias, Tensors, Tensors, Tensors, Tensors, Tensors, In list, Tensors, Tensors,
       Tensors, int64_t split, int64_t type, int64_t list_type, int64_t activation, Ints tuning, Tensors result, Tensors,
       Tensors),
      require(activation == 0, "activations in grouped_matmul are not emulated");
      grouped_gemm(x, weight, bias, list, type, list_type, result))

ACLNN(MoeTokenPermute, (In tokens, In experts, int64_t count, bool padded, Out permuted, Out rows),
      require(!padded, "padded_mode must be false");
      int64_t choices = experts->dim() == 1 ? 1 : experts->size(1);
      Tensor place = rows_of(experts); Tensor copies = tokens->repeat_interleave(choices, 0);
      permuted = at::empty_like(copies).index_copy(0, place, copies).slice(0, 0, permuted->size(0)); rows = place)
ACLNN(MoeTokenPermuteGrad, (In grad, In rows, int64_t choices, bool padded, Out out),
      // Copies beyond num_out_tokens were dropped: they have no gradient.
      Tensor place = rows->to(at::kLong); Tensor present = place.lt(grad->size(0));
      Tensor all = grad->index_select(0, place.clamp_max(grad->size(0) - 1)) * present.unsqueeze(1);
      out = sum_choices(all, out->size(0)))
ACLNN(MoeTokenUnpermute, (In permuted, In rows, In probabilities, bool padded, Ints, Out out),
      require(!padded, "padded_mode must be false");
      Tensor copies = permuted->index_select(0, rows->to(at::kLong)).to(at::kFloat);
      if (probabilities) copies = copies * probabilities->reshape({-1, 1});
      out = sum_choices(copies, out->size(0)))
ACLNN(MoeTokenUnpermuteGrad,
      (In permuted, In grad, In rows, In probabilities, bool padded, Ints, Out dpermuted, Out dprobabilities),
      Tensor place = rows->to(at::kLong); int64_t choices = place.numel() / grad->size(0);
      Tensor copies = grad->to(at::kFloat).repeat_interleave(choices, 0);
      Tensor scaled = probabilities ? copies * probabilities->reshape({-1, 1}) : copies;
      dpermuted = at::zeros(dpermuted->sizes(), scaled.options()).index_copy(0, place, scaled);
      if (probabilities) dprobabilities = (copies * permuted->index_select(0, place)).sum(-1))

ACLNN(MoeTokenPermuteWithRoutingMap,
      (In tokens, In map, In probabilities, int64_t count, bool pad, Out permuted, Out permuted_probabilities, Out rows),
      require(!pad, "drop_and_pad is not emulated");
      Tensor chosen = map->to(at::kBool).t(); Tensor source = at::nonzero(chosen).select(1, 1);
      permuted = tokens->index_select(0, source); rows = rows_of_map(map);
      if (probabilities) permuted_probabilities = probabilities->t().masked_select(chosen))
ACLNN(MoeTokenPermuteWithRoutingMapGrad,
      (In grad, In probabilities_grad, In rows, In map, int64_t experts, int64_t tokens, bool pad, Out out, Out dprobabilities),
      out = sum_choices(grad->index_select(0, rows->to(at::kLong)), tokens);
      if (probabilities_grad && dprobabilities) {
        Tensor chosen = map->to(at::kBool).t().contiguous();
        Tensor spread = at::zeros({experts, tokens}, probabilities_grad->options());
        dprobabilities = spread.masked_scatter(chosen, *probabilities_grad).t();
      })
// With probabilities, each row has one of its own; `rows` is where a token's copies stand, in order.
ACLNN(MoeTokenUnpermuteWithRoutingMap,
      (In permuted, In rows, In map, In probabilities, bool pad, Ints shape, Out out, Out index, Out token, Out weights),
      require(!pad, "drop_and_pad is not emulated"); int64_t tokens = (*shape)[0];
      Tensor place = rows->to(at::kLong); Tensor copies = permuted->index_select(0, place).to(at::kFloat);
      if (probabilities) {
        Tensor weight = probabilities->masked_select(map->to(at::kBool)); weights = weight;
        copies = copies * weight.unsqueeze(1);
      }
      out = sum_choices(copies, tokens); index = rows;
      token = at::arange(tokens).repeat_interleave(place.numel() / tokens))
ACLNN(MoeTokenUnpermuteWithRoutingMapGrad,
      (In grad, In index, In token, In map, In permuted, In probabilities, bool pad, Ints shape, Out dpermuted,
       Out dprobabilities),
      require(!pad, "drop_and_pad is not emulated"); Tensor place = index->to(at::kLong);
      Tensor copies = grad->to(at::kFloat).repeat_interleave(place.numel() / (*shape)[0], 0); Tensor scaled = copies;
      if (probabilities) {
        Tensor chosen = map->to(at::kBool);
        scaled = copies * probabilities->masked_select(chosen).unsqueeze(1);
        Tensor each = (copies * permuted->index_select(0, place)).sum(-1);
        dprobabilities = at::zeros(chosen.sizes(), each.options()).masked_scatter(chosen, each);
      }
      dpermuted = at::zeros(dpermuted->sizes(), scaled.options()).index_copy(0, place, scaled))

// The sum over each group of rows, onto what is there: gradients of experts' weights in float32.
ACLNN_LIMITED(GroupedMatmulAdd, (In x, In weight, In list, Out self, bool turn_x, bool turn_weight, int64_t type),
      Limits limits{"npu_grouped_matmul_add_"}; limits("dtype", *x); limits("dtype", *weight); limits("sum_dtype", *self);
      limits("groups", list->size(0)); limits("inner", x->size(-1)); limits("inner", weight->size(-1));
      require(type == 2 && turn_x && !turn_weight, "grouped_matmul_add takes group_type 2, with x transposed only");
      if (only_looking()) return;
      auto ends = group_ends(list, 0); int64_t start = 0; auto count = static_cast<int64_t>(ends.size());
      Tensor sums = self->view({count, x->size(1), weight->size(1)});
      for (int64_t g = 0; g < count; start = ends[g++]) {
        Tensor rows = x->slice(0, start, ends[g]).to(at::kFloat);
        sums[g].addmm_(rows.t(), weight->slice(0, start, ends[g]).to(at::kFloat));
      })

// Routing before the operators above: the best experts, and the tokens in the order of their experts.
ACLNN(MoeGatingTopKSoftmax, (In x, In finished, int64_t k, Out out, Out experts, Out rows),
      auto p = at::softmax(wide(x), -1).to(x->scalar_type()); auto order = at::argsort(p, true, -1, true).slice(-1, 0, k);
      out = at::gather(p, -1, order); int64_t n = out->numel() / k;
      experts = finished ? order.masked_fill(finished->unsqueeze(-1), x->size(-1)) : order;
      rows = at::arange(n * k).view({k, n}).t().reshape(rows->sizes()))
ACLNN(MoeInitRouting, (In x, In rows, In experts, int64_t active, Out out, Out places, Out sorted),
      auto [expert, order] = at::sort(experts->reshape(-1), true, 0, false); sorted = expert;
      Tensor source = rows->reshape(-1).to(at::kLong).index_select(0, order);
      places = at::empty_like(source).index_copy(0, source, at::arange(source.numel()));
      out = x->index_select(0, source.slice(0, 0, out->size(0)).remainder(x->size(0))))
