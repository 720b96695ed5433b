#include "client/files/trace_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "run/json_text.h"

namespace weft {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxNumber = 1'000'000;  // largest rank, stage or micro-batch
constexpr int64_t kMaxStep = 1'000'000'000;
constexpr double kMaxTransferBytes = 1e15;

// Returns a whole number from 0 up, or nothing.
std::optional<int> Number(const Json& object, const char* key, int64_t most) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_integer()) return std::nullopt;
  const auto value = found->get<int64_t>();
  if (value < 0 || value > most) return std::nullopt;
  return static_cast<int>(value);
}

bool IsOf(const Json& event, const char* category) {
  const auto found = event.find("cat");
  return found != event.end() && *found == category;
}

std::optional<JobKind> Kind(const Json& event, const char* key) {
  const auto found = event.find(key);
  if (found == event.end() || !found->is_string()) return std::nullopt;
  return JobKindOfName(found->get_ref<const std::string&>());
}

// Start and end of an event, in seconds.
struct EventTime {
  double start = 0, end = 0;
};
std::optional<EventTime> TimeOf(const Json& event) {
  const auto start = event.find("ts"), duration = event.find("dur");
  const bool timed = start != event.end() && start->is_number() && duration != event.end() &&
                     duration->is_number() && duration->get<double>() >= 0;
  if (!timed) return std::nullopt;
  EventTime time;
  time.start = start->get<double>() * 1e-6;
  time.end = time.start + duration->get<double>() * 1e-6;
  return time;
}

std::optional<DrawnJob> JobOfEvent(const Json& event) {
  const auto args = event.find("args");
  if (args == event.end() || !args->is_object()) return std::nullopt;
  const std::optional<JobKind> kind = IsOf(event, "planned") ? Kind(*args, "kind") : Kind(event, "cat");
  if (!kind.has_value()) return std::nullopt;
  const auto rank = Number(*args, "rank", kMaxNumber);
  const auto step = Number(*args, "step", kMaxStep);
  const auto stage = Number(*args, "stage", kMaxNumber);
  const auto microbatch = Number(*args, "microbatch", kMaxNumber);
  const std::optional<EventTime> time = TimeOf(event);
  if (!rank.has_value() || !step.has_value() || !stage.has_value() || !time.has_value()) return std::nullopt;
  if (HasMicrobatch(*kind) && !microbatch.has_value()) return std::nullopt;
  const auto delay = args->find("delay");
  const double delay_us = delay != args->end() && delay->is_number() ? delay->get<double>() : 0;
  return DrawnJob{Job::Compute(*step, *stage, HasMicrobatch(*kind) ? *microbatch : -1, *kind), *rank,
                  time->start, time->end, std::max(0.0, delay_us) * 1e-6};
}

std::optional<DrawnIdle> IdleOfEvent(const Json& event) {
  const auto args = event.find("args");
  if (args == event.end() || !args->is_object()) return std::nullopt;
  const auto rank = Number(*args, "rank", kMaxNumber);
  const auto cause = args->find("cause");
  const std::optional<EventTime> time = TimeOf(event);
  if (!rank.has_value() || !time.has_value() || cause == args->end() || !cause->is_string())
    return std::nullopt;
  return DrawnIdle{*rank, time->start, time->end, cause->get<std::string>()};
}

std::optional<TensorKind> Tensor(const Json& args) {
  const auto found = args.find("tensor");
  for (int k = 0; found != args.end() && k < kTensorKinds; ++k) {
    if (*found == std::string(TensorKindName(static_cast<TensorKind>(k)))) return static_cast<TensorKind>(k);
  }
  return std::nullopt;
}

// Returns the job that reads the tensor; one of stage -1 where the event does not tell it.
Job ReaderOfEvent(const Json& args) {
  const std::optional<JobKind> kind = Kind(args, "for");
  const auto step = Number(args, "step", kMaxStep);
  const auto stage = Number(args, "stage", kMaxNumber);
  const auto microbatch = Number(args, "microbatch", kMaxNumber);
  const bool known = kind.has_value() && step.has_value() && stage.has_value() &&
                     (microbatch.has_value() || !HasMicrobatch(*kind));
  if (!known) return Job::Compute(0, -1, -1, JobKind::kForward);
  return Job::Compute(*step, *stage, HasMicrobatch(*kind) ? *microbatch : -1, *kind);
}

std::optional<DrawnTransfer> TransferOfEvent(const Json& event) {
  const auto args = event.find("args");
  const std::optional<EventTime> time = TimeOf(event);
  if (args == event.end() || !args->is_object() || !time.has_value()) return std::nullopt;
  const auto bytes = args->find("bytes");
  const double size = bytes != args->end() && bytes->is_number() ? bytes->get<double>() : 0;
  DrawnTransfer transfer;
  transfer.start = time->start;
  transfer.end = time->end;
  transfer.bytes = size >= 0 && size <= kMaxTransferBytes ? size : 0;
  transfer.job = ReaderOfEvent(*args);
  const auto from = Number(*args, "from", kMaxNumber), to = Number(*args, "to", kMaxNumber);
  const std::optional<TensorKind> tensor = Tensor(*args);
  if (from.has_value() && to.has_value() && tensor.has_value()) {
    transfer.from = *from;
    transfer.to = *to;
    transfer.tensor = *tensor;
  } else {
    transfer.job.stage = -1;
  }
  return transfer;
}

std::string Title(const Json& event) {
  const auto args = event.find("args");
  if (args == event.end() || !args->is_object()) return "";
  const auto name = args->find("name");
  return name != args->end() && name->is_string() ? name->get<std::string>() : "";
}

// Returns the inputs; a value that is not a list of lists of stages counts as a chain.
std::vector<std::vector<int>> Inputs(const Json& json) {
  std::vector<std::vector<int>> inputs;
  const auto found = json.find("inputs");
  if (found == json.end() || !found->is_array()) return {};
  for (const Json& of_stage : *found) {
    inputs.emplace_back();
    if (!of_stage.is_array()) return {};
    for (const Json& stage : of_stage) {
      const int64_t value = stage.is_number_integer() ? stage.get<int64_t>() : -1;
      if (value < 0 || value > kMaxNumber) return {};
      inputs.back().push_back(static_cast<int>(value));
    }
  }
  return inputs;
}

// Returns the bytes; a value that is not a list of sizes gives none.
std::vector<double> ActivationBytes(const Json& json) {
  std::vector<double> activation_bytes;
  auto found = json.find("activation_bytes");
  if (found == json.end()) found = json.find("left_bytes");  // the key in traces of version 0.1
  if (found == json.end() || !found->is_array()) return {};
  for (const Json& bytes : *found) {
    if (!bytes.is_number_unsigned()) return {};
    activation_bytes.push_back(bytes.get<double>());
  }
  return activation_bytes;
}

}  // namespace

absl::StatusOr<Trace> ReadTrace(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return absl::InvalidArgumentError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
  return ParseTrace(file, path);
}

absl::StatusOr<Trace> ParseTrace(std::istream& text, const std::string& name) {
  Trace trace;
  int64_t events = 0, bad = -1;
  // Each event is taken as soon as it is there and not kept: a trace has some hundred thousands.
  bool too_deep = false;
  const auto take = [&](int depth, Json::parse_event_t what, Json& value) {
    if (depth > kMaxJsonDepth) too_deep = true;
    if (too_deep) return false;
    if (depth != 2 || what != Json::parse_event_t::object_end) return true;
    const std::string phase = value.contains("ph") && value["ph"].is_string() ? value["ph"] : "";
    if (phase == "X" && IsOf(value, "idle")) {
      if (auto idle = IdleOfEvent(value); idle.has_value()) trace.idle.push_back(*std::move(idle));
    } else if (phase == "X" && IsOf(value, "transfer")) {
      if (auto transfer = TransferOfEvent(value); transfer.has_value()) trace.transfers.push_back(*transfer);
    } else if (phase == "X") {
      const std::optional<DrawnJob> job = JobOfEvent(value);
      if (job.has_value()) {
        (IsOf(value, "planned") ? trace.planned : trace.jobs).push_back(*job);
        trace.ranks = std::max(trace.ranks, job->rank + 1);
      } else if (bad < 0) {
        bad = events;
      }
    }
    if (phase == "M" && value.value("name", "") == "process_name") trace.title = Title(value);
    ++events;
    return false;
  };
  const Json json = Json::parse(text, take, /*allow_exceptions=*/false);
  if (too_deep) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is nested more than ", kMaxJsonDepth, " levels deep, so it is not a trace"));
  }
  if (json.is_discarded()) return absl::InvalidArgumentError(absl::StrCat(name, " is not JSON"));
  if (json.is_object()) {
    trace.ranks = std::max(trace.ranks, Number(json, "ranks", kMaxNumber + 1).value_or(0));
    trace.inputs = Inputs(json);
    trace.activation_bytes = ActivationBytes(json);
    trace.measured = json.contains("measured") && json["measured"] == true;
    const auto begin = json.find("begin_unix_ns");
    if (begin != json.end() && begin->is_number_unsigned()) trace.begin_unix_ns = begin->get<int64_t>();
  }
  if (bad >= 0 || trace.jobs.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is not a trace of weft train or weft simulate: ",
                     bad < 0 ? "it has no jobs" : absl::StrCat("event ", bad + 1, " is not a job")));
  }
  return trace;
}

std::array<std::vector<double>, kJobKinds> MeanDurations(const std::vector<DrawnJob>& jobs, int stages) {
  std::array<std::vector<double>, kJobKinds> means;
  std::array<std::vector<int>, kJobKinds> counts;
  for (int k = 0; k < kJobKinds; ++k) {
    means[k].assign(stages, 0);
    counts[k].assign(stages, 0);
  }
  for (const DrawnJob& j : jobs) {
    if (j.job.stage >= stages) continue;
    means[static_cast<int>(j.job.kind)][j.job.stage] += j.end - j.start;
    ++counts[static_cast<int>(j.job.kind)][j.job.stage];
  }
  for (int k = 0; k < kJobKinds; ++k) {
    for (int s = 0; s < stages; ++s) means[k][s] /= std::max(1, counts[k][s]);
  }
  return means;
}

absl::StatusOr<std::vector<DrawnJob>> JobsOfStep(const std::string& path, const Trace& trace, int step) {
  int first = trace.jobs.front().job.step, last = first;
  for (const DrawnJob& j : trace.jobs) {
    first = std::min(first, j.job.step);
    last = std::max(last, j.job.step);
  }
  if (step < 0) step = last;
  std::vector<DrawnJob> jobs;
  std::copy_if(trace.jobs.begin(), trace.jobs.end(), std::back_inserter(jobs),
               [&](const DrawnJob& j) { return j.job.step == step; });
  if (jobs.empty()) {
    return absl::OutOfRangeError(
        absl::StrFormat("%s has no step %d; it has steps %d to %d", path, step, first, last));
  }
  return jobs;
}

}  // namespace weft
