// Measures how fast a checkpoint comes to the disk, beside torch::save of the same tensors, and how long a
// rank's thread copies its state before: checkpoint_bench [MIB [ROUNDS [FOLDER]]].
//
// Both write weights and both buffers of AdamW, and return when the bytes are durable: files and folders are
// synced. The checkpoint is complete, with its index; torch::save makes one file. They take turns.
#include <fcntl.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "run/run_schedule.h"
#include "worker/shell/checkpoint/checkpoint.h"
#include "worker/shell/checkpoint/checkpoint_folders.h"
#include "worker/shell/checkpoint/snapshot_memory.h"
#include "worker/shell/compute/training_state.h"
#include "worker/shell/loop/snapshot_writer.h"
#include "worker/shell/memory/streaming_copy.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr int kStep = 40;
constexpr int kBuffers = 3;  // weights, exp_avg, exp_avg_sq
constexpr int kWidth = 1024;
constexpr double kMiB = 1 << 20;

void Check(bool ok, const std::string& what) {
  if (ok) return;
  std::fprintf(stderr, "checkpoint_bench: %s\n", what.c_str());
  std::exit(1);
}

// Two stages of a model whose state has about so many bytes.
RunSpec RunOf(double bytes) {
  const double layer = static_cast<double>(kWidth) * kWidth * sizeof(float) * kBuffers;
  const int layers = std::max(1, static_cast<int>(bytes / layer / 2));
  MlpSpec model;
  model.layers = 2 * layers;
  model.inputs = model.width = kWidth;
  RunSpec run;
  run.name = "bench";
  run.model = model;
  run.layers_of_stage = {layers, layers};
  run.train.steps = 2 * kStep;
  run.train.optimizer = AdamWSpec();
  run.schedule = *ParseScheduleText("gpipe");
  return run;
}

struct State {
  StageLayout layout;
  StateRule rule;
  std::vector<std::vector<float>> flats;  // newest weights, then the buffers
};

std::vector<State> StatesOf(const RunSpec& run) {
  std::vector<State> states;
  uint32_t random = 1;
  for (int stage = 0; stage < run.stages(); ++stage) {
    State state{LayOutStage(run, stage), StateRulesOf(*ScheduledRun::Make(run)).at(stage), {}};
    state.flats.assign(kBuffers, std::vector<float>(state.layout.elements));
    for (std::vector<float>& flat : state.flats) {
      for (float& value : flat) {
        random = random * 1664525u + 1013904223u;
        value = static_cast<float>(random) * 1e-9f;
      }
    }
    states.push_back(std::move(state));
  }
  return states;
}

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

void Sync(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  Check(fd >= 0 && fsync(fd) == 0, absl::StrCat("cannot sync ", path));
  close(fd);
}

// Does a rank's thread's work behind its update: copies the stages, into memory that is kept from one to the
// next.
std::vector<std::shared_ptr<const StageSnapshot>> Copy(const std::vector<State>& states,
                                                       SnapshotMemory& memory) {
  std::vector<std::shared_ptr<const StageSnapshot>> copies;
  for (const State& state : states) {
    const size_t bytes = state.flats.front().size() * sizeof(float);
    const absl::StatusOr<Tensor> block = memory.Take(kBuffers * bytes);
    Check(block.ok(), "no memory for the copy");
    auto copy = std::make_shared<StageSnapshot>();
    copy->layout = state.layout;
    copy->rule = state.rule;
    copy->version = copy->optimizer_steps = kStep;
    char* next = static_cast<char*>(block->data);
    for (const std::vector<float>& flat : state.flats) {
      Tensor tensor;
      StreamingCopy(next, flat.data(), bytes);
      tensor.data = next;
      tensor.bytes = bytes;
      tensor.owner = block->owner;
      copy->flats.push_back(tensor);
      next += bytes;
    }
    copies.push_back(copy);
  }
  return copies;
}

// One process of a run, which writes its stages.
class Process {
 public:
  Process() : writer_([this](const SnapshotWriter::Done& done) { Report(done); }) {}

  void Write(const std::vector<std::shared_ptr<const StageSnapshot>>& stages, const std::string& folder) {
    writer_.Expect(1, kStep, static_cast<int>(stages.size()),
                   [folder](const StageSnapshot& stage) { return WriteSnapshot(folder, stage); });
    for (const std::shared_ptr<const StageSnapshot>& stage : stages) writer_.Write(1, kStep, stage);
  }
  void Await() { done_.Wait(); }

 private:
  void Report(const SnapshotWriter::Done& done) {
    Check(done.failure.empty(), done.failure);
    done_.Notify();
  }

  Notification done_;
  SnapshotWriter writer_;  // last: its threads end first
};

// Writes a checkpoint by `count` processes, which have the stages in equal parts.
double WriteCheckpoint(const RunSpec& run, const std::vector<std::shared_ptr<const StageSnapshot>>& stages,
                       const std::string& output, size_t count) {
  const CheckpointFolders folders(output, *ScheduledRun::Make(run), "bench", 1);
  fs::remove_all(folders.Final(kStep));
  std::vector<Process> processes(count);
  const size_t each = stages.size() / count;
  const auto begin = std::chrono::steady_clock::now();
  for (size_t i = 0; i < count; ++i) {
    const auto first = stages.begin() + static_cast<std::ptrdiff_t>(i * each);
    processes[i].Write({first, first + static_cast<std::ptrdiff_t>(each)}, folders.Partial(kStep));
  }
  for (Process& process : processes) process.Await();
  const absl::Status sealed = folders.Seal(kStep, 2);
  Check(sealed.ok(), std::string(sealed.message()));
  return Seconds(begin);
}

double SaveByTorch(const std::vector<torch::Tensor>& tensors, const std::string& output) {
  const std::string path = absl::StrCat(output, "/torch.pt");
  fs::remove(path);
  const auto begin = std::chrono::steady_clock::now();
  torch::save(tensors, path);
  Sync(path);
  Sync(output);
  return Seconds(begin);
}

// The same parameters, one tensor each, in the same memory.
std::vector<torch::Tensor> TensorsOf(std::vector<State>& states) {
  std::vector<torch::Tensor> tensors;
  for (State& state : states) {
    for (std::vector<float>& flat : state.flats) {
      for (const ParameterSlot& slot : state.layout.slots)
        tensors.push_back(torch::from_blob(flat.data() + slot.offset, slot.parameter.size));
    }
  }
  return tensors;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int Main(int argc, char** argv) {
  int mib = 192, rounds = 9;
  Check(argc < 2 || absl::SimpleAtoi(argv[1], &mib), "the first argument is the size in MiB");
  Check(argc < 3 || (absl::SimpleAtoi(argv[2], &rounds) && rounds > 0), "the second is the number of rounds");
  std::string output =
      absl::StrCat(argc > 3 ? argv[3] : fs::temp_directory_path().string(), "/weft_checkpoint_bench_XXXXXX");
  Check(mkdtemp(output.data()) != nullptr, absl::StrCat("cannot make ", output));
  const RunSpec run = RunOf(mib * kMiB);
  std::vector<State> states = StatesOf(run);
  const std::vector<torch::Tensor> tensors = TensorsOf(states);
  double bytes = 0;
  for (const torch::Tensor& tensor : tensors) bytes += static_cast<double>(tensor.nbytes());
  struct Figures {
    std::vector<double> seconds, ratios;
  };
  Figures one, two;
  std::vector<double> theirs, copies, stalls;
  PlainMemory plain;
  SnapshotMemory memory(plain);
  double first_copy = 0;
  for (int round = -1; round < rounds; ++round) {  // the first is not counted
    const double saved = SaveByTorch(tensors, output);
    const auto begin = std::chrono::steady_clock::now();
    const std::vector<std::shared_ptr<const StageSnapshot>> stages = Copy(states, memory);
    const double copied = Seconds(begin);
    const double by_one = WriteCheckpoint(run, stages, output, 1);
    const double by_two = WriteCheckpoint(run, stages, output, 2);
    if (round < 0) first_copy = copied;
    if (round < 0) continue;
    theirs.push_back(saved);
    one.seconds.push_back(by_one);
    one.ratios.push_back(saved / by_one);
    two.seconds.push_back(by_two);
    two.ratios.push_back(saved / by_two);
    copies.push_back(copied);
    stalls.push_back(copied / by_one);
  }
  fs::remove_all(output);
  std::printf("%.0f MiB, %d rounds in turn, medians\n", bytes / kMiB, rounds);
  std::printf("torch::save          %8.1f ms %8.0f MiB/s\n", 1e3 * Median(theirs),
              bytes / kMiB / Median(theirs));
  for (const auto& [name, figures] :
       {std::pair("by one process  ", one), std::pair("by two processes", two)}) {
    std::printf("checkpoint %s %8.1f ms %8.0f MiB/s, torch::save's time / its %.2f (%.2f to %.2f)\n", name,
                1e3 * Median(figures.seconds), bytes / kMiB / Median(figures.seconds), Median(figures.ratios),
                *std::min_element(figures.ratios.begin(), figures.ratios.end()),
                *std::max_element(figures.ratios.begin(), figures.ratios.end()));
  }
  std::printf("copy before it       %8.1f ms %8.0f MiB/s, into fresh memory %.1f ms\n", 1e3 * Median(copies),
              bytes / kMiB / Median(copies), 1e3 * first_copy);
  std::printf("copy / write by one process  %.3f (%.3f to %.3f)\n", Median(stalls),
              *std::min_element(stalls.begin(), stalls.end()),
              *std::max_element(stalls.begin(), stalls.end()));
  return 0;
}

}  // namespace weft

int main(int argc, char** argv) { return weft::Main(argc, argv); }
