#include "communicator.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <thread>

namespace emulated {
namespace {

// CANN's defaults, in seconds.
constexpr double kConnectSeconds = 120;
constexpr double kExecuteSeconds = 1836;
constexpr auto kPoll = std::chrono::microseconds(50);
// How often a waiting rank checks that the other is still alive.
constexpr double kAliveSeconds = 0.5;

double seconds_from(const char* variable, double otherwise) {
  const char* text = std::getenv(variable);
  return text && *text ? std::strtod(text, nullptr) : otherwise;
}

std::string directory() {
  const char* root = std::getenv("ASCEND_EMULATOR_ROOT");
  if (root == nullptr) throw Failure(HCCL_E_INTERNAL, "ASCEND_EMULATOR_ROOT is not set");
  return std::string(root) + "/hccl/";
}

// Other ranks see the whole file or none.
void publish(const std::string& path, const void* data, size_t bytes) {
  std::string draft = path + ".part";
  int file = open(draft.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
  if (file < 0) throw Failure(HCCL_E_OPEN_FILE_FAILURE, "cannot write " + draft);
  const char* from = static_cast<const char*>(data);
  for (size_t done = 0; done < bytes;) {
    ssize_t written = write(file, from + done, bytes - done);
    if (written <= 0) {
      close(file);
      throw Failure(HCCL_E_MEMORY, "shared memory is full: " + draft);
    }
    done += static_cast<size_t>(written);
  }
  close(file);
  if (rename(draft.c_str(), path.c_str()) != 0) throw Failure(HCCL_E_SYSCALL, "cannot rename " + draft);
}

bool read_file(const std::string& path, std::string* content) {
  int file = open(path.c_str(), O_RDONLY);
  if (file < 0) return false;
  struct stat info {};
  fstat(file, &info);
  content->resize(static_cast<size_t>(info.st_size));
  for (size_t done = 0; done < content->size();) {
    ssize_t got = read(file, content->data() + done, content->size() - done);
    if (got <= 0) throw Failure(HCCL_E_SYSCALL, "cannot read " + path);
    done += static_cast<size_t>(got);
  }
  close(file);
  return true;
}

// A process that ended but was not waited for (Z) is as dead as one that is gone.
bool lives(int process) {
  std::ifstream stat("/proc/" + std::to_string(process) + "/stat");
  std::string line;
  if (!std::getline(stat, line)) return false;
  size_t end = line.rfind(')');
  return end == std::string::npos || end + 2 >= line.size() || (line[end + 2] != 'Z' && line[end + 2] != 'X');
}

// Communicators of this process by name.
std::mutex registered;
std::map<std::string, Communicator*> registry;

}  // namespace

Communicator::Communicator(std::string name, uint32_t rank, uint32_t size)
    : name_(std::move(name)), rank_(rank), size_(size), processes_(size, 0) {
  std::string mine = std::to_string(getpid());
  publish(path("rank" + std::to_string(rank_)), mine.data(), mine.size());
  {
    std::lock_guard<std::mutex> hold(registered);
    registry[name_] = this;
  }
  double seconds = seconds_from("HCCL_CONNECT_TIMEOUT", kConnectSeconds);
  for (uint32_t other = 0; other < size_; other++) {
    processes_[other] = std::atoi(wait_for(path("rank" + std::to_string(other)), other, seconds).c_str());
  }
}

Communicator::~Communicator() {
  std::lock_guard<std::mutex> hold(registered);
  if (auto found = registry.find(name_); found != registry.end() && found->second == this) registry.erase(found);
  // The last exchange may still be read; its file, and this rank's mark, go with the emulated
  // machine's directory.
}

Communicator* Communicator::named(const std::string& name) {
  std::lock_guard<std::mutex> hold(registered);
  auto found = registry.find(name);
  return found == registry.end() ? nullptr : found->second;
}

std::string Communicator::path(const std::string& what) const { return directory() + name_ + "." + what; }

void Communicator::check_alive(uint32_t rank) {
  if (rank == rank_ || processes_[rank] == 0 || lives(processes_[rank])) return;
  throw Failure(HCCL_E_REMOTE, "rank " + std::to_string(rank) + " of " + name_ + " (process " +
                                   std::to_string(processes_[rank]) + ") has ended; rank " +
                                   std::to_string(rank_) + " was waiting for it");
}

std::string Communicator::wait_for(const std::string& file, uint32_t from, double seconds) {
  using clock = std::chrono::steady_clock;
  auto start = clock::now(), looked = start;
  std::string content;
  while (!read_file(file, &content)) {
    std::this_thread::sleep_for(kPoll);
    auto now = clock::now();
    if (std::chrono::duration<double>(now - looked).count() > kAliveSeconds) {
      looked = now;
      // It may have published before it ended: what it left counts.
      if (read_file(file, &content)) break;
      check_alive(from);
    }
    if (std::chrono::duration<double>(now - start).count() > seconds) {
      throw Failure(HCCL_E_TIMEOUT, "rank " + std::to_string(rank_) + " of " + name_ + " waited " +
                                        std::to_string(static_cast<int>(seconds)) + " s for rank " +
                                        std::to_string(from) +
                                        "; do all ranks call the same collectives in the same order? "
                                        "(HCCL_CONNECT_TIMEOUT and HCCL_EXEC_TIMEOUT set the time)");
    }
  }
  return content;
}

std::vector<std::string> Communicator::exchange(const void* data, size_t bytes) {
  double seconds = seconds_from("HCCL_EXEC_TIMEOUT", kExecuteSeconds);
  std::string step = "step" + std::to_string(++sequence_) + ".";
  publish(path(step + std::to_string(rank_)), data, bytes);
  std::vector<std::string> all(size_);
  for (uint32_t other = 0; other < size_; other++) {
    if (other == rank_) {
      all[other].assign(static_cast<const char*>(data), bytes);
    } else {
      all[other] = wait_for(path(step + std::to_string(other)), other, seconds);
    }
  }
  // All ranks have arrived here, so all have read the previous step.
  unlink(path("step" + std::to_string(sequence_ - 1) + "." + std::to_string(rank_)).c_str());
  return all;
}

std::string Communicator::from_root(const void* data, size_t bytes, uint32_t root) {
  // A full exchange with empty buffers from the others keeps all ranks within one step.
  return exchange(data, rank_ == root ? bytes : 0)[root];
}

void Communicator::send(const void* data, size_t bytes, uint32_t to) {
  uint64_t number = sent_[to]++;
  publish(path("from" + std::to_string(rank_) + "to" + std::to_string(to) + "." + std::to_string(number)), data, bytes);
}

std::string Communicator::receive(uint32_t from) {
  uint64_t number = received_[from]++;
  std::string file = path("from" + std::to_string(from) + "to" + std::to_string(rank_) + "." + std::to_string(number));
  std::string content = wait_for(file, from, seconds_from("HCCL_EXEC_TIMEOUT", kExecuteSeconds));
  unlink(file.c_str());
  return content;
}

}  // namespace emulated
