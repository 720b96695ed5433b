#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "schedules/drawing/drawing.h"

namespace weft {
namespace {

constexpr std::array<const char*, kJobKinds> kBlocks = {"\u2591", "\u2588", "\u2593",
                                                        "\u2592", "\u2248", "\u25c6"};
constexpr std::array<const char*, kJobKinds> kLetters = {"f", "B", "I", "w", "r", "u"};

std::vector<DrawnJob> ByStart(absl::Span<const DrawnJob> jobs) {
  std::vector<DrawnJob> sorted(jobs.begin(), jobs.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const DrawnJob& a, const DrawnJob& b) { return a.start < b.start; });
  return sorted;
}

// Returns true if the jobs overlap by more than the error of rounded times.
bool Overlap(const DrawnJob& first, const DrawnJob& second) {
  return first.end - second.start > 1e-3 * std::min(first.end - first.start, second.end - second.start);
}

}  // namespace

std::string DrawLines(absl::Span<const DrawnJob> jobs, const DrawingOptions& options, int columns,
                      bool unicode) {
  double begin = 0, end = 0;
  if (!jobs.empty()) begin = end = jobs[0].start;
  std::array<bool, kJobKinds> used{};
  for (const DrawnJob& j : jobs) {
    begin = std::min(begin, j.start);
    end = std::max(end, j.end);
    used[static_cast<int>(j.job.kind)] |= j.end > j.start;
  }
  if (end <= begin) end = begin + 1;
  // Time of each kind in each cell; the kind with most of a cell is shown if it has more of it than idle.
  const double cell = (end - begin) / columns;
  std::vector<std::array<double, kJobKinds>> shares(static_cast<size_t>(options.ranks) * columns);
  for (const DrawnJob& j : jobs) {
    const int first = std::clamp(static_cast<int>((j.start - begin) / cell), 0, columns - 1);
    const int last = std::clamp(static_cast<int>((j.end - begin) / cell), 0, columns - 1);
    for (int c = first; c <= last; ++c) {
      const double from = std::max(j.start, begin + c * cell), to = std::min(j.end, begin + (c + 1) * cell);
      shares[static_cast<size_t>(j.rank) * columns + c][static_cast<int>(j.job.kind)] +=
          std::max(0.0, to - from);
    }
  }
  const auto& marks = unicode ? kBlocks : kLetters;
  const char* idle = unicode ? "\u00b7" : ".";
  const size_t label = absl::StrCat("rank ", options.ranks - 1).size();
  std::string out;
  for (Rank rank = 0; rank < options.ranks; ++rank) {
    absl::StrAppend(&out, absl::StrFormat("%-*s ", label, absl::StrCat("rank ", rank)));
    for (int c = 0; c < columns; ++c) {
      const auto& share = shares[static_cast<size_t>(rank) * columns + c];
      double busy = 0;
      for (const double s : share) busy += s;
      const auto most = std::max_element(share.begin(), share.end()) - share.begin();
      absl::StrAppend(&out, busy >= 0.5 * cell * (1 - 1e-9) ? marks[most] : idle);
    }
    absl::StrAppend(&out, "\n");
  }
  absl::StrAppend(&out, std::string(label + 1, ' '));
  for (int k = 0; k < kJobKinds; ++k) {
    if (used[k]) absl::StrAppend(&out, marks[k], " ", JobKindName(static_cast<JobKind>(k)), "  ");
  }
  const std::string span = options.time == DrawnTime::kSeconds
                               ? FormatSeconds(end - begin)
                               : absl::StrFormat("%g time units", end - begin);
  absl::StrAppend(&out, idle, " idle  (", span, " across)\n");
  return out;
}

namespace {

// Returns true, by index, for jobs that go to the rank's second track: those that begin while its first is
// taken. Jobs of a rank that overlap are an overlapped pair; boxes of one track must not.
std::vector<bool> OnSecondTrack(absl::Span<const DrawnJob> jobs) {
  double begin = 0, end = 0;
  std::vector<size_t> by_start(jobs.size());
  for (size_t i = 0; i < jobs.size(); ++i) {
    by_start[i] = i;
    begin = i == 0 ? jobs[i].start : std::min(begin, jobs[i].start);
    end = i == 0 ? jobs[i].end : std::max(end, jobs[i].end);
  }
  std::stable_sort(by_start.begin(), by_start.end(),
                   [&](size_t a, size_t b) { return jobs[a].start < jobs[b].start; });
  const double hair = (end - begin) * 1e-9;
  std::map<Rank, double> taken;  // time until which the first track is taken
  std::vector<bool> second(jobs.size(), false);
  for (const size_t i : by_start) {
    double& until = taken.try_emplace(jobs[i].rank, begin).first->second;
    second[i] = jobs[i].start + hair < std::min(until, jobs[i].end);
    if (!second[i]) until = std::max(until, jobs[i].end);
  }
  return second;
}

void AddTrack(int track, int place, const std::string& name, std::string* out) {
  absl::StrAppend(out, ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":0,\"tid\":", track,
                  ",\"args\":{\"name\":\"", name, "\"}}");
  absl::StrAppend(out, ",\n{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":0,\"tid\":", track,
                  ",\"args\":{\"sort_index\":", place, "}}");
}

// The order of a rank's tracks: what was planned, its jobs, what overlaps them and what it receives.
struct TrackPlaces {
  bool planned;
  int Planned(Rank rank) const { return 3 * rank; }
  int Jobs(Rank rank) const { return planned ? 3 * rank + 1 : 2 * rank; }
  int Beside(Rank rank) const { return Jobs(rank) + 1; }
};

// Adds the planned jobs, each rank's on a track of its own. `track` is that of the first rank.
void AddPlanned(const DrawingOptions& options, double begin, double to_us, int track, std::string* out) {
  if (options.planned.empty()) return;
  const TrackPlaces places{true};
  for (Rank rank = 0; rank < options.ranks; ++rank)
    AddTrack(track + rank, places.Planned(rank), absl::StrCat("rank ", rank, ", planned"), out);
  for (const DrawnJob& j : options.planned) {
    const absl::string_view kind = JobKindName(j.job.kind);
    absl::StrAppend(
        out, ",\n{\"ph\":\"X\",\"name\":\"", kind, " s", j.job.stage,
        HasMicrobatch(j.job.kind) ? absl::StrCat(" b", j.job.microbatch) : "",
        "\",\"cat\":\"planned\",\"pid\":0,\"tid\":", track + j.rank,
        absl::StrFormat(",\"ts\":%.3f,\"dur\":%.3f", (j.start - begin) * to_us, (j.end - j.start) * to_us),
        ",\"args\":{\"kind\":\"", kind, "\",\"step\":", j.job.step, ",\"stage\":", j.job.stage);
    if (HasMicrobatch(j.job.kind)) absl::StrAppend(out, ",\"microbatch\":", j.job.microbatch);
    absl::StrAppend(out, ",\"rank\":", j.rank, "}}");
  }
}

// Adds idle times on their rank's first track, where no job runs then.
void AddIdle(const DrawingOptions& options, double begin, double to_us, std::string* out) {
  for (const DrawnIdle& idle : options.idle) {
    DrawnIdle i = idle;
    i.start = std::max(i.start, begin);
    if (i.end <= i.start) continue;
    absl::StrAppend(
        out, ",\n{\"ph\":\"X\",\"name\":\"idle: ", i.cause, "\",\"cat\":\"idle\",\"pid\":0,\"tid\":", i.rank,
        absl::StrFormat(",\"ts\":%.3f,\"dur\":%.3f", (i.start - begin) * to_us, (i.end - i.start) * to_us),
        ",\"args\":{\"cause\":\"", i.cause, "\",\"rank\":", i.rank, "}}");
  }
}

// Adds the tensors that a rank receives, on tracks of their own: as many as there are at a time. `track` is
// the first that is free.
void AddTransfers(const DrawingOptions& options, double begin, double to_us, int track, std::string* out) {
  std::vector<DrawnTransfer> transfers;
  for (const DrawnTransfer& t : options.transfers) {
    if (t.tensor != TensorKind::kOrder) transfers.push_back(t);
  }
  std::stable_sort(transfers.begin(), transfers.end(),
                   [](const DrawnTransfer& a, const DrawnTransfer& b) { return a.start < b.start; });
  struct Lane {
    int track;
    double until;
  };
  const TrackPlaces places{!options.planned.empty()};
  std::map<Rank, std::vector<Lane>> lanes;
  for (const DrawnTransfer& t : transfers) {
    std::vector<Lane>& own = lanes[t.to];
    auto lane = std::find_if(own.begin(), own.end(), [&](const Lane& l) { return l.until <= t.start; });
    if (lane == own.end()) {
      const std::string number = own.empty() ? "" : absl::StrCat(" ", own.size() + 1);
      AddTrack(track, places.Beside(t.to), absl::StrCat("rank ", t.to, ", receives", number), out);
      own.push_back({track++, t.end});
      lane = own.end() - 1;
    }
    lane->until = t.end;
    const absl::string_view tensor = TensorKindName(t.tensor);
    absl::StrAppend(
        out, ",\n{\"ph\":\"X\",\"name\":\"", tensor, " s", t.job.stage,
        HasMicrobatch(t.job.kind) ? absl::StrCat(" b", t.job.microbatch) : "", " from rank ", t.from,
        "\",\"cat\":\"transfer\",\"pid\":0,\"tid\":", lane->track,
        absl::StrFormat(",\"ts\":%.3f,\"dur\":%.3f", (t.start - begin) * to_us, (t.end - t.start) * to_us),
        ",\"args\":{\"tensor\":\"", tensor, "\",\"from\":", t.from, ",\"to\":", t.to,
        ",\"step\":", t.job.step, ",\"stage\":", t.job.stage);
    if (HasMicrobatch(t.job.kind)) absl::StrAppend(out, ",\"microbatch\":", t.job.microbatch);
    absl::StrAppend(out, ",\"for\":\"", JobKindName(t.job.kind), "\"");
    if (t.bytes > 0) absl::StrAppend(out, ",\"bytes\":", std::llround(t.bytes));
    absl::StrAppend(out, "}}");
  }
}

}  // namespace

std::string DrawTrace(absl::Span<const DrawnJob> jobs, const DrawingOptions& options) {
  // Times are in seconds; a unit of a simulation counts as a millisecond.
  const double to_us = options.time == DrawnTime::kSeconds ? 1e6 : 1e3;
  double begin = jobs.empty() ? 0 : jobs[0].start;
  for (const DrawnJob& j : jobs) begin = std::min(begin, j.start);
  for (const DrawnJob& j : options.planned) begin = std::min(begin, j.start);
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  absl::StrAppend(
      &out, "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":0,\"args\":{\"name\":",
      nlohmann::json(options.title).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), "}}");
  const std::vector<bool> second = OnSecondTrack(jobs);
  const TrackPlaces places{!options.planned.empty()};
  std::set<Rank> has_second;
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (second[i]) has_second.insert(jobs[i].rank);
  }
  for (Rank rank = 0; rank < options.ranks; ++rank) {
    AddTrack(rank, places.Jobs(rank), absl::StrCat("rank ", rank), &out);
    if (has_second.count(rank) == 0) continue;
    AddTrack(options.ranks + rank, places.Beside(rank), absl::StrCat("rank ", rank, ", second"), &out);
  }
  for (size_t i = 0; i < jobs.size(); ++i) {
    const DrawnJob& j = jobs[i];
    const absl::string_view kind = JobKindName(j.job.kind);
    absl::StrAppend(
        &out, ",\n{\"ph\":\"X\",\"name\":\"", kind, " s", j.job.stage,
        HasMicrobatch(j.job.kind) ? absl::StrCat(" b", j.job.microbatch) : "", "\",\"cat\":\"", kind,
        "\",\"pid\":0,\"tid\":", second[i] ? options.ranks + j.rank : j.rank,
        absl::StrFormat(",\"ts\":%.3f,\"dur\":%.3f", (j.start - begin) * to_us, (j.end - j.start) * to_us),
        ",\"args\":{\"step\":", j.job.step, ",\"stage\":", j.job.stage);
    if (HasMicrobatch(j.job.kind)) absl::StrAppend(&out, ",\"microbatch\":", j.job.microbatch);
    if (j.delay > 0) absl::StrAppendFormat(&out, ",\"delay\":%.3f", j.delay * to_us);
    absl::StrAppend(&out, ",\"rank\":", j.rank, "}}");
  }
  AddIdle(options, begin, to_us, &out);
  AddPlanned(options, begin, to_us, 2 * options.ranks, &out);
  AddTransfers(options, begin, to_us, (places.planned ? 3 : 2) * options.ranks, &out);
  absl::StrAppend(&out, "\n],\"ranks\":", options.ranks);
  if (!options.inputs.empty()) absl::StrAppend(&out, ",\"inputs\":", nlohmann::json(options.inputs).dump());
  if (options.time == DrawnTime::kSeconds) absl::StrAppend(&out, ",\"measured\":true");
  if (options.zero_unix_ns > 0) {
    absl::StrAppend(&out, ",\"begin_unix_ns\":",
                    options.zero_unix_ns + static_cast<int64_t>(std::llround(begin * to_us * 1e3)));
  }
  if (!options.activation_bytes.empty()) {
    absl::StrAppend(&out, ",\"activation_bytes\":", nlohmann::json(options.activation_bytes).dump());
  }
  return out + "}\n";
}

char ActionLetter(JobKind kind) {
  constexpr std::array<char, kJobKinds> kLetter = {'F', 'B', 'I', 'W', 'R', 'U'};
  return kLetter[static_cast<int>(kind)];
}

std::string DrawActions(absl::Span<const DrawnJob> jobs, const DrawingOptions& options) {
  int32_t first = std::numeric_limits<int32_t>::max();
  for (const DrawnJob& j : jobs) first = std::min(first, j.job.step);
  struct Row {
    std::vector<std::string> cells;
    const DrawnJob* forward = nullptr;  // the job of the last cell, if it is a forward
  };
  std::vector<Row> rows(options.ranks);
  const std::vector<DrawnJob> sorted = ByStart(jobs);
  for (const DrawnJob& j : sorted) {
    if (j.job.step != first || !HasMicrobatch(j.job.kind)) continue;
    Row& row = rows[j.rank];
    const std::string action =
        absl::StrCat(j.job.stage, std::string(1, ActionLetter(j.job.kind)), j.job.microbatch);
    const bool forward = j.job.kind == JobKind::kForward;
    const bool second = !forward && j.job.kind != JobKind::kBackwardWeight && row.forward != nullptr;
    if (second && Overlap(*row.forward, j)) {
      row.cells.back() = absl::StrCat("(", row.cells.back(), ";", action, ")OVERLAP_F_B");
    } else {
      row.cells.push_back(action);
    }
    row.forward = forward ? &j : nullptr;
  }
  std::string out;
  // A line without any cell would be no row.
  for (const Row& row : rows) {
    absl::StrAppend(&out, row.cells.empty() ? "," : absl::StrJoin(row.cells, ","), "\n");
  }
  return out;
}

std::vector<DrawnJob> LastSteps(absl::Span<const DrawnJob> jobs, size_t most) {
  std::map<int32_t, size_t> jobs_of_step;
  for (const DrawnJob& j : jobs) ++jobs_of_step[j.job.step];
  if (jobs_of_step.empty()) return {};
  int32_t first = jobs_of_step.rbegin()->first;
  size_t sum = 0;
  for (auto step = jobs_of_step.rbegin(); step != jobs_of_step.rend(); ++step) {
    sum += step->second;
    if (sum > most) break;
    first = step->first;
  }
  std::vector<DrawnJob> kept;
  for (const DrawnJob& j : jobs) {
    if (j.job.step >= first) kept.push_back(j);
  }
  return kept;
}

std::string FormatSeconds(double seconds) {
  const double size = std::abs(seconds);
  if (size == 0) return "0 s";
  // The text has three digits, and no "1e+03": a value that would round up to a thousand belongs to the next
  // unit.
  if (size < 0.9995e-3) return absl::StrFormat("%.3g us", seconds * 1e6);
  if (size < 0.9995) return absl::StrFormat("%.3g ms", seconds * 1e3);
  if (size < 120) return absl::StrFormat("%.3g s", seconds);
  const int64_t whole = std::llround(size);
  if (whole < 3600) return absl::StrFormat("%d min %02d s", whole / 60, whole % 60);
  return absl::StrFormat("%d h %02d min", whole / 3600, whole / 60 % 60);
}

}  // namespace weft
