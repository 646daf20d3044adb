// Attributes of an operator of the older interface (aclop), as the operator library reads them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

struct aclopAttr {
  std::map<std::string, double> numbers;
  std::map<std::string, std::string> texts;
  std::map<std::string, std::vector<double>> lists;
};
