// Draws pictures and tables of the jobs of a simulated or a measured run.
//
// The same jobs can be drawn as an SVG timeline (one row a rank, one box a job), as one line of block
// characters a rank for a terminal, as a Chrome trace for Perfetto, and as the rows of actions of
// torch.distributed.pipelining (`0F0,1F1,0B0`). Forward is light and backward dark, so that they differ in
// grey too; a blank in a rank's row is idle time. Timeline and trace also show why a rank was idle and which
// tensors it received, and how its jobs were
// planned, where that is given.
//
// Requires 0 <= rank < ranks and end >= start for every job, idle time and transfer; order does not matter.
// Pure; the output depends on the arguments only.
#ifndef WEFT_SCHEDULES_DRAWING_DRAWING_H_
#define WEFT_SCHEDULES_DRAWING_DRAWING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "schedules/byte_text.h"
#include "schedules/job.h"

namespace weft {

struct DrawnJob {
  Job job;
  Rank rank = 0;
  double start = 0, end = 0;
  double delay = 0;  // that its rank spent on jobs in hand besides, since its job before; 0 where not known
};

// A time in which a rank did nothing. `cause` as in summary.json: "dependency", "transfer", "limit", ..
struct DrawnIdle {
  Rank rank = 0;
  double start = 0, end = 0;
  std::string cause;
};

// A tensor on its way from one rank to another.
struct DrawnTransfer {
  Rank from = 0, to = 0;
  TensorKind tensor = TensorKind::kActivation;
  Job job;  // job that reads it
  double start = 0, end = 0;
  double bytes = 0;  // 0 where it is not known
};

// The unit of `start` and `end`.
enum class DrawnTime : uint8_t { kUnits, kSeconds };

struct DrawingOptions {
  std::string title;     // "1f1b"
  std::string subtitle;  // "4 stages, 8 micro-batches"
  int ranks = 1;
  int stages = 1;
  // Values that only traces have: the inputs of each stage, as RunTerms::inputs, and the bytes of a
  // micro-batch's activation.
  std::vector<std::vector<int>> inputs = {};
  std::vector<int64_t> activation_bytes = {};
  // Idle times and transfers, in the same time as the jobs. Parts outside the jobs' own time are not drawn.
  std::vector<DrawnIdle> idle = {};
  std::vector<DrawnTransfer> transfers = {};
  DrawnTime time = DrawnTime::kUnits;
  int64_t zero_unix_ns = 0;  // wall clock's time of 0, nanoseconds since 1970; 0 where it is not known
  // The same jobs as they were planned, in the same time as the jobs. Timeline and trace have a row of them
  // above each rank's own.
  std::vector<DrawnJob> planned = {};
};

std::string DrawSvg(absl::Span<const DrawnJob> jobs, const DrawingOptions& options);

// Returns one line a rank, `columns` characters of time, and a legend. `unicode` false uses letters only.
std::string DrawLines(absl::Span<const DrawnJob> jobs, const DrawingOptions& options, int columns,
                      bool unicode = true);

// Returns JSON for chrome://tracing and ui.perfetto.dev: one track a rank with its jobs and idle times (`cat`
// "idle"), one above it with its planned jobs (`cat` "planned"), a second where jobs of a rank overlap, and
// as many as needed for the tensors that it receives
// (`cat` "transfer"); times in microseconds (a unit of a simulation counts as one millisecond).
std::string DrawTrace(absl::Span<const DrawnJob> jobs, const DrawingOptions& options);

// Returns one row a rank: the compute jobs of the first step among `jobs` in the order of their starts, e.g.
// `0F0,0F1,0B0,0B1`. F forward, B backward, I and W its halves: the letters of that format, used nowhere else
// but in labels of boxes. A backward that starts while the forward before it is in flight is its pair.
// actions.h reads it.
std::string DrawActions(absl::Span<const DrawnJob> jobs, const DrawingOptions& options);

// Returns F, B, I or W for a job with a micro-batch, as DrawActions has them.
char ActionLetter(JobKind kind);

// Returns the jobs of the last steps, as many whole steps as have at most `most` jobs together, but at least
// one step.
std::vector<DrawnJob> LastSteps(absl::Span<const DrawnJob> jobs, size_t most);

// The style of a text: width, colour, characters.
struct TextStyle {
  int width = 100;      // columns that a line may have
  bool colour = false;  // escape sequences of a terminal
  bool unicode = true;  // else ASCII only
};

// Returns a table for people: the cells of each column aligned (numbers to the right), two spaces between
// columns. Every row has as many cells as the header. A table that is wider than the style allows is folded:
// columns that do not fit follow below in a further block, which begins with the first column again. A cell
// that does not fit by itself goes on in the next line.
std::string FormatTable(const std::vector<std::string>& header,
                        const std::vector<std::vector<std::string>>& rows, const TextStyle& style = {});

// Returns the text in lines of at most `width` columns, broken at spaces; lines after the first begin with
// `indent` spaces. A word that is longer stands by itself. Line ends in the text are kept.
std::string WrapText(absl::string_view text, int width, int indent = 0);

// Returns the number of characters on a terminal, one column each.
size_t TextColumns(absl::string_view text);

// Returns the text as a heading, where the style has colours.
std::string Heading(absl::string_view text, const TextStyle& style);

// Returns "1.25 s", "340 ms", "12.5 us"; "0 s".
std::string FormatSeconds(double seconds);

}  // namespace weft

#endif  // WEFT_SCHEDULES_DRAWING_DRAWING_H_
