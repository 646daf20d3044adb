// HCCL's functions. A collective is done when its call returns; streams are never behind.
#include <ATen/ATen.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <utility>

#include "communicator.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

// In libascendcl: what torch_npu reads with aclGetRecentErrMsg.
extern "C" void emulated_set_error(const char* message);

using namespace emulated;

namespace {

at::ScalarType type_of(HcclDataType type) {
  switch (type) {
    case HCCL_DATA_TYPE_INT8: return at::kChar;
    case HCCL_DATA_TYPE_INT16: return at::kShort;
    case HCCL_DATA_TYPE_INT32: return at::kInt;
    case HCCL_DATA_TYPE_FP16: return at::kHalf;
    case HCCL_DATA_TYPE_FP32: return at::kFloat;
    case HCCL_DATA_TYPE_INT64: return at::kLong;
    case HCCL_DATA_TYPE_UINT64: return at::kUInt64;
    case HCCL_DATA_TYPE_UINT8: return at::kByte;
    case HCCL_DATA_TYPE_UINT16: return at::kUInt16;
    case HCCL_DATA_TYPE_UINT32: return at::kUInt32;
    case HCCL_DATA_TYPE_FP64: return at::kDouble;
    case HCCL_DATA_TYPE_BFP16: return at::kBFloat16;
    default: throw Failure(HCCL_E_NOT_SUPPORT, "data type " + std::to_string(type) + " is not emulated");
  }
}

size_t bytes_of(HcclDataType type, uint64_t count) { return c10::elementSize(type_of(type)) * count; }

Communicator& at_handle(HcclComm handle) { return *static_cast<Communicator*>(handle); }

HcclResult attempt(const char* name, const std::function<void()>& body) {
  try {
    body();
    return HCCL_SUCCESS;
  } catch (const Failure& failure) {
    std::string message = std::string(name) + ": " + failure.what();
    emulated_set_error(message.c_str());
    std::fprintf(stderr, "[EMULATED Ascend] %s\n", message.c_str());
    return failure.code;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "[EMULATED Ascend] %s: %s\n", name, error.what());
    return HCCL_E_INTERNAL;
  }
}

// HCCL does not reduce fp64 or unsigned numbers beyond a byte.
// Source: the "HCCL API" document, HcclAllReduce, for Atlas A2.
void check_reduction(HcclDataType type, HcclReduceOp op) {
  switch (type) {
    case HCCL_DATA_TYPE_INT8:
    case HCCL_DATA_TYPE_INT32:
    case HCCL_DATA_TYPE_INT64:
    case HCCL_DATA_TYPE_FP16:
    case HCCL_DATA_TYPE_FP32: return;
    case HCCL_DATA_TYPE_INT16:
    case HCCL_DATA_TYPE_BFP16:
      if (op != HCCL_REDUCE_PROD) return;
      throw Failure(HCCL_E_NOT_SUPPORT, "int16 and bfloat16 cannot be reduced by product");
    default:
      throw Failure(HCCL_E_NOT_SUPPORT, "HCCL reduces int8, int16, int32, int64, fp16, fp32 and bf16, not data type " +
                                            std::to_string(type) + " (fp64 is 10)");
  }
}

// Between HcclGroupStart and HcclGroupEnd, which the queue's one thread calls: receives, which would
// otherwise hold up the sends that come after them.
thread_local int group_depth = 0;
thread_local std::vector<std::function<HcclResult()>> receives;

// Buffers of all ranks, each from `offset`, combined into `out`. Half precisions add up in float32.
void reduce(std::vector<std::string>& all, size_t offset, uint64_t count, HcclDataType type, HcclReduceOp op, void* out) {
  auto shape = std::vector<int64_t>{static_cast<int64_t>(count)};
  auto options = at::TensorOptions().dtype(type_of(type));
  bool half = type == HCCL_DATA_TYPE_FP16 || type == HCCL_DATA_TYPE_BFP16;
  at::Tensor result;
  for (auto& bytes : all) {
    if (bytes.size() < offset + bytes_of(type, count)) throw Failure(HCCL_E_PARA, "ranks gave buffers of different sizes");
    at::Tensor part = at::from_blob(bytes.data() + offset, shape, options);
    if (half) part = part.to(at::kFloat);
    if (!result.defined()) {
      result = part.clone();
    } else if (op == HCCL_REDUCE_SUM) {
      result.add_(part);
    } else if (op == HCCL_REDUCE_PROD) {
      result.mul_(part);
    } else {
      result = op == HCCL_REDUCE_MAX ? at::maximum(result, part) : at::minimum(result, part);
    }
  }
  at::from_blob(out, shape, options).copy_(result);
}

void copy_to(void* to, const std::string& from, size_t bytes) {
  if (from.size() != bytes) throw Failure(HCCL_E_PARA, "ranks gave buffers of different sizes");
  std::memcpy(to, from.data(), bytes);
}

}  // namespace

// For operators that communicate: they are given a group's name.
EXPORT HcclComm emulated_communicator(const char* name) { return Communicator::named(name); }

EXPORT HcclResult HcclGetRootInfo(HcclRootInfo* info) {
  static std::atomic<int> number{0};
  std::memset(info, 0, sizeof *info);
  std::snprintf(info->internal, sizeof info->internal, "%d-%d", getpid(), number++);
  return HCCL_SUCCESS;
}
EXPORT HcclResult HcclCommInitRootInfo(uint32_t size, const HcclRootInfo* info, uint32_t rank, HcclComm* handle) {
  return attempt("HcclCommInitRootInfo", [&] { *handle = new Communicator(info->internal, rank, size); });
}
EXPORT HcclResult HcclCommInitRootInfoConfig(uint32_t size, const HcclRootInfo* info, uint32_t rank, const HcclCommConfig*,
                                             HcclComm* handle) {
  return HcclCommInitRootInfo(size, info, rank, handle);
}
EXPORT HcclResult HcclCreateSubCommConfig(HcclComm* parent, uint32_t size, uint32_t*, uint64_t id, uint32_t rank,
                                          HcclCommConfig*, HcclComm* handle) {
  return attempt("HcclCreateSubCommConfig", [&] {
    *handle = new Communicator(at_handle(*parent).name() + "-" + std::to_string(id), rank, size);
  });
}
EXPORT HcclResult HcclSetConfig(HcclConfig, HcclConfigValue) { return HCCL_SUCCESS; }
EXPORT HcclResult HcclCommDestroy(HcclComm handle) {
  delete static_cast<Communicator*>(handle);
  return HCCL_SUCCESS;
}
EXPORT HcclResult HcclGetCommName(HcclComm handle, char* name) {
  std::strncpy(name, at_handle(handle).name().c_str(), COMM_NAME_MAX_LENGTH - 1);
  return HCCL_SUCCESS;
}
EXPORT HcclResult HcclGetCommAsyncError(HcclComm, HcclResult* error) {
  *error = HCCL_SUCCESS;
  return HCCL_SUCCESS;
}
EXPORT const char* HcclGetErrorString(HcclResult code) {
  switch (code) {
    case HCCL_SUCCESS: return "no error";
    case HCCL_E_PARA: return "[EMULATED Ascend] parameter error";
    case HCCL_E_NOT_SUPPORT: return "[EMULATED Ascend] not supported";
    case HCCL_E_TIMEOUT: return "[EMULATED Ascend] time-out";
    case HCCL_E_REMOTE: return "[EMULATED Ascend] another rank has ended";
    default: return "[EMULATED Ascend] internal error";
  }
}
EXPORT HcclResult HcclGetRankSize(HcclComm handle, uint32_t* size) {
  *size = at_handle(handle).size();
  return HCCL_SUCCESS;
}
EXPORT HcclResult HcclGetRankId(HcclComm handle, uint32_t* rank) {
  *rank = at_handle(handle).rank();
  return HCCL_SUCCESS;
}

EXPORT HcclResult HcclAllReduce(void* in, void* out, uint64_t count, HcclDataType type, HcclReduceOp op, HcclComm handle,
                                aclrtStream) {
  return attempt("HcclAllReduce", [&] {
    check_reduction(type, op);
    auto all = at_handle(handle).exchange(in, bytes_of(type, count));
    reduce(all, 0, count, type, op, out);
  });
}
EXPORT HcclResult HcclReduce(void* in, void* out, uint64_t count, HcclDataType type, HcclReduceOp op, uint32_t root,
                             HcclComm handle, aclrtStream) {
  return attempt("HcclReduce", [&] {
    check_reduction(type, op);
    auto all = at_handle(handle).exchange(in, bytes_of(type, count));
    if (at_handle(handle).rank() == root) reduce(all, 0, count, type, op, out);
  });
}
EXPORT HcclResult HcclReduceScatter(void* in, void* out, uint64_t count, HcclDataType type, HcclReduceOp op, HcclComm handle,
                                    aclrtStream) {
  return attempt("HcclReduceScatter", [&] {
    check_reduction(type, op);
    auto& group = at_handle(handle);
    auto all = group.exchange(in, bytes_of(type, count) * group.size());
    reduce(all, group.rank() * bytes_of(type, count), count, type, op, out);
  });
}
EXPORT HcclResult HcclReduceScatterV(void* in, const void* counts, const void* starts, void* out, uint64_t count,
                                     HcclDataType type, HcclReduceOp op, HcclComm handle, aclrtStream) {
  return attempt("HcclReduceScatterV", [&] {
    check_reduction(type, op);
    auto& group = at_handle(handle);
    auto sizes = static_cast<const uint64_t*>(counts), offsets = static_cast<const uint64_t*>(starts);
    uint32_t last = group.size() - 1;
    auto all = group.exchange(in, bytes_of(type, offsets[last] + sizes[last]));
    reduce(all, bytes_of(type, offsets[group.rank()]), count, type, op, out);
  });
}
EXPORT HcclResult HcclAllGather(void* in, void* out, uint64_t count, HcclDataType type, HcclComm handle, aclrtStream) {
  return attempt("HcclAllGather", [&] {
    size_t bytes = bytes_of(type, count);
    auto all = at_handle(handle).exchange(in, bytes);
    for (size_t rank = 0; rank < all.size(); rank++) {
      copy_to(static_cast<char*>(out) + rank * bytes, all[rank], bytes);
    }
  });
}
EXPORT HcclResult HcclAllGatherV(void* in, uint64_t count, void* out, const void* counts, const void* starts,
                                 HcclDataType type, HcclComm handle, aclrtStream) {
  return attempt("HcclAllGatherV", [&] {
    auto sizes = static_cast<const uint64_t*>(counts), offsets = static_cast<const uint64_t*>(starts);
    auto all = at_handle(handle).exchange(in, bytes_of(type, count));
    for (size_t rank = 0; rank < all.size(); rank++) {
      copy_to(static_cast<char*>(out) + bytes_of(type, offsets[rank]), all[rank], bytes_of(type, sizes[rank]));
    }
  });
}
EXPORT HcclResult HcclBroadcast(void* data, uint64_t count, HcclDataType type, uint32_t root, HcclComm handle, aclrtStream) {
  return attempt("HcclBroadcast", [&] {
    size_t bytes = bytes_of(type, count);
    std::string sent = at_handle(handle).from_root(data, bytes, root);
    if (at_handle(handle).rank() != root) copy_to(data, sent, bytes);
  });
}
EXPORT HcclResult HcclScatter(void* in, void* out, uint64_t count, HcclDataType type, uint32_t root, HcclComm handle,
                              aclrtStream) {
  return attempt("HcclScatter", [&] {
    auto& group = at_handle(handle);
    size_t bytes = bytes_of(type, count);
    std::string sent = group.from_root(in, bytes * group.size(), root);
    copy_to(out, sent.substr(group.rank() * bytes, bytes), bytes);
  });
}
EXPORT HcclResult HcclBarrier(HcclComm handle, aclrtStream) {
  return attempt("HcclBarrier", [&] { at_handle(handle).exchange("", 0); });
}

EXPORT HcclResult HcclAlltoAllV(const void* in, const void* in_counts, const void* in_starts, HcclDataType in_type,
                                const void* out, const void* out_counts, const void* out_starts, HcclDataType out_type,
                                HcclComm handle, aclrtStream) {
  return attempt("HcclAlltoAllV", [&] {
    auto& group = at_handle(handle);
    auto counts = static_cast<const uint64_t*>(in_counts), starts = static_cast<const uint64_t*>(in_starts);
    auto wanted = static_cast<const uint64_t*>(out_counts), places = static_cast<const uint64_t*>(out_starts);
    // Each rank publishes a table of where the part for each other begins, then the parts.
    std::string message;
    std::vector<uint64_t> begins{0};
    for (uint32_t to = 0; to < group.size(); to++) begins.push_back(begins.back() + bytes_of(in_type, counts[to]));
    size_t table = begins.size() * sizeof(uint64_t);
    message.append(reinterpret_cast<const char*>(begins.data()), table);
    for (uint32_t to = 0; to < group.size(); to++) {
      message.append(static_cast<const char*>(in) + bytes_of(in_type, starts[to]), bytes_of(in_type, counts[to]));
    }
    auto all = group.exchange(message.data(), message.size());
    char* target = const_cast<char*>(static_cast<const char*>(out));
    for (uint32_t from = 0; from < group.size(); from++) {
      auto index = reinterpret_cast<const uint64_t*>(all[from].data());
      uint64_t begin = index[group.rank()], bytes = index[group.rank() + 1] - begin;
      copy_to(target + bytes_of(out_type, places[from]), all[from].substr(table + begin, bytes),
              bytes_of(out_type, wanted[from]));
    }
  });
}
EXPORT HcclResult HcclAlltoAll(const void* in, uint64_t in_count, HcclDataType in_type, const void* out, uint64_t out_count,
                               HcclDataType out_type, HcclComm handle, aclrtStream stream) {
  std::vector<uint64_t> counts, starts, wanted, places;
  for (uint32_t rank = 0; rank < at_handle(handle).size(); rank++) {
    counts.push_back(in_count);
    starts.push_back(in_count * rank);
    wanted.push_back(out_count);
    places.push_back(out_count * rank);
  }
  return HcclAlltoAllV(in, counts.data(), starts.data(), in_type, out, wanted.data(), places.data(), out_type, handle, stream);
}

EXPORT HcclResult HcclSend(void* data, uint64_t count, HcclDataType type, uint32_t to, HcclComm handle, aclrtStream) {
  return attempt("HcclSend", [&] { at_handle(handle).send(data, bytes_of(type, count), to); });
}
EXPORT HcclResult HcclRecv(void* data, uint64_t count, HcclDataType type, uint32_t from, HcclComm handle, aclrtStream) {
  auto receive = [=] {
    return attempt("HcclRecv", [&] { copy_to(data, at_handle(handle).receive(from), bytes_of(type, count)); });
  };
  if (group_depth == 0) return receive();
  receives.push_back(receive);
  return HCCL_SUCCESS;
}
EXPORT HcclResult HcclGroupStart() {
  group_depth++;
  return HCCL_SUCCESS;
}
EXPORT HcclResult HcclGroupEnd() {
  if (group_depth == 0 || --group_depth > 0) return HCCL_SUCCESS;
  HcclResult result = HCCL_SUCCESS;
  for (const auto& receive : std::exchange(receives, {})) {
    if (result == HCCL_SUCCESS) result = receive();
  }
  return result;
}
EXPORT HcclResult HcclBatchSendRecv(HcclSendRecvItem* items, uint32_t count, HcclComm handle, aclrtStream stream) {
  // Sends first: they never wait, so that two ranks that send to each other cannot block.
  for (HcclSendRecvType kind : {HCCL_SEND, HCCL_RECV}) {
    for (uint32_t i = 0; i < count; i++) {
      const auto& item = items[i];
      if (item.sendRecvType != kind) continue;
      HcclResult result = kind == HCCL_SEND
                              ? HcclSend(item.buf, item.count, item.dataType, item.remoteRank, handle, stream)
                              : HcclRecv(item.buf, item.count, item.dataType, item.remoteRank, handle, stream);
      if (result != HCCL_SUCCESS) return result;
    }
  }
  return HCCL_SUCCESS;
}
