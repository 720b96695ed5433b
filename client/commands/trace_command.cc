#include "client/commands/trace_command.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/durable_file.h"
#include "client/commands/found_trace.h"
#include "client/files/trace_file.h"
#include "client/trace/otlp_trace.h"
#include "nlohmann/json.hpp"
#include "run/run_schedule.h"

namespace weft {
namespace {

using OrderedJson = nlohmann::ordered_json;
namespace fs = std::filesystem;

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

// Returns the graph of the run whose trace it is.
absl::StatusOr<Graph> GraphOf(const FoundTrace& found) {
  if (!found.run.ok()) return found.run.status();
  auto schedule = ScheduleOf(*found.run);
  if (!schedule.ok()) return schedule.status();
  return Graph(*std::move(schedule), found.run->end_step(), found.run->first_step());
}

// Returns the start by the wall clock: as the trace has it, else from the time of the file.
int64_t BeginOf(const FoundTrace& found, double seconds) {
  if (found.trace->begin_unix_ns > 0) return found.trace->begin_unix_ns;
  std::error_code error;
  const auto written = std::chrono::file_clock::to_sys(fs::last_write_time(found.name, error));
  const int64_t end =
      error ? WallNanos()
            : std::chrono::duration_cast<std::chrono::nanoseconds>(written.time_since_epoch()).count();
  return end - static_cast<int64_t>(seconds * 1e9);
}

absl::StatusOr<OtlpCounts> WriteSpans(const FoundTrace& found, const Graph* graph, double seconds,
                                      const std::string& path) {
  OtlpInput input;
  input.title = found.trace->title.empty() ? "weft" : found.trace->title;
  input.begin_unix_ns = BeginOf(found, seconds);
  std::error_code ignored;
  const std::string place =
      found.folder.empty() ? found.name : fs::weakly_canonical(found.name, ignored).string();
  input.key = absl::StrCat(input.title, "\n", place, "\n", input.begin_unix_ns);
  input.jobs = found.trace->jobs;
  std::copy_if(found.trace->transfers.begin(), found.trace->transfers.end(),
               std::back_inserter(input.transfers), [](const DrawnTransfer& t) { return t.job.stage >= 0; });
  input.graph = graph;
  std::ofstream file(path, std::ios::binary);
  auto counts = WriteOtlp(input, [&](absl::string_view piece) {
    file.write(piece.data(), static_cast<std::streamsize>(piece.size()));
  });
  file.close();
  if (!counts.ok()) {
    if (fs::is_regular_file(fs::symlink_status(path, ignored))) fs::remove(path, ignored);
    return absl::InvalidArgumentError(
        absl::StrCat(found.name, " is not of the run in ", found.folder, ": ", counts.status().message()));
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
  if (json.contains("perfetto"))
    absl::StrAppend(&out, json["perfetto"].get<std::string>(), " is for https://ui.perfetto.dev\n");
  if (!json.contains("otlp")) return out;
  return absl::StrCat(out, json["otlp"]["spans"].dump(), " spans with ", json["otlp"]["links"].dump(),
                      " links in ", json["otlp"]["file"].get<std::string>(), "\n");
}

// Writes the trace itself. Unavailable where it cannot; InvalidArgument where the file is no regular one.
absl::Status Save(const FoundTrace& found, const std::string& path) {
  if (!found.text.empty()) {
    const absl::StatusOr<std::string> file = ReplaceableFile(path);
    return file.ok() ? WriteWholeFile(*file, found.text) : file.status();
  }
  std::error_code error;
  fs::copy_file(found.name, path, fs::copy_options::overwrite_existing, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", error.message()));
}

OrderedJson Contents(const FoundTrace& found) {
  const Trace& trace = *found.trace;
  const TraceSpan span = SpanOf(trace);
  return {{"title", trace.title},
          {"file", found.name},
          {"measured", trace.measured},
          {"begin_unix_ns", trace.begin_unix_ns},
          {"first_step", span.first_step},
          {"last_step", span.last_step},
          {"ranks", trace.ranks},
          {"jobs", trace.jobs.size()},
          {"transfers", trace.transfers.size()},
          {"seconds", span.seconds}};
}

ExitCode Show(const TraceOptions& options, const FoundTrace& found) {
  if (!found.trace.ok()) return FailToRead(found.trace.status());
  OrderedJson json = Contents(found);
  if (!options.perfetto.empty()) {
    if (const absl::Status saved = Save(found, options.perfetto); !saved.ok()) {
      return Fail(absl::IsInvalidArgument(saved) ? kExitBadConfiguration : kExitFailed, saved.message());
    }
    json["perfetto"] = options.perfetto;
  }
  if (!options.otlp.empty()) {
    const absl::StatusOr<Graph> graph = GraphOf(found);
    if (!graph.ok()) PrintMessage(absl::StrCat("note: ", graph.status().message()));
    const auto counts = WriteSpans(found, graph.ok() ? &*graph : nullptr, json["seconds"], options.otlp);
    if (!counts.ok()) {
      return Fail(absl::IsUnavailable(counts.status()) ? kExitFailed : kExitBadConfiguration,
                  counts.status().message());
    }
    json["otlp"] = SpansJson(options.otlp, *counts);
  }
  return options.coordinator.json ? PrintJson(json) : PrintData(Text(json));
}

}  // namespace

ExitCode RunTraceCommand(const TraceOptions& options) {
  const std::optional<uint64_t> number = RunNumber(options.run);
  if (!number.has_value()) return Show(options, ReadFoundTrace(options.run, "so the spans have no links"));
  auto client = ConnectTo(options.coordinator);
  if (!client.ok()) return FailToConnect(client.status());
  const absl::StatusOr<FoundTrace> found = FetchTrace(**client, *number);
  if (!found.ok()) return FailToFetch(**client, *number, found.status());
  return Show(options, *found);
}

}  // namespace weft
