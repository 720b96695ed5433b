#include "worker/shell/loop/rank_tasks.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/host_memory.h"
#include "base/run_files.h"
#include "run/named_paths.h"
#include "run/run_memory.h"
#include "worker/shell/checkpoint/packed_snapshot.h"
#include "worker/shell/compute/training_state.h"
#include "worker/shell/data/data.h"
#include "worker/shell/data/input_notes.h"

namespace weft {
namespace {

// In the process that validates: held-out data that cannot be read are found before the first step, and the
// weights with which the run goes on are kept where it validates them first.
absl::Status PrepareToValidate(const RunSpec& spec, const CheckpointFolders& folders) {
  if (!spec.validate.any()) return absl::OkStatus();
  const absl::StatusOr<std::unique_ptr<Dataset>> data = Dataset::Open(ValidationRun(spec));
  if (!data.ok()) {
    return absl::Status(data.status().code(), absl::StrCat("validate.", data.status().message()));
  }
  if (!spec.ValidatesAfter(spec.first_step())) return absl::OkStatus();
  return AsDamagedCheckpoint(folders.KeepAside(spec.first_step(), spec.resume.checkpoint));
}

// Prepares the output, and finds inputs that are not those of the run's earlier attempts.
absl::Status PrepareFolders(const RunSpec& spec, const CheckpointFolders& folders) {
  if (absl::Status status = folders.Prepare(); !status.ok()) return status;
  if (folders.run_id().empty()) return absl::OkStatus();
  return CheckInputs(folders.output(), folders.run_id(), InputFiles(spec));
}

StageRole RoleOf(const PrepareEffect::Stage& stage) {
  StageRole role = stage.parts > 1           ? StageRole::Slice(stage.part, stage.parts)
                   : stage.updated_elsewhere ? StageRole::Installed(stage.installs_late)
                   : stage.holds_weights     ? StageRole::Whole()
                                             : StageRole::Nothing();
  role.sums_own = stage.sums_own;
  return role;
}

absl::Status PrepareRank(const PrepareTask& task, Device& device, MemorySource& memory,
                         std::unique_ptr<RankCompute>* compute) {
  if (task.folders != nullptr && task.first) {
    if (absl::Status status = PrepareFolders(task.run->spec, *task.folders); !status.ok()) return status;
  }
  if (task.folders != nullptr && task.rank == 0) {
    if (absl::Status status = PrepareToValidate(task.run->spec, *task.folders); !status.ok()) return status;
  }
  auto made = device.CreateRank(*task.run, task.rank, memory);
  if (!made.ok()) return made.status();
  *compute = *std::move(made);
  RankCompute& rank = **compute;
  for (const PrepareEffect::Stage& s : task.stages) {
    absl::Status status = rank.AddStage(s.stage, RoleOf(s));
    const bool resumes = task.run->spec.first_step() > 0;
    if (!status.ok()) return resumes ? AsDamagedCheckpoint(status) : status;
    // A run that goes on has its initial weights in the checkpoint that it begins with.
    if (!s.saves || task.folders == nullptr || resumes) continue;
    const std::string initial = task.folders->Partial(0);
    status = s.state_travels ? rank.SaveInitial(s.stage, initial) : rank.Save(s.stage, initial);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status SaveRank(const SaveTask& task, RankCompute& compute) {
  for (const int stage : task.stages) {
    if (absl::Status status = compute.Save(stage, task.folder); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ResumeRank(const ResumeTask& task, RankCompute& compute) {
  const RunSpec& spec = task.run->spec;
  const std::vector<StateRule> rules = StateRulesOf(*task.run);
  for (const ResumeTask::Stage& s : task.stages) {
    auto kept = ReadPackedStage(spec, rules.at(s.stage), s.stage, s.parts);
    absl::Status status = kept.ok() ? compute.BeginFrom(s.stage, *kept) : kept.status();
    if (!status.ok()) return AsDamagedCheckpoint(std::move(status));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status DoRankTask(RankTask task, Device& device, MemorySource& memory,
                        std::unique_ptr<RankCompute>* compute) {
  if (const auto* prepare = std::get_if<PrepareTask>(&task))
    return PrepareRank(*prepare, device, memory, compute);
  if (const auto* save = std::get_if<SaveTask>(&task)) return SaveRank(*save, **compute);
  if (const auto* resume = std::get_if<ResumeTask>(&task)) return ResumeRank(*resume, **compute);
  return absl::OkStatus();  // an EndTask, whose compute ends with it
}

absl::StatusOr<std::map<Rank, ResumeTask>> ResumeTasks(const ResumeEffect& effect,
                                                       const std::shared_ptr<const ScheduledRun>& run,
                                                       uint64_t run_id, const KeptCopies& copies) {
  std::map<Rank, ResumeTask> tasks;
  for (const ResumeEffect::Stage& s : effect.stages) {
    ResumeTask& task = tasks[s.rank];
    task.run = run;
    task.stages.push_back({s.stage, {}});
    for (const StatePart& part : s.parts) {
      absl::StatusOr<Tensor> copy = copies.Find(run_id, {effect.epoch, effect.step, part});
      if (!copy.ok()) return copy.status();
      task.stages.back().parts.push_back(*std::move(copy));
    }
  }
  return tasks;
}

// Returns how many copies of the state that it saves stay in the process's memory. With redundancy they are
// its own, and as many of another process's: of the newest complete step and of two that are made. Without, a
// snapshot keeps its memory for the next one.
static int CopiesOf(const RunSpec& spec) {
  if (spec.redundancy > 0) return 2 * 3;
  return spec.checkpoint.periodic() ? 1 : 0;
}

// Returns the bytes of migrating states that this process has at a time: of all of them where it has all
// ranks of the run, else of one, as the next may come when that has left.
static int64_t CountStates(const RunSpec& spec, const PrepareEffect& effect) {
  std::map<int, int64_t> states;  // by stage, of which several ranks compute jobs
  for (const PrepareEffect::Stage& s : effect.stages) {
    if (!s.state_travels || states.count(s.stage) > 0) continue;
    states[s.stage] = (1 + OptimizerBuffers(spec.train.optimizer)) * CountStage(spec, s.stage).parameters;
  }
  const Assign& a = effect.assignment;
  int64_t all = 0, largest = 0;
  for (const auto& [stage, bytes] : states) {
    all += bytes;
    largest = std::max(largest, bytes);
  }
  return a.leases.size() == a.process_of_rank.size() ? all : largest;
}

absl::Status CheckRunPaths(const RunSpec& run, const std::string& output) {
  std::vector<NamedPath> paths = NamedPaths(run);
  if (!output.empty()) paths.push_back({"output", output});
  for (const NamedPath& named : paths) {
    if (absl::Status s = CheckRunPath(named.path); !s.ok())
      return absl::Status(s.code(), absl::StrCat(named.key, ": ", s.message()));
  }
  return absl::OkStatus();
}

absl::Status CheckHostMemory(const RunSpec& spec, const PrepareEffect& effect) {
  int64_t needed = CountStates(spec, effect);
  for (const PrepareEffect::Stage& s : effect.stages) {
    if (!s.holds_weights) continue;
    const int state = 1 + (s.updated_elsewhere ? 0 : OptimizerBuffers(spec.train.optimizer));
    const int copies = 1 + state + (s.saves ? CopiesOf(spec) * state : 0);
    needed += copies * (CountStage(spec, s.stage).parameters / s.parts);
  }
  const HostMemory memory = ReadHostMemory();
  const std::optional<int64_t> available = memory.Least();
  if (!available.has_value() || needed <= *available) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "weights, gradients and optimizer of this process's %d ranks take at least %.1f GiB, and there are %s: "
      "take more processes on other machines, a schedule that shards the weights, or a smaller model",
      effect.assignment.leases.size(), static_cast<double>(needed) / (int64_t{1} << 30), memory.Describe()));
}

}  // namespace weft
