#include "client/commands/trace_command.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/files/run_folder.h"
#include "client/files/trace_file.h"
#include "client/trace/otlp_trace.h"
#include "nlohmann/json.hpp"
#include "run/run_schedule.h"

namespace weft {
namespace {

using OrderedJson = nlohmann::ordered_json;
namespace fs = std::filesystem;

// A trace and the folder in which it lies, where that is one of a run.
struct FoundTrace {
  std::string file, folder;
  Trace trace;
};

// Returns the output folder of a coordinator's run. FailedPrecondition while the run has not finished.
absl::StatusOr<std::string> FolderOf(const CoordinatorOptions& options, uint64_t number) {
  auto client = ConnectTo(options);
  if (!client.ok()) return client.status();
  const auto run = (*client)->Get(number);
  if (!run.ok()) return run.status();
  if (run->state != RunState::kFinished) {
    return absl::FailedPreconditionError(absl::StrCat("run ", number, " is ", RunStateName(run->state),
                                                      "; a run leaves its trace when it has finished"));
  }
  if (run->output.empty() || !fs::exists(run->output)) {
    return absl::FailedPreconditionError(
        absl::StrCat("run ", number, " left its trace in ", run->output.empty() ? "no folder" : run->output,
                     ", which this machine does not see; give its trace.json there"));
  }
  return run->output;
}

absl::StatusOr<FoundTrace> ReadFound(const std::string& place) {
  FoundTrace found;
  const bool folder = fs::is_directory(place);
  found.file = folder ? (fs::path(place) / "trace.json").string() : place;
  found.folder = (folder ? fs::path(place) : fs::path("." / fs::path(place)).parent_path()).string();
  auto trace = ReadTrace(found.file);
  if (!trace.ok()) return trace.status();
  found.trace = *std::move(trace);
  return found;
}

struct TraceSpan {
  int first_step, last_step;
  double seconds;
};
TraceSpan SpanOf(const Trace& trace) {
  TraceSpan span = {trace.jobs.front().job.step, trace.jobs.front().job.step, 0};
  for (const DrawnJob& j : trace.jobs) {
    span.first_step = std::min(span.first_step, j.job.step);
    span.last_step = std::max(span.last_step, j.job.step);
    span.seconds = std::max(span.seconds, j.end);
  }
  return span;
}

// Returns the graph of the run whose folder holds the trace.
absl::StatusOr<Graph> GraphOf(const FoundTrace& found) {
  const auto run = ReadRunOfFolder(found.folder, "so the spans have no links");
  if (!run.ok()) return run.status();
  auto schedule = ScheduleOf(*run);
  if (!schedule.ok()) return schedule.status();
  return Graph(*std::move(schedule), run->end_step(), run->first_step());
}

// Returns the begin by the wall clock: as the trace has it, else from the time of the file.
int64_t BeginOf(const FoundTrace& found, double seconds) {
  if (found.trace.begin_unix_ns > 0) return found.trace.begin_unix_ns;
  std::error_code error;
  const auto written = std::chrono::file_clock::to_sys(fs::last_write_time(found.file, error));
  const int64_t end =
      error ? WallNanos()
            : std::chrono::duration_cast<std::chrono::nanoseconds>(written.time_since_epoch()).count();
  return end - static_cast<int64_t>(seconds * 1e9);
}

absl::StatusOr<OtlpCounts> WriteSpans(const FoundTrace& found, const Graph* graph, double seconds,
                                      const std::string& path) {
  OtlpInput input;
  input.title = found.trace.title.empty() ? "weft" : found.trace.title;
  input.begin_unix_ns = BeginOf(found, seconds);
  std::error_code ignored;
  input.key = absl::StrCat(input.title, "\n", fs::weakly_canonical(found.file, ignored).string(), "\n",
                           input.begin_unix_ns);
  input.jobs = found.trace.jobs;
  std::copy_if(found.trace.transfers.begin(), found.trace.transfers.end(),
               std::back_inserter(input.transfers), [](const DrawnTransfer& t) { return t.job.stage >= 0; });
  input.graph = graph;
  std::ofstream file(path, std::ios::binary);
  const auto counts = WriteOtlp(input, [&](absl::string_view piece) {
    file.write(piece.data(), static_cast<std::streamsize>(piece.size()));
  });
  file.close();
  if (!counts.ok()) {
    fs::remove(path, ignored);
    return absl::InvalidArgumentError(
        absl::StrCat(found.file, " is not of the run in ", found.folder, ": ", counts.status().message()));
  }
  if (!file) return absl::UnavailableError(absl::StrCat("cannot write ", path));
  return counts;
}

OrderedJson SpansJson(const std::string& file, const OtlpCounts& counts) {
  return {{"file", file},
          {"spans", 1 + counts.steps + counts.jobs + counts.transfers},
          {"steps", counts.steps},
          {"jobs", counts.jobs},
          {"transfers", counts.transfers},
          {"links", counts.links}};
}

std::string Text(const OrderedJson& json) {
  std::string out = absl::StrCat(json["title"].get<std::string>(), ": steps ", json["first_step"].dump(),
                                 " to ", json["last_step"].dump(), " on ", json["ranks"].dump(), " ranks\n");
  absl::StrAppend(&out, json["jobs"].dump(), " jobs and ", json["transfers"].dump(), " transfers in ",
                  json["measured"] == true ? FormatSeconds(json["seconds"])
                                           : absl::StrCat(json["seconds"].dump(), " ms of a virtual clock"),
                  "; ", json["file"].get<std::string>(), "\n");
  if (!json.contains("otlp")) return out;
  return absl::StrCat(out, json["otlp"]["spans"].dump(), " spans with ", json["otlp"]["links"].dump(),
                      " links in ", json["otlp"]["file"].get<std::string>(), "\n");
}

}  // namespace

ExitCode RunTrace(const TraceOptions& options) {
  std::string place = options.run;
  uint64_t number = 0;
  if (absl::SimpleAtoi(place, &number) && !fs::exists(place)) {
    const auto folder = FolderOf(options.coordinator, number);
    if (absl::IsFailedPrecondition(folder.status()))
      return Fail(kExitBadConfiguration, folder.status().message());
    if (!folder.ok()) return Fail(ExitCodeOf(folder.status()), folder.status().message());
    place = *folder;
  }
  const auto found = ReadFound(place);
  if (!found.ok()) return Fail(kExitBadConfiguration, found.status().message());
  const TraceSpan span = SpanOf(found->trace);
  OrderedJson json = {{"title", found->trace.title},
                      {"file", found->file},
                      {"measured", found->trace.measured},
                      {"begin_unix_ns", found->trace.begin_unix_ns},
                      {"first_step", span.first_step},
                      {"last_step", span.last_step},
                      {"ranks", found->trace.ranks},
                      {"jobs", found->trace.jobs.size()},
                      {"transfers", found->trace.transfers.size()},
                      {"seconds", span.seconds}};
  if (!options.otlp.empty()) {
    const absl::StatusOr<Graph> graph = GraphOf(*found);
    if (!graph.ok()) PrintMessage(absl::StrCat("note: ", graph.status().message()));
    const auto counts = WriteSpans(*found, graph.ok() ? &*graph : nullptr, span.seconds, options.otlp);
    if (!counts.ok()) {
      return Fail(absl::IsUnavailable(counts.status()) ? kExitFailed : kExitBadConfiguration,
                  counts.status().message());
    }
    json["otlp"] = SpansJson(options.otlp, *counts);
  }
  return PrintData(options.coordinator.json ? json.dump(2) + "\n" : Text(json));
}

}  // namespace weft
