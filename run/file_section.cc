#include "run/file_section.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "run/run_spec.h"
#include "run/unknown_name.h"

namespace weft {
namespace {

using Json = nlohmann::json;

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Returns a value as a message shows it: short, and in quotes if it is text.
std::string Shown(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 64) text = absl::StrCat(text.substr(0, 60), " ..");
  return text;
}

std::string Number(double value) { return Json(value).dump(); }

// Accepts exactly the whole numbers that fit; a number with a fraction part of zero, as 3.0, does not pass.
bool IsIntegerBetween(const Json& value, int64_t least, int64_t most) {
  if (value.is_number_unsigned()) {
    const uint64_t n = value.get<uint64_t>();
    return n <= static_cast<uint64_t>(INT64_MAX) && static_cast<int64_t>(n) >= least &&
           static_cast<int64_t>(n) <= most;
  }
  return value.is_number_integer() && value.get<int64_t>() >= least && value.get<int64_t>() <= most;
}

}  // namespace

absl::Status ErrorAt(absl::string_view path, absl::string_view message) {
  absl::Status status =
      absl::InvalidArgumentError(path.empty() ? std::string(message) : absl::StrCat(path, ": ", message));
  status.SetPayload(kPathPayload, absl::Cord(path));
  return status;
}

absl::string_view TypeName(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "nothing";
    case Json::value_t::object:
      return "a section";
    case Json::value_t::array:
      return "a list";
    case Json::value_t::string:
      return "text";
    case Json::value_t::boolean:
      return "true or false";
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return "a whole number";
    case Json::value_t::number_float:
      return "a number";
    default:
      return "an unknown type";
  }
}

FileSection::FileSection(const Json& value, std::string path, const std::vector<std::string>& keys,
                         absl::Status& status)
    : value_(value), path_(std::move(path)), status_(status) {
  if (!status_.ok() || value_.is_null()) return;
  if (!value_.is_object()) {
    status_ = ErrorAt(path_, absl::StrCat("must be a section with the keys ", absl::StrJoin(keys, ", "),
                                          ", not ", TypeName(value_)));
    return;
  }
  for (const auto& item : value_.items()) {
    if (!Contains(keys, item.key())) Fail(item.key(), UnknownName("key", item.key(), keys));
  }
}

bool FileSection::Has(absl::string_view key) const {
  return value_.is_object() && value_.contains(std::string(key));
}

void FileSection::Require(absl::string_view key, absl::string_view example) {
  if (!Has(key)) Fail(key, absl::StrCat("is missing; write, for example, ", example));
}

const Json& FileSection::At(absl::string_view key) const {
  static const Json kNothing;
  return Has(key) ? value_.at(std::string(key)) : kNothing;
}

std::string FileSection::PathOf(absl::string_view key) const {
  return path_.empty() ? std::string(key) : absl::StrCat(path_, ".", key);
}

const Json* FileSection::Find(absl::string_view key) const {
  return status_.ok() && Has(key) ? &At(key) : nullptr;
}

void FileSection::Fail(absl::string_view key, absl::string_view message) {
  if (status_.ok()) status_ = ErrorAt(PathOf(key), message);
}

void FileSection::Read(absl::string_view key, int& value, int least, int most) {
  const Json* found = Find(key);
  if (found == nullptr) return;
  if (!IsIntegerBetween(*found, least, most)) {
    return Fail(key,
                absl::StrCat("must be a whole number from ", least, " to ", most, ", not ", Shown(*found)));
  }
  value = found->get<int>();
}

void FileSection::Read(absl::string_view key, uint64_t& value) {
  const Json* found = Find(key);
  if (found == nullptr) return;
  if (!found->is_number_unsigned() && !IsIntegerBetween(*found, 0, INT64_MAX)) {
    return Fail(key, absl::StrCat("must be a whole number from 0 to ", UINT64_MAX, ", not ", Shown(*found)));
  }
  value = found->get<uint64_t>();
}

void FileSection::Read(absl::string_view key, double& value, double least, double most, bool below) {
  const Json* found = Find(key);
  if (found == nullptr) return;
  const double number = found->is_number() ? found->get<double>() : NAN;
  if (!(number >= least && (below ? number < most : number <= most))) {
    return Fail(key, absl::StrCat("must be a number from ", Number(least), below ? " to below " : " to ",
                                  Number(most), ", not ", Shown(*found)));
  }
  value = number;
}

void FileSection::Read(absl::string_view key, std::string& value) {
  const Json* found = Find(key);
  if (found == nullptr) return;
  if (!found->is_string()) {
    return Fail(key, absl::StrCat("must be text, not ", TypeName(*found),
                                  found->is_primitive() && !found->is_null()
                                      ? absl::StrCat("; in quotes it is text: \"", Shown(*found), "\"")
                                      : ""));
  }
  value = found->get<std::string>();
}

void FileSection::Read(absl::string_view key, bool& value) {
  const Json* found = Find(key);
  if (found == nullptr) return;
  if (!found->is_boolean()) return Fail(key, absl::StrCat("must be true or false, not ", Shown(*found)));
  value = found->get<bool>();
}

Choice ReadChoice(const Json& value, absl::string_view path, const ChoiceNames& names, absl::Status& status) {
  Choice choice;
  if (!status.ok()) return choice;
  std::vector<std::string> all = names.names;
  all.insert(all.end(), names.elsewhere.begin(), names.elsewhere.end());
  const std::string one_of = absl::StrCat("one of ", absl::StrJoin(all, ", "));
  const auto path_of = [&](const std::string& name) {
    return path.empty() ? name : absl::StrCat(path, ".", name);
  };
  const auto take = [&](const std::string& name, const Json& parameters, const std::string& where) {
    if (!Contains(names.names, name)) {
      std::vector<std::string> valid = Contains(all, name) ? names.names : all;
      if (value.is_object()) valid.insert(valid.end(), names.further_keys.begin(), names.further_keys.end());
      status = ErrorAt(where, UnknownName(names.what, name, valid));
    } else if (!choice.name.empty()) {
      status =
          ErrorAt(where, absl::StrCat("names both ", choice.name, " and ", name, "; give one ", names.what));
    } else {
      choice = {name, parameters, path_of(name)};
    }
  };
  if (value.is_string()) {
    take(value.get<std::string>(), Json(), std::string(path));
  } else if (value.is_object()) {
    for (const auto& item : value.items()) {
      if (status.ok() && !Contains(names.further_keys, item.key()))
        take(item.key(), item.value(), path_of(item.key()));
    }
  } else {
    status = ErrorAt(path, absl::StrCat("must name a ", names.what, ", ", one_of, ", not ", TypeName(value)));
  }
  if (status.ok() && choice.name.empty()) {
    status = ErrorAt(path, absl::StrCat("names no ", names.what, "; give ", one_of));
  }
  return choice;
}

}  // namespace weft
