// GEMMs fused with the collective before or after them. On the emulated device one follows
// the other: what a real NPU gains by overlapping them does not show.
// Source of the rules: op-plugin's documents of npu_all_gather_base_mm, npu_mm_reduce_scatter_base,
// npu_mm_all_reduce_base, npu_alltoallv_gmm and npu_gmm_alltoallv.
#include "hccl/hccl.h"
#include "operator.h"

// In libhccl.
extern "C" HcclComm emulated_communicator(const char* name);

using namespace emulated;

namespace {

using at::Tensor;

HcclComm group_of(const std::string& name) {
  HcclComm group = emulated_communicator(name.c_str());
  require(group != nullptr, "there is no communicator of the name " + name);
  return group;
}

uint32_t size_of(HcclComm group) {
  uint32_t size = 0;
  HcclGetRankSize(group, &size);
  return size;
}

HcclDataType type_of(const Tensor& x) {
  switch (x.scalar_type()) {
    case at::kHalf: return HCCL_DATA_TYPE_FP16;
    case at::kBFloat16: return HCCL_DATA_TYPE_BFP16;
    case at::kFloat: return HCCL_DATA_TYPE_FP32;
    default: refuse("float16, bfloat16 or float32, not " + std::string(c10::toString(x.scalar_type())));
  }
}

void done(HcclResult result) { require(result == HCCL_SUCCESS, HcclGetErrorString(result)); }

void check_half(const Tensor& x, const Tensor& weight) {
  auto type = x.scalar_type();
  require(type == at::kHalf || type == at::kBFloat16, "the factors must be float16 or bfloat16 (or quantized)");
  require(weight.scalar_type() == type, "the factors must have one dtype");
}

// What all three GEMMs with a collective ask for.
void look_at_gemm(const Limits& limits, const Tensor& x, const Tensor& weight, int64_t turn, HcclComm group) {
  limits("dtype", x);
  require(weight.scalar_type() == x.scalar_type(), "the factors must have one dtype");
  require(x.is_contiguous(), "the first factor must not be transposed");
  require(weight.dim() == 2 && x.size(-1) == weight.size(0), "the summed dimensions differ");
  limits("inner", x.size(-1));
  limits("comm_turn", turn);
  limits("ranks", static_cast<int64_t>(size_of(group)));
}

Tensor gemm(const Tensor& x, const Tensor& weight, In bias) {
  Tensor y = multiply(x.to(at::kFloat), weight.to(at::kFloat), x.scalar_type());
  if (bias) y = y + bias->to(at::kFloat);
  return y.to(x.scalar_type()).contiguous();
}

void check_bias(const Limits& limits, In bias) {
  if (bias) limits("bias", bias->count_nonzero().item<int64_t>());
}

void gather_gemm(In x, In weight, In bias, const std::string& name, int64_t index, int64_t turn, Out out, Out gathered) {
  HcclComm group = group_of(name);
  Limits limits{"npu_all_gather_base_mm"};
  look_at_gemm(limits, x, weight, turn, group);
  require(index == 0, "gather_index must be 0");
  if (only_looking()) return;
  check_bias(limits, bias);
  Tensor all = at::empty({x->size(0) * size_of(group), x->size(1)}, x->options());
  done(HcclAllGather(x->data_ptr(), all.data_ptr(), x->numel(), type_of(x), group, nullptr));
  out = gemm(all, weight, bias);
  if (gathered && gathered->numel()) gathered = all;
}

void gemm_scatter(In x, In weight, In bias, const std::string& name, const std::string& operation, int64_t turn, Out out) {
  HcclComm group = group_of(name);
  Limits limits{"npu_mm_reduce_scatter_base"};
  look_at_gemm(limits, x, weight, turn, group);
  require(operation == "sum", "reduce_op must be sum");
  require(x->size(0) % size_of(group) == 0, "m must be a multiple of world_size");
  if (only_looking()) return;
  check_bias(limits, bias);
  Tensor y = gemm(x, weight, bias);
  done(HcclReduceScatter(y.data_ptr(), out->data_ptr(), out->numel(), type_of(y), HCCL_REDUCE_SUM, group, nullptr));
}

void gemm_reduce(In x, In weight, In bias, In added, const std::string& name, const std::string& operation, int64_t turn,
                    Out out) {
  HcclComm group = group_of(name);
  Limits limits{"npu_mm_all_reduce_base"};
  limits("operation", operation);
  look_at_gemm(limits, x, weight, turn, group);
  if (only_looking()) return;
  // What is added is added on each rank, before the sum. Source: op-plugin, test_mm_all_reduce_base_add.
  Tensor y = gemm(x, weight, bias);
  if (added) y = (y + *added).contiguous();
  Tensor sum = at::empty_like(y);
  done(HcclAllReduce(y.data_ptr(), sum.data_ptr(), y.numel(), type_of(y), HCCL_REDUCE_SUM, group, nullptr));
  out = sum;
}

Tensor turned(In weight, bool turn) { return turn ? weight->transpose(-1, -2) : *weight; }

void shared_gemm(In x, In weight, bool turn, Out out) {
  if (x && weight && out) out = gemm(x, turned(weight, turn), In{});
}

// Counts [ranks x experts]: of each rank the tokens of each local expert.
Tensor table(Ints counts, int64_t ranks) {
  at::IntArrayRef values = counts;
  require(!values.empty() && values.size() <= 256 && static_cast<int64_t>(values.size()) % ranks == 0,
          "send_counts and recv_counts take experts x ranks numbers, at most 256");
  return at::tensor(values, at::kLong).view({ranks, -1});
}

// Blocks [rank, expert] of rows put into the order [expert, rank], or back.
Tensor reordered(const Tensor& rows, const Tensor& counts, bool by_rank) {
  Tensor lengths = by_rank ? counts : counts.t().contiguous();
  std::vector<int64_t> sizes(lengths.const_data_ptr<int64_t>(), lengths.const_data_ptr<int64_t>() + lengths.numel());
  auto blocks = rows.split_with_sizes(sizes, 0);
  std::vector<Tensor> turned;
  for (int64_t i = 0; i < lengths.size(1); i++) {
    for (int64_t j = 0; j < lengths.size(0); j++) turned.push_back(blocks[j * lengths.size(1) + i]);
  }
  return at::cat(turned, 0);
}

Tensor exchange(const Tensor& rows, const Tensor& sent, const Tensor& received, HcclComm group) {
  Tensor to = sent.sum(1) * rows.size(1), from = received.sum(1) * rows.size(1);
  Tensor to_start = to.cumsum(0) - to, from_start = from.cumsum(0) - from;
  Tensor source = rows.contiguous(), out = at::empty({received.sum().item<int64_t>(), rows.size(1)}, rows.options());
  done(HcclAlltoAllV(source.data_ptr(), to.data_ptr(), to_start.data_ptr(), type_of(rows), out.data_ptr(), from.data_ptr(),
                     from_start.data_ptr(), type_of(rows), group, nullptr));
  return out;
}

// Rows by expert, times each expert's matrix [experts, h, n].
Tensor expert_gemm(const Tensor& rows, const Tensor& weights, const Tensor& counts) {
  std::vector<Tensor> parts;
  int64_t start = 0;
  Tensor lengths = counts.sum(0);
  for (int64_t e = 0; e < lengths.numel(); e++) {
    int64_t end = start + lengths[e].item<int64_t>();
    parts.push_back(gemm(rows.slice(0, start, end), weights[e], In{}));
    start = end;
  }
  return at::cat(parts, 0);
}

void check_experts(In x, In weight, In sent, In received, HcclComm group, int64_t ranks) {
  check_half(x, weight);
  require(!sent && !received, "send_counts_tensor and recv_counts_tensor are not supported");
  require(size_of(group) == static_cast<uint32_t>(ranks), "ep_world_size is not the number of ranks");
}

void exchange_experts(In x, In weight, In sent_tensor, In received_tensor, const std::string& name, int64_t ranks, Ints sent,
                      Ints received, bool turn, Out out, Out permuted) {
  HcclComm group = group_of(name);
  check_experts(x, weight, sent_tensor, received_tensor, group, ranks);
  Tensor counts = table(received, ranks);
  Tensor rows = reordered(exchange(x, table(sent, ranks), counts, group), counts, true);
  if (permuted && permuted->numel()) permuted = rows;
  out = expert_gemm(rows, turned(weight, turn), counts);
}

void experts_exchange(In x, In weight, In sent_tensor, In received_tensor, const std::string& name, int64_t ranks, Ints sent,
                      Ints received, bool turn, Out out) {
  HcclComm group = group_of(name);
  check_experts(x, weight, sent_tensor, received_tensor, group, ranks);
  Tensor counts = table(sent, ranks);
  Tensor rows = reordered(expert_gemm(x, turned(weight, turn), counts), counts, false);
  out = exchange(rows, counts, table(received, ranks), group);
}

}  // namespace

#define GROUP (=, group = std::string(group))
#define GROUP_AND_OPERATION (=, group = std::string(group), operation = std::string(operation))

ACLNN_LIMITED_WITH(AllGatherMatmul,
           (In x, In weight, In bias, const char* group, int64_t index, int64_t turn, int64_t, Out out, Out gathered), GROUP,
           gather_gemm(x, weight, bias, group, index, turn, out, gathered))
ACLNN_LIMITED_WITH(AllGatherMatmulV2,
           (In x, In weight, In bias, In x_scale, In scale, In, int64_t, const char* group, int64_t index, int64_t turn,
            int64_t, int64_t, const char*, Out out, Out gathered, Out),
           GROUP, require(!x_scale && !scale, "quantized GEMMs are not emulated");
           gather_gemm(x, weight, bias, group, index, turn, out, gathered))
ACLNN_LIMITED_WITH(MatmulReduceScatter,
           (In x, In weight, In bias, const char* group, const char* operation, int64_t turn, int64_t, Out out),
           GROUP_AND_OPERATION, gemm_scatter(x, weight, bias, group, operation, turn, out))
ACLNN_LIMITED_WITH(MatmulReduceScatterV2,
           (In x, In weight, In bias, In x_scale, In scale, In, int64_t, const char* group, const char* operation,
            int64_t turn, int64_t, int64_t, const char*, Out out, Out),
           GROUP_AND_OPERATION, require(!x_scale && !scale, "quantized GEMMs are not emulated");
           gemm_scatter(x, weight, bias, group, operation, turn, out))
ACLNN_LIMITED_WITH(MatmulAllReduce,
           (In x, In weight, In bias, const char* group, const char* operation, int64_t turn, int64_t, Out out),
           GROUP_AND_OPERATION, gemm_reduce(x, weight, bias, In{}, group, operation, turn, out))
ACLNN_LIMITED_WITH(MatmulAllReduceV2,
           (In x, In weight, In bias, In added, const char* group, const char* operation, int64_t turn, int64_t, Out out),
           GROUP_AND_OPERATION, gemm_reduce(x, weight, bias, added, group, operation, turn, out))
ACLNN_WITH(AlltoAllvGroupedMatMul,
           (In x, In weight, In sent_tensor, In received_tensor, In shared_x, In shared_weight, const char* group,
            int64_t ranks, Ints sent, Ints received, bool turn, bool turn_shared, bool, Out out, Out shared, Out permuted),
           GROUP, shared_gemm(shared_x, shared_weight, turn_shared, shared);
           exchange_experts(x, weight, sent_tensor, received_tensor, group, ranks, sent, received, turn, out, permuted))
ACLNN_WITH(GroupedMatMulAlltoAllv,
           (In x, In weight, In sent_tensor, In received_tensor, In shared_x, In shared_weight, const char* group,
            int64_t ranks, Ints sent, Ints received, bool turn, bool turn_shared, Out out, Out shared),
           GROUP, shared_gemm(shared_x, shared_weight, turn_shared, shared);
           experts_exchange(x, weight, sent_tensor, received_tensor, group, ranks, sent, received, turn, out))
