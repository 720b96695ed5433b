#include "coordinator/record/log_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/run_files.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

std::optional<RunLogLine> ParseRunLogLine(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  const auto number = [&](const char* key, int64_t otherwise) {
    const auto found = json.find(key);
    return found != json.end() && found->is_number_integer() ? found->get<int64_t>() : otherwise;
  };
  const auto word = [&](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  RunLogLine line;
  line.run = static_cast<uint64_t>(number("run", 0));
  line.number = static_cast<uint64_t>(number("number", 0));
  line.process = static_cast<int32_t>(number("process", -1));
  line.writer = word("writer");
  line.entry.unix_ns = number("unix_ns", 0);
  line.entry.text = word("text");
  line.entry.severity = LogSeverityNamed(word("level")).value_or(LogSeverity::kInfo);
  if (json.contains("ranks") && json["ranks"].is_array()) {
    for (const nlohmann::json& rank : json["ranks"]) {
      if (rank.is_number_integer()) line.ranks.push_back(rank.get<Rank>());
    }
  }
  return line;
}

}  // namespace

std::string RunLogJson(const RunLogLine& line) {
  nlohmann::ordered_json json = {
      {"time", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromUnixNanos(line.entry.unix_ns),
                                absl::UTCTimeZone())},
      {"unix_ns", line.entry.unix_ns},
      {"level", std::string(LogSeverityName(line.entry.severity))},
      {"run", line.run},
      {"number", line.number},
      {"writer", line.writer}};
  if (line.process >= 0) json["process"] = line.process;
  if (line.process >= 0) json["ranks"] = line.ranks;
  json["text"] = line.entry.text;
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

// Leaves the file closed until there is a line: the runs of a long queue would hold one each.
LogFile::LogFile(const std::string& folder, bool goes_on, int64_t most_bytes)
    : folder_(folder), most_bytes_(most_bytes) {
  const std::string path = absl::StrCat(folder_, "/", kName);
  const int file = OpenRunFile(path, O_WRONLY | O_CREAT | (goes_on ? 0 : O_TRUNC), 0644);
  if (!goes_on) unlink(absl::StrCat(folder_, "/", kFormer).c_str());
  struct stat info {};
  if (file >= 0 && fstat(file, &info) == 0) bytes_ = info.st_size;
  if (file >= 0) close(file);
}

LogFile::~LogFile() {
  if (file_ >= 0) close(file_);
}

absl::Status LogFile::Write(absl::string_view text) {
  const std::string path = absl::StrCat(folder_, "/", kName);
  if (bytes_ > 0 && bytes_ + static_cast<int64_t>(text.size()) > most_bytes_) {
    if (file_ >= 0) close(file_);
    std::rename(path.c_str(), absl::StrCat(folder_, "/", kFormer).c_str());
    file_ = -1;
    bytes_ = 0;
  }
  if (file_ < 0) file_ = OpenRunFile(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = file_ < 0 ? -1 : write(file_, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", RunFileError(errno)));
    done += static_cast<size_t>(n);
    bytes_ += n;
  }
  return absl::OkStatus();
}

absl::Status LogFile::Append(const std::vector<RunLogLine>& lines) {
  absl::Status written;
  for (const RunLogLine& line : lines) written.Update(Write(RunLogJson(line) + "\n"));
  if (lines.empty()) return written;
  const bool reported = std::exchange(failing_, !written.ok());
  return reported ? absl::OkStatus() : written;
}

absl::StatusOr<std::vector<RunLogLine>> ReadLogFile(const std::string& folder) {
  std::vector<RunLogLine> lines;
  bool any = false;
  for (const char* name : {LogFile::kFormer, LogFile::kName}) {
    std::ifstream file = RunFileToRead(absl::StrCat(folder, "/", name));
    any |= static_cast<bool>(file);
    for (std::string text; std::getline(file, text);) {
      if (auto line = ParseRunLogLine(text); line.has_value()) lines.push_back(*std::move(line));
    }
  }
  for (const std::string& place : {folder, absl::StrCat(folder, "/", LogFile::kName)}) {
    if (absl::Status readable = CheckReadable(place); !any && !readable.ok()) return readable;
  }
  if (!any) return absl::NotFoundError(absl::StrCat(folder, " has no ", LogFile::kName));
  return lines;
}

}  // namespace weft
