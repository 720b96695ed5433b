#include "base/yaml_file.h"

#include <cmath>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "yaml-cpp/eventhandler.h"
#include "yaml-cpp/yaml.h"

namespace weft {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 32;
constexpr int kMaxValues = 10000;

absl::Status ErrorAtLine(const YAML::Mark& mark, absl::string_view message) {
  return absl::InvalidArgumentError(mark.is_null() ? std::string(message)
                                                   : absl::StrCat(mark.line + 1, ": ", message));
}

bool AllDigits(absl::string_view text) {
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
  }
  return !text.empty();
}

// Converts a scalar as YAML's core schema does: nothing, a truth value or a number; text otherwise.
Json PlainScalar(const std::string& text) {
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") return nullptr;
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  absl::string_view digits = text;
  const bool negative = absl::ConsumePrefix(&digits, "-");
  if (!negative) absl::ConsumePrefix(&digits, "+");
  if (AllDigits(digits)) {
    uint64_t number = 0;
    int64_t below_zero = 0;
    if (!negative && absl::SimpleAtoi(digits, &number)) return number;
    if (negative && absl::SimpleAtoi(text, &below_zero)) return below_zero;
  }
  // SimpleAtod also takes "nan" and "infinity", which are words here.
  const bool numeric =
      !digits.empty() && (AllDigits(digits.substr(0, 1)) ||
                          (digits[0] == '.' && digits.size() > 1 && AllDigits(digits.substr(1, 1))));
  double number = 0;
  if (numeric && absl::SimpleAtod(text, &number)) return number;
  return text;
}

// Returns the first line, up to `last` (0: any), whose indentation has a tab; 0 if there is none.
int LineIndentedByTab(absl::string_view text, int last) {
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (++number > last && last > 0) break;
    const size_t begin = line.find_first_not_of(" \t");
    if (line.substr(0, begin).find('\t') != absl::string_view::npos) return number;
  }
  return 0;
}

class Converter {
 public:
  explicit Converter(YamlFile& file) : file_(file) {}

  absl::StatusOr<Json> Convert(const YAML::Node& node, const std::string& path, int depth) {
    if (++values_ > kMaxValues) return ErrorAtLine(node.Mark(), "holds too many values for a run file");
    if (depth > kMaxDepth) return ErrorAtLine(node.Mark(), "is nested too deeply for a run file");
    file_.lines.emplace(path, node.Mark().is_null() ? 1 : node.Mark().line + 1);
    switch (node.Type()) {
      case YAML::NodeType::Map:
        return ConvertMap(node, path, depth);
      case YAML::NodeType::Sequence:
        return ConvertList(node, path, depth);
      case YAML::NodeType::Scalar:
        if (node.Tag() != "?") return Json(node.Scalar());
        if (Json scalar = PlainScalar(node.Scalar());
            !scalar.is_number_float() || std::isfinite(scalar.get<double>()))
          return scalar;
        return ErrorAtLine(node.Mark(),
                           absl::StrCat(path, ": ", node.Scalar(), " is too large for a number"));
      default:
        return Json();
    }
  }

 private:
  absl::StatusOr<Json> ConvertMap(const YAML::Node& node, const std::string& path, int depth) {
    Json object = Json::object();
    for (const auto& entry : node) {
      const YAML::Mark mark = entry.first.Mark();
      if (!entry.first.IsScalar()) return ErrorAtLine(mark, "has a key that is not text");
      const std::string& key = entry.first.Scalar();
      const std::string inner = path.empty() ? key : absl::StrCat(path, ".", key);
      if (object.contains(key)) {
        return ErrorAtLine(mark, absl::StrCat(inner, ": is given twice, first on line ", file_.lines[inner]));
      }
      // A value that begins on a later line is still found at its key.
      file_.lines.emplace(inner, mark.line + 1);
      auto value = Convert(entry.second, inner, depth + 1);
      if (!value.ok()) return value;
      object[key] = *std::move(value);
    }
    return object;
  }

  absl::StatusOr<Json> ConvertList(const YAML::Node& node, const std::string& path, int depth) {
    Json list = Json::array();
    for (size_t i = 0; i < node.size(); ++i) {
      auto value = Convert(node[i], absl::StrCat(path, "[", i, "]"), depth + 1);
      if (!value.ok()) return value;
      list.push_back(*std::move(value));
    }
    return list;
  }

  YamlFile& file_;
  int values_ = 0;
};

// Notes where documents begin, and nothing else.
class DocumentStarts final : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override { starts.push_back(mark); }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
  }
  void OnMapEnd() override {}

  std::vector<YAML::Mark> starts;
};

// Refuses a text of more than one document. yaml-cpp finds documents without end before a mark that can begin
// none, as a comma, so it is asked for two at most.
absl::Status CheckOneDocument(const std::string& text) {
  std::istringstream in(text);
  YAML::Parser parser(in);
  DocumentStarts documents;
  while (documents.starts.size() < 2 && parser.HandleNextDocument(documents)) {
  }
  if (documents.starts.size() < 2) return absl::OkStatus();
  const YAML::Mark &first = documents.starts[0], &second = documents.starts[1];
  if (first.pos == second.pos) return ErrorAtLine(second, "is not YAML: nothing can begin like this");
  return ErrorAtLine(second, "begins a second document; a run file is one document");
}

}  // namespace

int YamlFile::LineOf(std::string path) const {
  while (!path.empty()) {
    const auto line = lines.find(path);
    if (line != lines.end()) return line->second;
    const size_t cut = path.find_last_of(".[");
    path.resize(cut == std::string::npos ? 0 : cut);
  }
  return 1;
}

absl::StatusOr<YamlFile> ParseYaml(const std::string& text) {
  try {
    if (const absl::Status one = CheckOneDocument(text); !one.ok()) return one;
    const YAML::Node document = YAML::Load(text);
    if (document.IsNull()) return absl::InvalidArgumentError("is empty");
    YamlFile file;
    auto json = Converter(file).Convert(document, "", 0);
    if (!json.ok()) return json.status();
    file.json = *std::move(json);
    return file;
  } catch (const YAML::Exception& e) {
    if (const int line = LineIndentedByTab(text, e.mark.is_null() ? 0 : e.mark.line + 1); line > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(line, ": is not YAML: the line begins with a tab; indent with spaces"));
    }
    return ErrorAtLine(e.mark, absl::StrCat("is not YAML: ", e.msg));
  }
}

absl::Status InYamlFile(const std::string& path, const absl::Status& failure) {
  const absl::string_view message = failure.message();
  const bool numbered = !message.empty() && absl::ascii_isdigit(static_cast<unsigned char>(message[0]));
  return absl::InvalidArgumentError(absl::StrCat(path, numbered ? ":" : ": ", message));
}

}  // namespace weft
