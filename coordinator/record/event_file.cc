#include "coordinator/record/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/durable_file.h"
#include "base/run_files.h"
#include "nlohmann/json.hpp"
#include "run/learning_rate.h"
#include "run/text_model.h"
#include "tensorboard/event.pb.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

std::array<uint32_t, 256> Crc32cTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
    table[i] = crc;
  }
  return table;
}

template <typename Number>
void AppendLittleEndian(Number number, std::string* out) {
  for (size_t i = 0; i < sizeof(number); ++i) out->push_back(static_cast<char>(number >> (8 * i) & 0xff));
}

// TensorFlow does not store a checksum of bytes that hold checksums themselves as it is.
uint32_t Masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

// Returns the number under the key; nothing where it is missing, or is none.
std::optional<double> NumberAt(const Json& line, const char* key) {
  const auto found = line.find(key);
  if (found == line.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

void AddScalar(const std::string& tag, std::optional<double> value, tensorflow::Event* event) {
  if (!value.has_value()) return;
  tensorflow::Summary::Value* scalar = event->mutable_summary()->add_value();
  scalar->set_tag(tag);
  scalar->set_simple_value(static_cast<float>(*value));
}

double SecondsSinceEpoch() { return absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()); }

}  // namespace

uint32_t Crc32c(absl::string_view bytes) {
  static const std::array<uint32_t, 256> kTable = Crc32cTable();
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

std::string TfRecord(absl::string_view data) {
  std::string record;
  AppendLittleEndian(static_cast<uint64_t>(data.size()), &record);
  AppendLittleEndian(Masked(Crc32c(record)), &record);
  record.append(data.data(), data.size());
  AppendLittleEndian(Masked(Crc32c(data)), &record);
  return record;
}

EventTerms EventTermsOf(const RunSpec& spec) {
  EventTerms terms;
  terms.learning_rate = [train = spec.train](int step) { return LearningRateAt(train, step); };
  terms.samples = spec.train.batch;
  terms.tokens = terms.samples * static_cast<double>(TokensOfSample(spec));
  return terms;
}

EventFile::EventFile(const std::string& folder, EventTerms terms)
    : path_(absl::StrCat(folder, "/", kName)), terms_(std::move(terms)) {}

EventFile::~EventFile() {
  if (file_ >= 0) close(file_);
}

std::string EventFile::EventOf(absl::string_view line, double now) const {
  const Json json = Json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  const std::optional<double> step = json.is_object() ? NumberAt(json, "step") : std::nullopt;
  if (!step.has_value()) return "";
  tensorflow::Event event;
  event.set_wall_time(now);
  event.set_step(static_cast<int64_t>(*step));
  AddScalar("loss", NumberAt(json, "loss"), &event);
  AddScalar("gradient_norm", NumberAt(json, "gradient_norm"), &event);
  for (const auto& [key, value] : json.items()) {
    if (absl::string_view name = key; absl::ConsumePrefix(&name, "validation_") && name != "samples")
      AddScalar(absl::StrCat("validation/", name), NumberAt(json, key.c_str()), &event);
  }
  const std::optional<double> seconds = NumberAt(json, "seconds");
  AddScalar("seconds_per_step", seconds, &event);
  if (seconds.has_value() && terms_.learning_rate)
    AddScalar("learning_rate", terms_.learning_rate(static_cast<int>(*step)), &event);
  if (seconds.has_value() && *seconds > 0) {
    if (terms_.samples > 0) AddScalar("samples_per_second", terms_.samples / *seconds, &event);
    if (terms_.tokens > 0) AddScalar("tokens_per_second", terms_.tokens / *seconds, &event);
  }
  return event.has_summary() ? TfRecord(event.SerializeAsString()) : "";
}

absl::Status EventFile::Fail(int reason) {
  if (file_ >= 0) close(std::exchange(file_, -1));
  return absl::UnavailableError(absl::StrCat("cannot write ", path_, ": ", RunFileError(reason)));
}

absl::Status EventFile::Begin(absl::string_view lines) {
  if (file_ >= 0) close(std::exchange(file_, -1));
  const double now = SecondsSinceEpoch();
  tensorflow::Event version;
  version.set_wall_time(now);
  version.set_file_version("brain.Event:2");
  std::string records = TfRecord(version.SerializeAsString());
  for (const absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipEmpty()))
    absl::StrAppend(&records, EventOf(line, now));
  if (absl::Status written = WriteWholeFile(path_, records); !written.ok()) return written;
  file_ = OpenRunFile(path_, O_WRONLY | O_APPEND);
  return file_ >= 0 ? absl::OkStatus() : Fail(errno);
}

absl::Status EventFile::Append(absl::string_view line) {
  if (file_ < 0) return absl::OkStatus();
  std::string record = EventOf(line, SecondsSinceEpoch());
  while (!record.empty()) {
    const ssize_t n = write(file_, record.data(), record.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Fail(n < 0 ? errno : ENOSPC);
    record.erase(0, static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

}  // namespace weft
