#include "worker/core/unsettled_work.h"

#include <algorithm>
#include <utility>

#include "proto/session/message_batch.h"

namespace weft {

UnsettledWork::UnsettledWork(const Assign& assign)
    : run_(assign.run), epoch_(assign.epoch), run_id_(assign.run_id) {
  for (const RankLease& lease : assign.leases) ranks_[lease.rank].token = lease.token;
}

void UnsettledWork::Sent(const FromWorker& message) {
  if (const auto* completions = std::get_if<Completions>(&message)) {
    Completed(*completions);
  } else if (std::holds_alternative<Prepared>(message)) {
    prepared_ = true;
  } else if (const auto* credit = std::get_if<Credit>(&message)) {
    ranks_[credit->rank].credit = credit->jobs;
  } else if (const auto* saved = std::get_if<SnapshotSaved>(&message)) {
    const auto snapshot = snapshots_.find(saved->step);
    if (snapshot != snapshots_.end()) snapshot->second.saved = *saved;
  } else if (const auto* sealed = std::get_if<CheckpointSealed>(&message)) {
    const auto snapshot = snapshots_.find(sealed->step);
    if (snapshot == snapshots_.end()) return;
    snapshot->second.sealed = *sealed;
    if (sealed->failure.empty() && snapshot->second.seal->validate) validations_[sealed->step];
  } else if (const auto* validation = std::get_if<Validation>(&message)) {
    const auto validating = validations_.find(validation->step);
    if (validation->done() && validating != validations_.end()) validating->second.done = *validation;
  } else if (const auto* failed = std::get_if<Failed>(&message)) {
    failed_ = *failed;
  }
}

void UnsettledWork::Completed(const Completions& completions) {
  for (const Completion& job : completions.jobs) {
    if (job.job.step < settled_.ended) continue;
    jobs_[job.job.step].push_back({completions.rank, job});
    ++job_count_;
    hash_count_ += job.hashes.size();
  }
  if (job_count_ <= kMaxJobs && hash_count_ <= kMaxHashes &&
      static_cast<int32_t>(jobs_.size()) <= kMaxUnsettledSteps)
    return;
  missing_before_ = jobs_.rbegin()->first + 1;
  jobs_.clear();
  job_count_ = hash_count_ = 0;
}

bool UnsettledWork::Asked(const TakeSnapshot& take, WorkerEffects* out) {
  if (take.step <= settled_.sealed) return false;
  const auto [snapshot, is_new] = snapshots_.try_emplace(take.step);
  if (!is_new && snapshot->second.saved.has_value()) out->push_back(SendEffect{*snapshot->second.saved});
  return is_new;
}

bool UnsettledWork::Asked(const SealCheckpoint& seal, WorkerEffects* out) {
  if (seal.step <= settled_.sealed) return false;
  Snapshot& snapshot = snapshots_[seal.step];
  if (!snapshot.seal.has_value()) {
    snapshot.seal = seal;
    return true;
  }
  if (snapshot.sealed.has_value()) out->push_back(SendEffect{*snapshot.sealed});
  return false;
}

bool UnsettledWork::Asked(const Validate& validate, WorkerEffects* out) {
  if (validate.step <= settled_.validated) return false;
  Validating& validating = validations_[validate.step];
  if (validating.done.has_value()) out->push_back(SendEffect{*validating.done});
  return !std::exchange(validating.begun, true);
}

void UnsettledWork::Settle(const Settled& settled) {
  if (settled.run != run_ || settled.epoch != epoch_) return;
  settled_ = settled;
  while (!jobs_.empty() && jobs_.begin()->first < settled.ended) {
    const std::vector<Done>& jobs = jobs_.begin()->second;
    job_count_ -= jobs.size();
    for (const Done& done : jobs) hash_count_ -= done.job.hashes.size();
    jobs_.erase(jobs_.begin());
  }
  snapshots_.erase(snapshots_.begin(), snapshots_.upper_bound(settled.sealed));
  validations_.erase(validations_.begin(), validations_.upper_bound(settled.validated));
}

void UnsettledWork::Tell(WorkerEffects* out) const {
  Reattach reattach{run_, epoch_, run_id_, settled_.ended, settled_.sealed, settled_.validated, {}, {}, {}};
  for (const auto& [rank, held] : ranks_)
    reattach.ranks.push_back({rank, held.token, held.credit, held.granted});
  for (const auto& [step, snapshot] : snapshots_) {
    const SealCheckpoint seal = snapshot.seal.value_or(SealCheckpoint());
    reattach.snapshots.push_back({step, snapshot.seal.has_value(), seal.drop, seal.validate, seal.passing});
  }
  for (const auto& [step, validating] : validations_) reattach.validations.push_back(step);
  out->push_back(SendEffect{std::move(reattach)});
  TellJobs(out);
  for (const auto& [step, snapshot] : snapshots_) {
    if (snapshot.saved.has_value()) out->push_back(SendEffect{*snapshot.saved});
    if (snapshot.sealed.has_value()) out->push_back(SendEffect{*snapshot.sealed});
  }
  for (const auto& [step, validating] : validations_) {
    if (validating.done.has_value()) out->push_back(SendEffect{*validating.done});
  }
  if (failed_.has_value()) out->push_back(SendEffect{*failed_});
}

void UnsettledWork::TellJobs(WorkerEffects* out) const {
  std::map<Rank, Completions> of_rank;
  const auto send = [&](Completions* jobs) {
    if (!jobs->jobs.empty()) out->push_back(SendEffect{*jobs});
    jobs->jobs.clear();
  };
  for (const auto& [step, jobs] : jobs_) {
    for (const Done& done : jobs) {
      Completions& completions = of_rank[done.rank];
      completions.run = run_;
      completions.rank = done.rank;
      completions.token = ranks_.at(done.rank).token;
      completions.jobs.push_back(done.job);
      const size_t most = done.job.hashes.empty() ? kMaxBatchJobs : kMaxHashedJobs;
      if (completions.jobs.size() >= most) send(&completions);
    }
  }
  for (auto& [rank, completions] : of_rank) send(&completions);
}

}  // namespace weft
