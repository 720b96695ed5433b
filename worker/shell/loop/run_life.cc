#include "worker/shell/loop/run_life.h"

#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/shell/compute/training_state.h"

namespace weft {
namespace {

// Returns the folders of a run with an output; null for none.
SharedFolders FoldersOf(const Assign& assign, const ScheduledRun& run) {
  if (assign.output.empty()) return nullptr;
  return std::make_shared<const CheckpointFolders>(assign.output, run, assign.run_id, assign.epoch);
}

}  // namespace

RunLife::RunLife(const WorkerLoopOptions& options, const Parts& parts)
    : options_(options), parts_(parts), rounds_(parts.threads, parts.seats), peers_(parts.transport) {}

absl::StatusOr<RunLife::GroupIds> RunLife::Begin(int64_t now, const Graph& graph, PrepareEffect& effect) {
  absl::StatusOr<GroupIds> ids = MakeReady(now, graph, effect);
  if (ids.ok()) rounds_.Prepare(effect, parts_.saver.folders());
  return ids;
}

absl::StatusOr<RunLife::GroupIds> RunLife::MakeReady(int64_t now, const Graph& graph, PrepareEffect& effect) {
  const Assign& a = effect.assignment;
  if (rounds_.busy()) return absl::UnavailableError("this process is still busy with the run before");
  number_ = a.run;
  const bool pairs = graph.has_pairs();
  parts_.seats.Place(a, pairs);
  if (absl::Status s = parts_.threads.Start(parts_.seats.size()); !s.ok()) return s;
  if (a.examined_step >= 0) {
    auto examined = std::make_shared<ScheduledRun>(*effect.run);
    examined->spec.examined_step = a.examined_step;
    effect.run = std::move(examined);
  }
  const ScheduledRun& run = *effect.run;
  if (absl::Status s = CheckRunPaths(run.spec, a.output); !s.ok()) return s;
  if (parts_.device.name() == "cpu") {
    if (absl::Status s = CheckHostMemory(run.spec, effect); !s.ok()) return s;
  }
  run_ = effect.run;
  const std::shared_ptr<const RunSpec> spec(run_, &run.spec);
  parts_.saver.BeginRun(a, spec, FoldersOf(a, run));
  parts_.started.BeginRun(graph, spec);
  parts_.transport.BeginEpoch(a.run, a.epoch);
  if (absl::Status s = peers_.Admit(a.peers); !s.ok()) return s;
  parts_.threads.ChooseSpin(options_.spin_microseconds, a.process_of_rank.size() * (pairs ? 2 : 1));
  // The line is one write, as other processes share the terminal.
  if (!a.reduction.empty())
    std::cerr << absl::StrCat("weft-worker: run ", a.run, ": reduction ", a.reduction, "\n");
  return parts_.communicators.Begin(parts_.device.communication(), std::move(effect.groups), now,
                                    {options_.join_timeout_ns, options_.joint_timeout_ns});
}

absl::Status RunLife::Connect(const std::vector<Rank>& ranks, std::optional<PeerId>* at_fault) {
  if (absl::Status s = peers_.Connect(at_fault); !s.ok()) return s;
  parts_.saver.Reserve(ranks, parts_.seats);
  prepared_ = joins_ = true;
  return absl::OkStatus();
}

absl::StatusOr<bool> RunLife::Join(int64_t now) {
  absl::StatusOr<bool> joined = parts_.communicators.JoinNext(now);
  joins_ = joined.ok() && !*joined;
  return joined;
}

absl::StatusOr<bool> RunLife::Resume(const ResumeEffect& effect) {
  auto tasks = ResumeTasks(effect, run_, number_, parts_.saver.copies());
  if (!tasks.ok()) return AsDamagedCheckpoint(tasks.status());
  if (tasks->empty()) return false;
  rounds_.Resume(*std::move(tasks));
  return true;
}

void RunLife::Save(int step, const std::vector<Rank>& ranks) {
  rounds_.Save(step, ranks, parts_.saver.folders());
}

bool RunLife::End(int64_t now) {
  parts_.saver.Cancel(/*validates=*/parts_.seats.Of(0) != nullptr);
  // Copies that the device made for the writer are in the device's memory.
  const bool written = parts_.device.launch_ahead() > 1 && !parts_.saver.idle();
  ends_ = rounds_.busy() || parts_.device_work.busy() || written;
  if (ends_) return false;
  prepared_ = joins_ = false;
  peers_.Leave();
  parts_.communicators.Clear(absl::AbortedError("its run is over here"));
  EndRanks(now);
  return !ends_;
}

// Gives each rank's seat the task to end it outside the lock, since a device's driver may take its time.
void RunLife::EndRanks(int64_t now) {
  ends_ = rounds_.End();
  if (!ends_ || parts_.device.launch_ahead() == 1) return;
  end_until_ns_ = now + options_.device_grace_ns;
  parts_.threads.WakeAll();  // to look in time
}

absl::Status RunLife::CheckEnd(int64_t now) const {
  if (end_until_ns_ == 0 || now <= end_until_ns_) return absl::OkStatus();
  const std::optional<Rank> rank = parts_.seats.FindEnding();
  if (!rank.has_value()) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrFormat("the device has not finished the work that ends rank %d of run %d for %.1f s", *rank,
                      number_, 1e-9 * static_cast<double>(options_.device_grace_ns)));
}

void RunLife::Clear() {
  parts_.transport.BeginEpoch(0, 0);
  parts_.exchange.Clear();
  parts_.started.Clear();
  parts_.device_work.EndGrace();
  end_until_ns_ = 0;
  parts_.seats.Clear();
}

}  // namespace weft
