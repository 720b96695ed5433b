#include "schedules/sync/joint_order.h"

#include <algorithm>

namespace weft {
namespace {

Job AtStep(Job job, int32_t step) {
  job.step = step;
  return job;
}

// Distance in the list of forwards and backwards from a job to the one whose gather its end lets begin.
constexpr int kRoom = 2;

}  // namespace

void JointOrder::Order::Number() {
  for (size_t i = 0; i < jobs.size(); ++i) place[jobs[i]] = static_cast<int>(i);
}

void JointOrder::Add(int stage, const std::vector<Rank>& members) {
  const auto known = std::find(groups_.begin(), groups_.end(), members);
  group_of_stage_.resize(stage + 1, -1);
  group_of_stage_[stage] = static_cast<int>(known - groups_.begin());
  if (known == groups_.end()) groups_.push_back(members);
  for (size_t m = 0; m < members.size(); ++m) {
    Order& order = orders_[members[m]];
    order.jobs.insert(order.jobs.begin(), Job::Reduce(0, stage, static_cast<int>(m)));
    order.Number();
  }
}

void JointOrder::AddGathers(const std::vector<int>& microbatches) {
  const auto stages = static_cast<int>(group_of_stage_.size());
  rank_of_microbatch_.resize(microbatches.size());
  for (size_t m = 0; m < microbatches.size(); ++m) {
    const Rank rank = groups_.front()[m];
    rank_of_microbatch_[microbatches[m]] = rank;
    Order order;
    for (int s = 0; s < stages; ++s)
      order.computed.push_back(Job::Compute(0, s, microbatches[m], JobKind::kForward));
    for (int s = stages; s-- > 0;)
      order.computed.push_back(Job::Compute(0, s, microbatches[m], JobKind::kBackward));
    const std::vector<Job> reduces = orders_.at(rank).jobs;
    auto reduce = reduces.begin();
    for (size_t i = 0; i < order.computed.size(); ++i) {
      order.jobs.push_back(order.computed[i]);
      // The backward of the next one to be reduced has ended.
      if (i >= kRoom && order.computed[i - kRoom].kind == JobKind::kBackward) order.jobs.push_back(*reduce++);
    }
    order.jobs.insert(order.jobs.end(), reduce, reduces.end());
    order.Number();
    orders_[rank] = std::move(order);
  }
}

const JointOrder::Order& JointOrder::OrderOf(const Job& job) const {
  return orders_.at(HasMicrobatch(job.kind) ? rank_of_microbatch_[job.microbatch]
                                            : groups_[group_of_stage_[job.stage]][job.member]);
}

std::optional<Job> JointOrder::Before(const Job& job) const {
  const Order& order = OrderOf(job);
  const int place = order.place.at(AtStep(job, 0));
  if (place > 0) return AtStep(order.jobs[place - 1], job.step);
  if (job.step == 0) return std::nullopt;
  return AtStep(order.jobs.back(), job.step - 1);
}

Job JointOrder::After(const Job& job) const {
  const Order& order = OrderOf(job);
  const size_t next = order.place.at(AtStep(job, 0)) + 1;
  if (next < order.jobs.size()) return AtStep(order.jobs[next], job.step);
  return AtStep(order.jobs.front(), job.step + 1);
}

std::optional<Job> JointOrder::ReduceBefore(const Job& job) const {
  std::optional<Job> before = Before(job);
  while (before.has_value() && before->kind != JobKind::kReduce) before = Before(*before);
  return before;
}

std::optional<Job> JointOrder::Computed(const Job& job, int behind) const {
  const std::vector<Job>& computed = OrderOf(job).computed;
  const auto stages = static_cast<int>(computed.size()) / 2;
  const int own = job.kind == JobKind::kForward ? job.stage : 2 * stages - 1 - job.stage;
  const int place = own + behind;
  if (place < 0 || place >= 2 * stages) return std::nullopt;
  return AtStep(computed[place], job.step);
}

std::optional<Job> JointOrder::RoomFrom(const Job& job) const { return Computed(job, -kRoom); }
std::optional<Job> JointOrder::RoomFor(const Job& job) const { return Computed(job, kRoom); }

}  // namespace weft
