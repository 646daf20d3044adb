// A communicator: ranks of one machine that exchange buffers through files in memory (tmpfs).
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "hccl/hccl.h"

namespace emulated {

// What goes wrong between ranks; becomes the function's result and torch_npu's error text.
struct Failure : std::runtime_error {
  Failure(HcclResult code, const std::string& message) : std::runtime_error(message), code(code) {}
  HcclResult code;
};

class Communicator {
 public:
  // Returns when all `size` ranks have come, within HCCL_CONNECT_TIMEOUT seconds.
  Communicator(std::string name, uint32_t rank, uint32_t size);
  ~Communicator();

  // This process's communicator of that name; null if there is none.
  static Communicator* named(const std::string& name);

  uint32_t rank() const { return rank_; }
  uint32_t size() const { return size_; }
  const std::string& name() const { return name_; }

  // Every rank gives a buffer and gets those of all, by rank. All ranks must call it, in one order.
  std::vector<std::string> exchange(const void* data, size_t bytes);
  // Waits only for the sending rank.
  std::string from_root(const void* data, size_t bytes, uint32_t root);

  void send(const void* data, size_t bytes, uint32_t to);
  std::string receive(uint32_t from);

 private:
  std::string path(const std::string& what) const;
  std::string wait_for(const std::string& file, uint32_t from, double seconds);
  void check_alive(uint32_t rank);

  std::string name_;
  uint32_t rank_, size_;
  uint64_t sequence_ = 0;
  std::map<uint32_t, uint64_t> sent_, received_;  // messages, by the other rank, which may be this one
  std::vector<int> processes_;
};

}  // namespace emulated
