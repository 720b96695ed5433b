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
    out->push_back(PublishEffect{behind_, KeyOf(part, step, process_, behind_, /*begin=*/false)});
  out->push_back(Report(run_.assignment().epoch, step, parts));
}

void StateCopies::StepEnded(int step, WorkerEffects* out) {
  expected_.erase(step);
  if (!AreMade(step + 1)) return;
  Parts parts = SavedBy(before_, step + 1);
  if (parts.empty()) return;
  for (const StatePart& part : parts)
    out->push_back(WantEffect{before_, KeyOf(part, step + 1, before_, process_, /*begin=*/false)});
  second_[step + 1] = std::move(parts);
}

std::vector<StatePart> StateCopies::ReadBy(Rank rank, int stage) const {
  const Graph& graph = run_.graph();
  const bool sliced = graph.protocol(stage).layout() == Layout::kSliced;
  int part = -1;  // of a slice; else any number that is not negative
  if (const StateRoute* route = graph.route()) {
    part = graph.RankOf(route->First(stage)) == rank ? 0 : -1;
  } else {
    const std::vector<Rank>& members = graph.members(stage);
    const auto found = std::lower_bound(members.begin(), members.end(), rank);
    if (found != members.end() && *found == rank) part = static_cast<int>(found - members.begin());
  }
  std::vector<StatePart> parts;
  for (const KeptPart& kept : run_.assignment().kept) {
    if (part >= 0 && kept.part.stage == stage && (!sliced || kept.part.part == part))
      parts.push_back(kept.part);
  }
  return parts;
}

StateCopies::Parts StateCopies::ReadBy(int32_t process, std::vector<ResumeEffect::Stage>* stages) const {
  Parts all;
  const Assign& a = run_.assignment();
  for (Rank rank = 0; rank < static_cast<Rank>(a.process_of_rank.size()); ++rank) {
    if (run_.ProcessOf(rank) != process) continue;
    for (int stage = 0; stage < run_.graph().schedule().stages; ++stage) {
      const std::vector<StatePart> parts = ReadBy(rank, stage);
      all.insert(parts.begin(), parts.end());
      if (parts.empty() || stages == nullptr) continue;
      stages->push_back({rank, stage, parts});
    }
  }
  return all;
}

void StateCopies::Fetch(WorkerEffects* out) {
  const Assign& a = run_.assignment();
  const Parts read = ReadBy(process_);
  for (const KeptPart& kept : a.kept) {
    if (kept.process == process_ || read.count(kept.part) == 0) continue;
    out->push_back(WantEffect{kept.process,
                              KeyOf(kept.part, run_.first_step(), kept.process, process_, /*begin=*/true)});
    begin_.insert(kept.part);
  }
  for (const Peer& peer : a.peers) {
    if (peer.process == process_) continue;
    const Parts others = ReadBy(peer.process);
    for (const KeptPart& kept : a.kept) {
      if (kept.process != process_ || others.count(kept.part) == 0) continue;
      out->push_back(PublishEffect{peer.process, KeyOf(kept.part, run_.first_step(), process_, peer.process,
                                                       /*begin=*/true)});
    }
  }
  ResumeIfHere(out);
}

void StateCopies::Arrived(const TensorKey& key, WorkerEffects* out) {
  const StatePart part{key.stage, key.part};
  if (key.use == kBegin) {
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
  ReadBy(process_, &resume.stages);
  out->push_back(std::move(resume));
}

TensorKey StateCopies::KeyOf(const StatePart& part, int step, int32_t from, int32_t to, bool begin) const {
  TensorKey key;
  key.run = run_.assignment().run;
  key.epoch = run_.assignment().epoch;
  key.step = key.version = step;
  key.stage = part.stage;
  key.part = part.part;
  key.producer = FirstRankOf(from);
  key.consumer = FirstRankOf(to);
  key.kind = TensorKind::kCopy;
  key.use = begin ? kBegin : kSecond;
  return key;
}

Rank StateCopies::FirstRankOf(int32_t process) const {
  const std::vector<int32_t>& processes = run_.assignment().process_of_rank;
  return static_cast<Rank>(std::find(processes.begin(), processes.end(), process) - processes.begin());
}

SendEffect StateCopies::Report(uint64_t epoch, int step, const Parts& parts) const {
  return SendEffect{CopiesHeld{run_.assignment().run, epoch, step, {parts.begin(), parts.end()}}};
}

}  // namespace weft
