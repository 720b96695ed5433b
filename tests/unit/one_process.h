// Drives by hand a worker core that holds all ranks of a run.
#ifndef WEFT_TESTS_UNIT_ONE_PROCESS_H_
#define WEFT_TESTS_UNIT_ONE_PROCESS_H_

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gtest/gtest.h"
#include "schedules/families/families.h"
#include "tests/unit/without_terms.h"
#include "worker/core/worker_core.h"

namespace weft {

inline WorkerCore::RunShape Shape(const std::string& name, int stages, int microbatches, int steps) {
  return {WithoutTerms(*MakeSchedule(name, {}, stages, microbatches)), steps};
}

template <typename T>
std::vector<T> Only(const WorkerEffects& effects) {
  std::vector<T> some;
  for (const WorkerEffect& e : effects) {
    if (const auto* t = std::get_if<T>(&e)) some.push_back(*t);
  }
  return some;
}

// The fixture of one process that holds all ranks of a run.
class OneProcess : public ::testing::Test {
 protected:
  void Begin(const WorkerCore::RunShape& shape, int launch_ahead = 1) {
    shape_ = shape;
    core_ = std::make_unique<WorkerCore>([shape](const std::string&) { return shape; }, launch_ahead);
    Assign a;
    a.run = 7;
    a.epoch = 3;
    a.process_of_rank.assign(shape.schedule.scheme.ranks, 0);
    for (Rank r = 0; r < shape.schedule.scheme.ranks; ++r)
      a.leases.push_back({r, {3, static_cast<uint64_t>(r + 1)}});
    WorkerEffects out;
    core_->OnMessage(0, a, &out);
    ASSERT_EQ(Only<PrepareEffect>(out).size(), 1u);
    out.clear();
    core_->OnPrepared(1, &out);
  }
  Grant GrantOf(Rank rank, std::vector<Job> jobs) {
    return {7, rank, {3, static_cast<uint64_t>(rank + 1)}, std::move(jobs)};
  }

  // Ends a job. Returns the delay that is reported with it; -1 if the job goes on. Keeps what starts.
  int64_t DelayReported(int64_t now, const JobDone& done) {
    WorkerEffects out;
    core_->OnJobDone(now, done, &out);
    started_ = Only<StartEffect>(out);
    for (const SendEffect& sent : Only<SendEffect>(out)) {
      if (const auto* m = std::get_if<Completions>(&sent.message)) return m->jobs.at(0).delay_ns;
    }
    return -1;
  }

  WorkerCore::RunShape shape_;
  std::unique_ptr<WorkerCore> core_;
  std::vector<StartEffect> started_;  // behind the last DelayReported
};

}  // namespace weft

#endif  // WEFT_TESTS_UNIT_ONE_PROCESS_H_
