// What an operator takes, from the machine's file `limits`, which backends/ascend/limits.py writes.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "operator.h"

namespace emulated {
namespace {

struct Row {
  int64_t low, high, divisor;
  std::string names, text, source;
};

std::vector<std::string> split(const std::string& line, char separator) {
  std::stringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; std::getline(stream, word, separator);) words.push_back(word);
  return words;
}

const std::map<std::string, Row>& rows() {
  static const std::map<std::string, Row> read = [] {
    std::map<std::string, Row> found;
    const char* root = std::getenv("ASCEND_EMULATOR_ROOT");
    std::ifstream file(std::string(root ? root : "") + "/limits");
    for (std::string line; std::getline(file, line);) {
      auto words = split(line, '\t');
      found[words.at(0) + "." + words.at(1)] = {std::stoll(words.at(2)), std::stoll(words.at(3)), std::stoll(words.at(4)),
                                                words.at(5), words.at(6), words.at(7)};
    }
    return found;
  }();
  return read;
}

}  // namespace

void Limits::operator()(const char* key, int64_t value) const {
  auto row = rows().find(std::string(operation) + "." + key);
  if (row == rows().end()) return;
  if (!row->second.names.empty()) return (*this)(key, std::to_string(value));
  const Row& limit = row->second;
  if (value >= limit.low && value <= limit.high && value % limit.divisor == 0) return;
  throw OutOfLimits(std::string(operation) + ": " + limit.text + ", not " + std::to_string(value) + " (" + limit.source + ")",
                    OutOfLimits::kTiling);
}

void Limits::operator()(const char* key, const std::string& value) const {
  auto row = rows().find(std::string(operation) + "." + key);
  if (row == rows().end()) return;
  auto names = split(row->second.names, ',');
  if (std::find(names.begin(), names.end(), value) != names.end()) return;
  throw OutOfLimits(std::string(operation) + ": " + row->second.text + ", not " + value + " (" + row->second.source + ")",
                    OutOfLimits::kParameter);
}

void Limits::operator()(const char* key, const at::Tensor& tensor) const {
  static const std::map<at::ScalarType, std::string> names = {
      {at::kHalf, "float16"}, {at::kBFloat16, "bfloat16"}, {at::kFloat, "float32"}, {at::kDouble, "float64"},
      {at::kBool, "bool"},    {at::kByte, "uint8"},        {at::kChar, "int8"},     {at::kInt, "int32"},
      {at::kLong, "int64"},
  };
  auto found = names.find(tensor.scalar_type());
  (*this)(key, found == names.end() ? std::string(c10::toString(tensor.scalar_type())) : found->second);
}

}  // namespace emulated
