// Adapts yaml-cpp: reads a YAML text as JSON, with the line on which each value stands.
//
// YAML's core schema decides types: `3` is a whole number, `3.0e-4` a number, `true` a truth value, `~`
// nothing and everything else, and everything in quotes, text. The reader refuses what others silently
// accept: a key given twice, several documents in one file, a key that is not text, and texts that expand to
// more than 10,000 values or 32 levels through aliases.
//
// Failure: InvalidArgument, whose message begins with the line number and a colon when there is one.
#ifndef WEFT_BASE_YAML_FILE_H_
#define WEFT_BASE_YAML_FILE_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace weft {

struct YamlFile {
  nlohmann::json json;
  std::map<std::string, int> lines;  // lines from 1 up, by path, as `train.batch` or `stages[2]`

  // Returns the line of a path or, where the path is absent from the file, of the section that it would stand
  // in.
  int LineOf(std::string path) const;
};

absl::StatusOr<YamlFile> ParseYaml(const std::string& text);

// Returns a failure of ParseYaml with the file that it is of: "FILE:3: .." or "FILE: is empty".
absl::Status InYamlFile(const std::string& path, const absl::Status& failure);

}  // namespace weft

#endif  // WEFT_BASE_YAML_FILE_H_
