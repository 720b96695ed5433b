#include "client/diff/hash_file.h"

#include <bit>
#include <fstream>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

using Json = nlohmann::json;

// These throw nlohmann's exceptions, and std::invalid_argument, for a line that is not of this form.
uint64_t Bits(const Json& digits) {
  uint64_t bits = 0;
  if (!absl::SimpleHexAtoi(digits.get<std::string>(), &bits)) throw std::invalid_argument("a hash");
  return bits;
}

std::optional<double> Number(const Json& line, const char* key) {
  if (!line.contains(key)) return std::nullopt;
  return std::bit_cast<double>(Bits(line[key]));
}

// Reads ["activation", "<hash>"], with part and parts before the hash, and of an input with its source before
// these.
ValueHash ReadValueHash(const Json& entry, bool received) {
  ValueHash hash;
  const auto value = HashedValueNamed(entry.at(0).get<std::string>());
  if (!value.has_value()) throw std::invalid_argument("a value");
  hash.value = *value;
  hash.received = received;
  size_t at = 1;
  if (received) hash.source = entry.at(at++).get<int32_t>();
  if (entry.size() > at + 1) {
    hash.part = entry.at(at++).get<int32_t>();
    hash.parts = entry.at(at++).get<int32_t>();
  }
  hash.hash = Bits(entry.at(at));
  return hash;
}

JobHashes ReadJob(const Json& line) {
  JobHashes job;
  const auto kind = JobKindOfName(line.at("kind").get<std::string>());
  if (!kind.has_value()) throw std::invalid_argument("a kind");
  const int step = line.at("step").get<int32_t>(), stage = line.at("stage").get<int32_t>();
  const int part = line.at(HasMicrobatch(*kind) ? "microbatch" : "member").get<int32_t>();
  job.job = HasMicrobatch(*kind)        ? Job::Compute(step, stage, part, *kind)
            : *kind == JobKind::kReduce ? Job::Reduce(step, stage, part)
                                        : Job::Update(step, stage, part);
  job.rank = line.at("rank").get<int32_t>();
  job.process = line.at("process").get<int32_t>();
  job.loss = Number(line, "loss");
  job.gradient_norm = Number(line, "gradient_norm");
  for (const bool received : {false, true}) {
    const char* const key = received ? "received" : "made";
    if (!line.contains(key)) continue;
    for (const Json& entry : line[key]) job.hashes.push_back(ReadValueHash(entry, received));
  }
  return job;
}

absl::StatusOr<JobHashes> ReadJobOf(const Json& line) {
  try {
    return ReadJob(line);
  } catch (const std::exception&) {
    return absl::InvalidArgumentError("the line is not about a job's hashes");
  }
}

}  // namespace

absl::StatusOr<JobHashes> ParseHashLine(absl::string_view line) {
  return ReadJobOf(Json::parse(line, nullptr, /*allow_exceptions=*/false));
}

absl::StatusOr<HashFile> ParseHashes(std::istream& lines) {
  HashFile file;
  bool has_run = false;
  for (std::string text; std::getline(lines, text);) {
    const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (line.is_object() && line.contains("run")) {
      absl::StatusOr<RunSpec> run = ParseRunSpec(line["run"]);
      if (!run.ok()) return run.status();
      file.run = *std::move(run);
      file.hashes.ForgetFrom(file.run.first_step());
      has_run = true;
      continue;
    }
    absl::StatusOr<JobHashes> job = ReadJobOf(line);
    if (job.ok()) {
      file.hashes.Add(*std::move(job));
    } else {
      file.damaged_lines += !text.empty();
    }
  }
  if (!has_run) return absl::InvalidArgumentError("it names no run");
  return file;
}

absl::StatusOr<HashFile> ReadHashes(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/hashes.jsonl");
  std::ifstream lines(path);
  if (!lines) return absl::NotFoundError(absl::StrCat("there is no ", path));
  absl::StatusOr<HashFile> file = ParseHashes(lines);
  if (!file.ok())
    return absl::Status(file.status().code(), absl::StrCat(path, ": ", file.status().message()));
  return file;
}

}  // namespace weft
