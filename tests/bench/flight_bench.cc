// Measures the flight recorder: a note of the log and of a job, by one thread and by several at once, and the
// dump of a full ring.
#include <benchmark/benchmark.h>
#include <fcntl.h>

#include <cstdint>
#include <cstdlib>

#include "absl/status/status.h"
#include "base/log/flight_dump.h"
#include "base/log/flight_ring.h"
#include "schedules/job.h"
#include "worker/shell/loop/loop_events.h"

namespace weft {
namespace {

FlightRing& Ring() {
  static FlightRing ring;
  return ring;
}

void BM_NoteOfAJob(benchmark::State& state) {
  const LoopEvents events(&Ring());
  const Job job = Job::Compute(1234, 5, 67, JobKind::kBackward);
  int64_t now = 0;
  for (auto _ : state) events.JobEnds(++now, 3, job, absl::OkStatus(), /*launched=*/false);
}

void BM_NoteOfATensor(benchmark::State& state) {
  const LoopEvents events(&Ring());
  TensorKey key;
  key.step = 1234;
  int64_t now = 0;
  for (auto _ : state) events.Arrived(++now, 3, key);
}

void BM_NoteOfALine(benchmark::State& state) {
  int64_t now = 0;
  for (auto _ : state) {
    EventText text("log");
    text.AddWord("level", "info").AddText("msg", "run 12 begins: 4 of its 16 ranks here, 4 processes in all");
    Ring().Note(++now, text);
  }
}

void BM_Dump(benchmark::State& state) {
  const LoopEvents events(&Ring());
  for (size_t i = 0; i < Ring().slots(); ++i)
    events.JobEnds(0, 3, Job::Compute(1234, 5, 67, JobKind::kBackward), absl::OkStatus(), false);
  const int file = open("/dev/null", O_WRONLY | O_CLOEXEC);
  for (auto _ : state) {
    if (WriteFlightDump(file, Ring(), 0, EventText("dump"), "") != 0) std::abort();
  }
}

BENCHMARK(BM_NoteOfAJob)->ThreadRange(1, 2);
BENCHMARK(BM_NoteOfATensor);
BENCHMARK(BM_NoteOfALine);
BENCHMARK(BM_Dump)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace weft

BENCHMARK_MAIN();
