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
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/threads.h"
#include "run/run_schedule.h"
#include "worker/shell/checkpoint/checkpoint.h"
#include "worker/shell/checkpoint/checkpoint_folders.h"
#include "worker/shell/compute/segment_allocator.h"
#include "worker/shell/compute/training_state.h"

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

void WriteStages(const State& state, const std::string& folder) {
  std::vector<SlotPointers> slots;
  for (const std::vector<float>& flat : state.flats) slots.push_back(SlotsOf(state.layout, flat.data()));
  const SlotPointers newest = slots.front();
  slots.erase(slots.begin());
  const absl::Status written =
      WriteTrainingState(folder, state.layout, state.rule, kStep, kStep, newest, slots);
  Check(written.ok(), std::string(written.message()));
}

// By one process of a run, or by one for each stage, which write at the same time.
double WriteCheckpoint(const RunSpec& run, const std::vector<State>& states, const std::string& output,
                       bool one) {
  const CheckpointFolders folders(output, *ScheduledRun::Make(run), "bench", 1);
  fs::remove_all(folders.Final(kStep));
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> writers;
  for (const State& state : states) {
    writers.push_back(StartThread([&] { WriteStages(state, folders.Partial(kStep)); }));
    if (one) writers.back().join();
  }
  for (std::thread& writer : writers) {
    if (writer.joinable()) writer.join();
  }
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

// What a rank's thread does behind its update.
double Copy(const std::vector<State>& states) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<void*> copies;
  for (const State& state : states) {
    for (const std::vector<float>& flat : state.flats) {
      copies.push_back(SegmentAllocator::AllocateOutside(flat.size() * sizeof(float)));
      Check(copies.back() != nullptr, "no memory for the copy");
      std::memcpy(copies.back(), flat.data(), flat.size() * sizeof(float));
    }
  }
  const double seconds = Seconds(begin);
  for (void* copy : copies) SegmentAllocator::Free(copy);
  return seconds;
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
  std::vector<double> theirs, stalls;
  for (int round = -1; round < rounds; ++round) {  // the first is not counted
    const double saved = SaveByTorch(tensors, output), copied = Copy(states);
    const double by_one = WriteCheckpoint(run, states, output, true);
    const double by_two = WriteCheckpoint(run, states, output, false);
    if (round < 0) continue;
    theirs.push_back(saved);
    one.seconds.push_back(by_one);
    one.ratios.push_back(saved / by_one);
    two.seconds.push_back(by_two);
    two.ratios.push_back(saved / by_two);
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
  std::printf("copy before it / write by one process  %.3f\n", Median(stalls));
  return 0;
}

}  // namespace weft

int main(int argc, char** argv) { return weft::Main(argc, argv); }
