#include "coordinator/core/run.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft {

RunMember* Run::MemberOf(SessionId session) {
  for (RunMember& m : members) {
    if (m.session == session) return &m;
  }
  return nullptr;
}

int Run::NumberOf(SessionId session) const {
  for (size_t m = 0; m < members.size(); ++m) {
    if (members[m].session == session) return static_cast<int>(m);
  }
  return -1;
}

bool Run::AllAlive(bool RunMember::*flag) const {
  for (const RunMember& m : members) {
    if (m.alive && !(m.*flag)) return false;
  }
  return true;
}

std::string Run::Missing(bool RunMember::*flag) const {
  std::vector<std::string> labels;
  for (const RunMember& m : members) {
    if (!(m.*flag)) labels.push_back(m.label);
  }
  return absl::StrJoin(labels, " and ");
}

void Run::Lease(uint64_t attempt, uint64_t* sequence) {
  epoch = attempt;
  const int64_t w = plan->ranks(), p = static_cast<int64_t>(members.size());
  ranks.assign(w, RunRank{});
  for (int64_t rank = 0; rank < w; ++rank) {
    ranks[rank].member = static_cast<int>(rank * p / w);
    ranks[rank].token = {epoch, (*sequence)++};
  }
}

Assign Run::AssignFor(int member, const std::vector<Peer>& peers) const {
  Assign assign{info.id, epoch, spec, output, {}, {}, peers, collective, info.reduction, run_id};
  for (Rank rank = 0; rank < static_cast<Rank>(ranks.size()); ++rank) {
    assign.process_of_rank.push_back(members[ranks[rank].member].process);
    if (ranks[rank].member == member) assign.leases.push_back({rank, ranks[rank].token});
  }
  return assign;
}

std::string Run::DescribeAwaited() const {
  if (queue == nullptr) return "nothing";
  std::vector<std::string> parts;
  for (const auto& a : queue->AwaitedJobs(4)) {
    parts.push_back(absl::StrCat(Describe(a.job), a.granted ? " on rank " : " that was not claimed by rank ",
                                 a.rank, " of ", members[ranks[a.rank].member].label));
  }
  if (checkpoints != nullptr && !checkpoints->idle()) parts.push_back(DescribeCheckpoint());
  if (checkpoints != nullptr && checkpoints->validating()) parts.push_back(DescribeValidation());
  return absl::StrJoin(parts, "; ");
}

std::string Run::DescribeCheckpoint() const {
  std::vector<std::string> labels;
  for (const int m : checkpoints->Awaited()) labels.push_back(members[m].label);
  if (labels.empty()) labels.push_back(members[0].label);  // that process completes it
  return absl::StrCat("the checkpoint of step ", checkpoints->oldest(), " from ",
                      absl::StrJoin(labels, " and "));
}

std::string Run::DescribeValidation() const {
  return absl::StrCat("the validation of step ", checkpoints->oldest_validation(), " from ",
                      members[0].label);
}

void Run::End(RunState state, std::string reason, int64_t now) {
  info.state = state;
  info.reason = std::move(reason);
  info.ended_ns = now;
  info.reports.clear();
  for (auto& [rank, report] : reports) info.reports.push_back(std::move(report));
  deadline = blame_deadline = kNever;
  plan.reset();
  queue.reset();
  checkpoints.reset();
  std::string().swap(spec);
  std::vector<RunMember>().swap(members);
  std::vector<RunRank>().swap(ranks);
  reports.clear();
}

uint64_t BodyHash(const std::string& spec, int32_t processes, const std::string& output) {
  uint64_t hash = 14695981039346656037ull;  // FNV-1a
  const auto add = [&hash](const std::string& s) {
    for (unsigned char c : s) hash = (hash ^ c) * 1099511628211ull;
    hash = (hash ^ s.size()) * 1099511628211ull;
  };
  add(spec);
  add(output);
  add(std::to_string(processes));
  return hash;
}

}  // namespace weft
