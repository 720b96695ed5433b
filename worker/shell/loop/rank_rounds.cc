#include "worker/shell/loop/rank_rounds.h"

#include <iterator>
#include <utility>
#include <variant>

namespace weft {

void RankRounds::Begin(Round round, size_t ranks) {
  present_ = {round, absl::OkStatus(), 0};
  remaining_ = static_cast<int>(ranks);
}

void RankRounds::Give(Seat& seat, RankTask task) {
  seat.task = std::move(task);
  threads_.Give(seat.index);
}

void RankRounds::Prepare(const PrepareEffect& effect, const SharedFolders& folders) {
  Begin(Round::kPrepare, effect.assignment.leases.size());
  for (const RankLease& lease : effect.assignment.leases) {
    Seat& seat = *seats_.Of(lease.rank);
    PrepareTask task{effect.run, seat.rank, seat.index == 0, {}, folders};
    for (const PrepareEffect::Stage& s : effect.stages) {
      if (s.rank != seat.rank) continue;
      task.stages.push_back(s);
      if (s.saves) seat.saved_stages.push_back(s.stage);
    }
    Give(seat, std::move(task));
  }
}

void RankRounds::Resume(std::map<Rank, ResumeTask>&& tasks) {
  Begin(Round::kResume, tasks.size());
  for (auto& [rank, task] : tasks) Give(*seats_.Of(rank), std::move(task));
}

void RankRounds::Save(int step, const std::vector<Rank>& ranks, const SharedFolders& folders) {
  Begin(Round::kSave, ranks.size());
  present_.step = step;
  for (const Rank rank : ranks) {
    Seat& seat = *seats_.Of(rank);
    SaveTask task;
    if (folders != nullptr) task = {seat.saved_stages, folders->Partial(step)};
    Give(seat, std::move(task));
  }
}

bool RankRounds::End() {
  const std::vector<int> ending = seats_.End();
  Begin(Round::kEnd, ending.size());
  for (const int seat : ending) threads_.Give(seat);
  return !ending.empty();
}

WorkThreads::Doing RankRounds::TaskAt(int index) const {
  const Seat& seat = seats_.At(index);
  constexpr const char* kWords[] = {"",      "", "preparing", "saving the stages", "beginning with copies",
                                    "ending"};
  static_assert(std::size(kWords) == std::variant_size_v<RankTask>);
  return {kWords[seat.task.index()], std::nullopt, seat.rank};
}

std::optional<RankRounds::Over> RankRounds::Done(Seat& seat, const absl::Status& status) {
  seat.ending = false;
  if (!status.ok() && present_.status.ok()) present_.status = status;
  if (--remaining_ > 0) return std::nullopt;
  return present_;
}

}  // namespace weft
