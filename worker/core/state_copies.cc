#include "worker/core/state_copies.h"

#include <algorithm>
#include <utility>

#include "schedules/sync/protocol.h"
#include "schedules/sync/saving.h"
#include "schedules/sync/state_route.h"

namespace weft {

// The first steps of a run that goes on are left out, as by checkpoints: not all that they need is there.
StateCopies::StateCopies(const LocalRun& run)
    : run_(run), first_(run.first_step() > 0 ? run.first_step() + SnapshotLead(run.graph()) : 1) {
  const Assign& a = run_.assignment();
  if (a.leases.empty() || a.peers.empty()) return;
  process_ = before_ = behind_ = run_.ProcessOf(a.leases.front().rank);
  const size_t count = a.peers.size();
  for (size_t i = 0; i < count; ++i) {
    if (a.peers[i].process != process_) continue;
    before_ = a.peers[(i + count - 1) % count].process;
    behind_ = a.peers[(i + 1) % count].process;
  }
}

bool StateCopies::IsTakenBehind(const Job& update) const {
  return update.kind == JobKind::kUpdate && AreMade(update.step + 1) && Saves(run_.graph(), update);
}

StateCopies::Parts StateCopies::SavedBy(int32_t process, int step) const {
  Parts parts;
  for (const Job& update : SavingUpdates(run_.graph(), step)) {
    if (run_.ProcessOf(run_.graph().RankOf(update)) == process)
      parts.insert({update.stage, SliceSavedBehind(run_.graph(), update)});
  }
  return parts;
}

void StateCopies::Expect(const Job& update, WorkerEffects* out) {
  const int step = update.step + 1;
  if (expected_.insert(step).second)
    out->push_back(CopyEffect{step, static_cast<int>(SavedBy(process_, step).size())});
}

void StateCopies::Made(int step, WorkerEffects* out) const {
  const Parts parts = SavedBy(process_, step);
  for (const StatePart& part : parts)
    out->push_back(PublishEffect{behind_, KeyOf(part, step, process_, behind_, TensorKey::CopyUse::kSecond)});
  out->push_back(Report(run_.assignment().epoch, step, parts));
}

void StateCopies::StepEnded(int step, WorkerEffects* out) {
  expected_.erase(step);
  if (!AreMade(step + 1)) return;
  Parts parts = SavedBy(before_, step + 1);
  if (parts.empty()) return;
  for (const StatePart& part : parts)
    out->push_back(
        WantEffect{before_, KeyOf(part, step + 1, before_, process_, TensorKey::CopyUse::kSecond)});
  second_[step + 1] = std::move(parts);
}

std::vector<Rank> StateCopies::ReadersOf(const StatePart& part) const {
  const Graph& graph = run_.graph();
  if (const StateRoute* route = graph.route()) return {graph.RankOf(route->First(part.stage))};
  const std::vector<Rank>& members = graph.members(part.stage);
  if (graph.protocol(part.stage).layout() == Layout::kSliced) {
    if (part.part < static_cast<int>(members.size())) return {members[part.part]};
    return {};
  }
  return members;
}

std::set<int32_t> StateCopies::ProcessesOf(const std::vector<Rank>& ranks) const {
  std::set<int32_t> processes;
  for (const Rank rank : ranks) processes.insert(run_.ProcessOf(rank));
  return processes;
}

void StateCopies::Fetch(WorkerEffects* out) {
  for (const KeptPart& kept : run_.assignment().kept) {
    for (const int32_t reader : ProcessesOf(ReadersOf(kept.part))) {
      if (reader == kept.process) continue;
      const TensorKey key =
          KeyOf(kept.part, run_.first_step(), kept.process, reader, TensorKey::CopyUse::kBegin);
      if (kept.process == process_) out->push_back(PublishEffect{reader, key});
      if (reader != process_) continue;
      out->push_back(WantEffect{kept.process, key});
      begin_.insert(kept.part);
    }
  }
  ResumeIfHere(out);
}

void StateCopies::Arrived(const TensorKey& key, WorkerEffects* out) {
  const StatePart part = key.copied_part();
  if (key.begins_attempt()) {
    if (begin_.erase(part) == 0) return;
    out->push_back(Report(run_.assignment().copies_epoch, run_.first_step(), {part}));
    return ResumeIfHere(out);
  }
  const auto awaited = second_.find(key.step);
  if (awaited == second_.end() || awaited->second.erase(part) == 0 || !awaited->second.empty()) return;
  second_.erase(awaited);
  out->push_back(Report(key.epoch, key.step, SavedBy(before_, key.step)));
}

void StateCopies::ResumeIfHere(WorkerEffects* out) {
  if (!begin_.empty()) return;
  ResumeEffect resume{run_.assignment().copies_epoch, run_.first_step(), {}};
  std::map<std::pair<Rank, int>, std::vector<StatePart>> stages;
  for (const KeptPart& kept : run_.assignment().kept) {
    for (const Rank rank : ReadersOf(kept.part)) {
      if (run_.IsLocal(rank)) stages[{rank, kept.part.stage}].push_back(kept.part);
    }
  }
  for (auto& [place, parts] : stages) resume.stages.push_back({place.first, place.second, std::move(parts)});
  out->push_back(std::move(resume));
}

TensorKey StateCopies::KeyOf(const StatePart& part, int step, int32_t from, int32_t to,
                             TensorKey::CopyUse use) const {
  const Assign& a = run_.assignment();
  return TensorKey::OfCopy(a.run, a.epoch, step, part, FirstRankOf(from), FirstRankOf(to), use);
}

Rank StateCopies::FirstRankOf(int32_t process) const {
  const std::vector<int32_t>& processes = run_.assignment().process_of_rank;
  return static_cast<Rank>(std::find(processes.begin(), processes.end(), process) - processes.begin());
}

SendEffect StateCopies::Report(uint64_t epoch, int step, const Parts& parts) const {
  return SendEffect{CopiesHeld{run_.assignment().run, epoch, step, {parts.begin(), parts.end()}}};
}

}  // namespace weft
