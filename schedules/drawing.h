// Pictures and tables of what ran where and when, of a simulated or a measured run.
//
// The same jobs can be drawn as an SVG timeline (one row a rank, one box a job), as one line of block
// characters a rank for a terminal, as a Chrome trace for Perfetto, and as the rows of actions of
// torch.distributed.pipelining (`0F0,1F1,0B0`). Forward is light and backward dark, so that they differ in
// grey too; what a rank's row leaves blank is idle.
//
// Requires 0 <= rank < ranks and end >= start for every job; order does not matter. Pure; the output depends
// on the arguments only.
#ifndef WEFT_SCHEDULES_DRAWING_H_
#define WEFT_SCHEDULES_DRAWING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "schedules/job.h"

namespace weft {

struct DrawnJob {
  Job job;
  Rank rank = 0;
  double start = 0, end = 0;
};

// What the numbers of `start` and `end` are.
enum class DrawnTime : uint8_t { kUnits, kSeconds };

struct DrawingOptions {
  std::string title;     // "1f1b"
  std::string subtitle;  // "4 stages, 8 micro-batches"
  int ranks = 1;
  int stages = 1;
  // Only traces tell these: of each stage, as Schedule::inputs, and the bytes of a micro-batch's activation.
  std::vector<std::vector<int>> inputs = {};
  std::vector<int64_t> left_bytes = {};
  DrawnTime time = DrawnTime::kUnits;
};

std::string DrawSvg(absl::Span<const DrawnJob> jobs, const DrawingOptions& options);

// One line a rank, `columns` characters of time, and a legend. `unicode` false uses letters only.
std::string DrawLines(absl::Span<const DrawnJob> jobs, const DrawingOptions& options, int columns,
                      bool unicode = true);

// JSON for chrome://tracing and ui.perfetto.dev: one track a rank, and a second where jobs of a rank overlap;
// times in microseconds (a unit of a simulation counts as one millisecond).
std::string DrawTrace(absl::Span<const DrawnJob> jobs, const DrawingOptions& options);

// One row a rank: the compute jobs of the first step among `jobs` in the order of their starts, e.g.
// `0F0,0F1,0B0,0B1`. F forward, B backward, I and W its halves: the letters of that format, used nowhere
// else. A backward that starts while the forward before it is in flight is its pair. actions.h reads it.
std::string DrawActions(absl::Span<const DrawnJob> jobs, const DrawingOptions& options);

// The jobs of the last steps, as many whole steps as have at most `most` jobs together, but at least one
// step.
std::vector<DrawnJob> LastSteps(absl::Span<const DrawnJob> jobs, size_t most);

// A table for people: the cells of each column aligned (numbers to the right), two spaces between columns.
// Every row has as many cells as the header.
std::string FormatTable(const std::vector<std::string>& header,
                        const std::vector<std::vector<std::string>>& rows);

// "1.25 s", "340 ms", "12.5 us"; "0 s".
std::string FormatSeconds(double seconds);
// "0 B", "512 B", "1.5 KiB", "3.2 GiB".
std::string FormatBytes(double bytes);

}  // namespace weft

#endif  // WEFT_SCHEDULES_DRAWING_H_
