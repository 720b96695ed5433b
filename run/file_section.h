// Reads one object of a run file strictly: types, ranges, unknown and missing keys, each with its path.
//
// The first error wins and stays. After it, every read leaves its target as it is, so that a parser can read
// all fields in a row and look at the status once. Errors are InvalidArgument. Their message begins with the
// path (`train.batch: `), and their payload kPathPayload is the path.
//
// Ownership: refers to the JSON value and to the status, which must outlive it. Pure.
#ifndef WEFT_RUN_FILE_SECTION_H_
#define WEFT_RUN_FILE_SECTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace weft {

// Returns the error for one place of a file.
absl::Status ErrorAt(absl::string_view path, absl::string_view message);

// Returns the word that a person uses for the type of a value: "text", "a whole number", "a list", ..
absl::string_view TypeName(const nlohmann::json& value);

class FileSection {
 public:
  // Fails if the value is no object (an absent value counts as an empty one) or has a key outside `keys`.
  FileSection(const nlohmann::json& value, std::string path, const std::vector<std::string>& keys,
              absl::Status& status);

  bool Has(absl::string_view key) const;
  // Fails unless the key is there; `example` shows how to write it.
  void Require(absl::string_view key, absl::string_view example);
  // Returns the value of a key, or null.
  const nlohmann::json& At(absl::string_view key) const;
  // Returns `train.batch` for the key `batch` of the section `train`.
  std::string PathOf(absl::string_view key) const;

  // Each Read leaves `value` as it is, its default, where the key is absent.
  void Read(absl::string_view key, int& value, int least, int most);
  void Read(absl::string_view key, uint64_t& value);
  // `least` is allowed; `most` is unless `below` is set.
  void Read(absl::string_view key, double& value, double least, double most, bool below = false);
  void Read(absl::string_view key, std::string& value);
  void Read(absl::string_view key, bool& value);

  void Fail(absl::string_view key, absl::string_view message);
  bool ok() const { return status_.ok(); }

 private:
  // Returns the value of a key to be read, or nullptr if it is absent or an earlier read failed.
  const nlohmann::json* Find(absl::string_view key) const;

  const nlohmann::json& value_;
  const std::string path_;
  absl::Status& status_;
};

// A choice of one of several named alternatives, with its parameters: `adamw` or `{adamw: {lr: 1e-3}}`.
struct Choice {
  std::string name;
  nlohmann::json parameters;  // null if none were given
  std::string path;           // path of the alternative, for messages about its parameters
};

struct ChoiceNames {
  std::string what;                         // the noun for messages: "model"
  std::vector<std::string> names;           // the alternatives
  std::vector<std::string> further_keys;    // keys that may stand beside the alternative, as `rule`
  std::vector<std::string> elsewhere = {};  // alternatives that a caller has taken before; only in messages
};

// Reads the one alternative that is given; fails if there is none or more than one.
Choice ReadChoice(const nlohmann::json& value, absl::string_view path, const ChoiceNames& names,
                  absl::Status& status);

}  // namespace weft

#endif  // WEFT_RUN_FILE_SECTION_H_
