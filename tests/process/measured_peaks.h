// Compares the most bytes that a run measured on each rank with what is predicted from its jobs.
#ifndef WEFT_TESTS_PROCESS_MEASURED_PEAKS_H_
#define WEFT_TESTS_PROCESS_MEASURED_PEAKS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/files/trace_file.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "run/run_memory.h"
#include "run/run_peaks.h"
#include "tests/process/command.h"

namespace weft {

struct ComparedClass {
  const char* name;
  int64_t ClassBytes::*bytes;
};
inline constexpr std::array<ComparedClass, 6> kComparedClasses = {{{"weights", &ClassBytes::weights},
                                                                   {"gradients", &ClassBytes::gradients},
                                                                   {"optimizer", &ClassBytes::optimizer},
                                                                   {"activations", &ClassBytes::activations},
                                                                   {"buffers", &ClassBytes::buffers},
                                                                   {"received", &ClassBytes::received}}};

// Ranks of a class: all, those that measured the most that was predicted, and those whose prediction is one
// value.
struct ComparedRanks {
  int ranks = 0, equal = 0, certain = 0;
};
using ComparedByClass = std::array<ComparedRanks, kComparedClasses.size()>;

// Expects that what each rank had at a time is in the count by which runs are admitted. `summary` is the
// run's.
inline void ExpectCountedBytes(const nlohmann::json& summary, const RunSpec& run,
                               const RunSchedule& schedule) {
  // Memory that a first half of a backward leaves is counted with the forward's activations, and measured as
  // buffers.
  if (schedule.scheme.split_backward) return;
  const RunMemory counted = CountRun(run, schedule);
  for (size_t rank = 0; rank < counted.ranks.size(); ++rank) {
    const int64_t most = summary["most_bytes"][rank],
                  activations = summary["peak_bytes"][rank]["activations"],
                  received = summary["peak_bytes"][rank]["received"];
    const int64_t beside = counted.ranks[rank].beside_activations();
    if (!run.separate_memory) {
      EXPECT_LE(most - activations, beside) << "of rank " << rank;
      continue;
    }
    // Copies for forwards are counted with the forwards.
    EXPECT_LE(most - activations - received, beside - counted.ranks[rank].received) << "of rank " << rank;
  }
}

// Compares the run in the folder `out` with the prediction from its own jobs: every class of every rank is in
// the predicted range, and what a rank had at a time in the count by which runs are admitted. Adds to the
// figures. `memory_of_rank`: as CountPeaks takes it.
inline void ExpectPredictedPeaks(const std::string& out, const RunSpec& run, const RunSchedule& schedule,
                                 ComparedByClass* compared,
                                 const std::optional<MemoryOfRank>& memory_of_rank = std::nullopt) {
  const auto trace = ReadTrace(out + "/trace.json");
  ASSERT_TRUE(trace.ok()) << trace.status();
  std::vector<SimulatedJob> jobs;
  for (const DrawnJob& j : trace->jobs) jobs.push_back({j.job, j.rank, j.start, j.end});
  const std::vector<PeakBytes> peaks = CountPeaks(run, schedule, jobs, memory_of_rank);
  const auto summary = nlohmann::json::parse(ReadWholeFile(out + "/summary.json"));
  ExpectCountedBytes(summary, run, schedule);
  ASSERT_EQ(summary["peak_bytes"].size(), peaks.size());
  for (size_t rank = 0; rank < peaks.size(); ++rank) {
    int64_t sum = 0;
    for (size_t c = 0; c < kComparedClasses.size(); ++c) {
      const auto& [name, bytes] = kComparedClasses[c];
      const int64_t measured = summary["peak_bytes"][rank][name];
      const int64_t least = peaks[rank].least.*bytes, most = peaks[rank].most.*bytes;
      EXPECT_GE(measured, least) << name << " of rank " << rank;
      EXPECT_LE(measured, most) << name << " of rank " << rank;
      sum += measured;
      ComparedRanks& of_class = (*compared)[c];
      ++of_class.ranks;
      of_class.equal += measured == most;
      of_class.certain += least == most;
    }
    EXPECT_LE(summary["most_bytes"][rank], sum) << "of rank " << rank;
    EXPECT_GT(summary["most_bytes"][rank], 0) << "of rank " << rank;
  }
}

}  // namespace weft

#endif  // WEFT_TESTS_PROCESS_MEASURED_PEAKS_H_
