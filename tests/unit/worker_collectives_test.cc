// Worker cores whose ranks reduce, and gather weights, by collectives: one core a rank, devices that do
// collectives in the order in which they are given them, tensors and ends of jobs in random order. Seeds of
// failing cases are printed; run one alone with WEFT_SEED.
#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedules/check/check.h"
#include "schedules/dispatch/claim_order.h"
#include "schedules/families/families.h"
#include "schedules/sync/catalogue.h"
#include "schedules/sync/held_versions.h"
#include "tests/unit/without_terms.h"
#include "worker/core/worker_core.h"

namespace weft::worker_collectives_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kRun = 9, kEpoch = 3;

class Cores {
 public:
  Cores(const WorkerCore::RunShape& shape, uint64_t seed, int launch_ahead)
      : shape_(shape), rng_(seed), launches_(launch_ahead > 1) {
    RunSchedule schedule = shape.schedule;
    schedule.terms.reduction = ReductionMode::kFast;
    graph_ = std::make_unique<Graph>(schedule, shape.steps, shape.first_step);
    const int world = schedule.scheme.ranks;
    lines_.resize(world);
    launched_.resize(world);
    const auto order = *ClaimOrder(*graph_);
    for (Rank r = 0; r < world; ++r) {
      cores_.push_back(
          std::make_unique<WorkerCore>([this](const std::string&) { return shape_; }, launch_ahead));
    }
    for (Rank r = 0; r < world; ++r) {
      WorkerEffects out;
      cores_[r]->OnMessage(1, AssignOf(r), &out);
      Carry(out);
    }
    for (Rank r = 0; r < world; ++r) Do(r, [](WorkerCore& c, WorkerEffects* out) { c.OnPrepared(2, out); });
    for (int step = shape.first_step; step < shape.steps; ++step) {
      for (Rank r = 0; r < world; ++r) {
        std::vector<Job> jobs = order[step % order.size()][r];
        for (Job& j : jobs) j.step = step;
        Do(r, [&](WorkerCore& c, WorkerEffects* out) {
          c.OnMessage(3, Grant{kRun, r, {kEpoch, 1}, jobs}, out);
        });
      }
    }
  }

  Assign AssignOf(Rank r) const {
    Assign a;
    a.run = kRun;
    a.epoch = kEpoch;
    a.reduction_mode = ReductionMode::kFast;
    a.leases = {{r, {kEpoch, 1}}};
    for (Rank p = 0; p < graph_->schedule().ranks; ++p) a.process_of_rank.push_back(p);
    return a;
  }

  // Runs until nothing can happen any more.
  void Run() {
    while (true) {
      std::vector<std::function<void()>> can;
      for (size_t i = 0; i < running_.size(); ++i) can.push_back([this, i] { EndRunning(i); });
      for (Rank r = 0; r < static_cast<Rank>(launched_.size()); ++r) {
        if (!launched_[r].empty()) can.push_back([this, r] { EndLaunched(r); });
      }
      for (const auto& [key, maker] : published_) {
        const bool made = !maker.has_value() || HasEnded(*maker);  // else its bytes are not there
        if (made && wanted_.count(key) != 0) can.push_back([this, key = key] { Deliver(key); });
      }
      for (Rank r = 0; r < static_cast<Rank>(lines_.size()); ++r) {
        if (AllHaveCome(r)) can.push_back([this, r] { EndCollective(r); });
      }
      for (size_t i = 0; i < reported_.size(); ++i) can.push_back([this, i] { Tell(i); });
      if (can.empty()) return;
      can[rng_() % can.size()]();
      now_ += 3;
    }
  }

  const Graph& graph() const { return *graph_; }
  const std::set<Job>& completed() const { return completed_; }
  const std::vector<std::vector<Job>>& begun() const { return begun_; }
  int failures() const { return failures_; }
  WorkerCore& core(Rank r) { return *cores_[r]; }
  bool wants_weights() const { return wants_weights_; }

 private:
  template <typename Call>
  void Do(Rank r, Call call, std::optional<Job> maker = std::nullopt) {
    WorkerEffects out;
    call(*cores_[r], &out);
    Carry(out, maker);
  }
  void Carry(WorkerEffects& effects, std::optional<Job> maker = std::nullopt) {
    for (WorkerEffect& effect : effects) {
      if (auto* start = std::get_if<StartEffect>(&effect)) {
        Start(*start);
      } else if (auto* publish = std::get_if<PublishEffect>(&effect)) {
        if (publish->process >= 0) published_.emplace(publish->key, maker);
      } else if (auto* want = std::get_if<WantEffect>(&effect)) {
        wanted_.insert(want->key);
        wants_weights_ |= want->key.kind == TensorKind::kWeights;
      } else if (auto* send = std::get_if<SendEffect>(&effect)) {
        if (auto* done = std::get_if<Completions>(&send->message)) {
          for (const Completion& c : done->jobs)
            EXPECT_TRUE(completed_.insert(c.job).second) << Describe(c.job) << " is told twice";
        }
        failures_ += std::holds_alternative<Failed>(send->message);
      }
    }
  }

  bool HasEnded(const Job& job) const { return job.step < shape_.first_step || ended_.count(job) != 0; }

  void Start(const StartEffect& start) {
    std::vector<Edge> edges;
    graph_->Predecessors(start.job, &edges);
    begun_.resize(lines_.size());
    const bool begins = start.round == JobRound::kBeginJoint;
    if (begins) {
      EXPECT_FALSE(start.last());
      EXPECT_TRUE(start.inputs.empty());
      begun_[start.rank].push_back(start.job);
      if (HasMicrobatch(start.job.kind)) ++put_together_[start.rank];
      EXPECT_LE(put_together_[start.rank], 2) << Describe(start.job);
    }
    for (const Edge& e : edges) {
      if (begins && !graph_->BeginsJointly(e)) continue;
      // Its device is past that one; what its rank still has to do with it is its own business.
      if (start.round == JobRound::kEndJoint && e.joined && over_.count(e.from) != 0) continue;
      // Launched jobs of the rank are as good as ended.
      if (launches_ && graph_->RankOf(e.from) == start.rank) continue;
      EXPECT_TRUE(HasEnded(e.from)) << Describe(start.job) << " starts before " << Describe(e.from);
    }
    for (const TensorKey& key : start.inputs)
      EXPECT_FALSE(graph_->GathersWeights(start.job) && key.kind == TensorKind::kWeights);
    if (graph_->GathersWeights(start.job)) {
      EXPECT_TRUE(start.round == JobRound::kBeginJoint || start.round == JobRound::kEndJoint)
          << Describe(start.job);
      EXPECT_FALSE(start.Does(Operation::kReduceScatter));
      EXPECT_EQ(start.version, graph_->VersionOf(start.job));
    }
    if (start.job.kind == JobKind::kReduce && graph_->protocol(start.job.stage).reduces_jointly()) {
      EXPECT_TRUE(start.round == JobRound::kBeginJoint || start.round == JobRound::kEndJoint);
      // All have one sum, of which one gives the squares; or each has its slice.
      const bool gives = start.job.member == 0 || (graph_->protocol(0).layout() == Layout::kSliced);
      EXPECT_EQ(start.Does(Operation::kSumSquares), graph_->terms().takes_norm && gives)
          << Describe(start.job);
      EXPECT_EQ(start.Does(Operation::kReduceScatter), (graph_->protocol(0).layout() == Layout::kSliced));
    }
    EXPECT_TRUE(!graph_->protocol(start.job.stage).reduces_jointly() ||
                (start.gradients.empty() && !start.Does(Operation::kHandOutGradient)));
    running_.push_back(start);
  }
  JobDone DoneOf(const StartEffect& s) const {
    JobDone done{s.rank, s.job, now_, now_ + 1, s.last(), {}};
    if (s.Does(Operation::kSumSquares) && s.last()) done.gradient_norm = 1;
    return done;
  }
  // Ends a job whose calls have returned.
  void EndRunning(size_t i) {
    const StartEffect s = running_[i];
    running_.erase(running_.begin() + static_cast<int64_t>(i));
    if (launches_) {
      launched_[s.rank].push_back(s);
      if (graph_->GathersWeights(s.job) && s.last()) --put_together_[s.rank];
      const auto launched = [&](WorkerCore& c, WorkerEffects* out) {
        c.OnJobLaunched(now_, s.rank, s.job, s.last(), {}, out);
      };
      Do(s.rank, launched, s.job);
      return;
    }
    if (graph_->GathersWeights(s.job) && s.last()) --put_together_[s.rank];
    HasBeenDone(s);
    Do(s.rank, [&](WorkerCore& c, WorkerEffects* out) { c.OnJobDone(now_ + 2, DoneOf(s), out); });
  }
  void EndLaunched(Rank r) {
    const StartEffect s = launched_[r].front();
    launched_[r].pop_front();
    HasBeenDone(s);
    Do(r, [&](WorkerCore& c, WorkerEffects* out) {
      JobDone done = DoneOf(s);
      done.launched = true;
      c.OnJobDone(now_ + 2, done, out);
    });
  }
  void HasBeenDone(const StartEffect& s) {
    if (s.round == JobRound::kBeginJoint) lines_[s.rank].push_back(s.job);
    if (s.last()) ended_.insert(s.job);
  }
  void Deliver(const TensorKey& key) {
    published_.erase(key);
    wanted_.erase(key);
    Do(key.consumer, [&](WorkerCore& c, WorkerEffects* out) { c.OnTensor(now_, key, {}, out); });
  }
  bool AllHaveCome(Rank r) const {
    if (lines_[r].empty()) return false;
    const Job& job = lines_[r].front();
    const std::vector<Rank>& members = graph_->members(job.stage);
    return members.front() == r && std::all_of(members.begin(), members.end(), [&](Rank m) {
             if (lines_[m].empty()) return false;
             const Job& other = lines_[m].front();
             return std::tie(other.kind, other.stage, other.step) == std::tie(job.kind, job.stage, job.step);
           });
  }
  void EndCollective(Rank r) {
    for (const Rank m : graph_->members(lines_[r].front().stage)) {
      reported_.push_back({m, lines_[m].front()});
      over_.insert(lines_[m].front());
      if (m != r) lines_[m].pop_front();
    }
    lines_[r].pop_front();
  }
  void Tell(size_t i) {
    const auto [rank, job] = reported_[i];
    reported_.erase(reported_.begin() + static_cast<int64_t>(i));
    Do(rank, [&, rank = rank, job = job](WorkerCore& c, WorkerEffects* out) {
      c.OnJointOperationDone(now_, rank, job, out);
    });
  }

  const WorkerCore::RunShape shape_;
  std::mt19937_64 rng_;
  const bool launches_;
  std::unique_ptr<Graph> graph_;
  std::vector<std::unique_ptr<WorkerCore>> cores_;
  std::vector<StartEffect> running_;
  std::vector<std::deque<StartEffect>> launched_;
  std::vector<std::deque<Job>> lines_;
  std::vector<std::pair<Rank, Job>> reported_;         // over, and the core has not heard of it
  std::map<TensorKey, std::optional<Job>> published_;  // and by which job, while that may be launched only
  std::set<TensorKey> wanted_;
  std::set<Job> ended_, over_, completed_;
  std::vector<std::vector<Job>> begun_;
  std::map<Rank, int> put_together_;  // jobs whose weights are, or are being
  int64_t now_ = 10;
  int failures_ = 0;
  bool wants_weights_ = false;
};

WorkerCore::RunShape Draw(uint64_t seed, std::string* text) {
  std::mt19937_64 rng(seed);
  const auto pick = [&](int from, int to) { return from + static_cast<int>(rng() % (to - from + 1)); };
  int stages = pick(1, 5), microbatches = pick(1, 6);
  std::map<std::string, std::string> parameters;
  const std::string name = std::vector<std::string>{"ddp", "lpp", "dualpipe", "custom", "fsdp"}[pick(0, 4)];
  if (name == "lpp") {
    parameters = {{"groups", absl::StrCat(pick(1, microbatches))}, {"ranks", absl::StrCat(pick(1, stages))}};
  } else if (name == "dualpipe") {
    stages = 2 * pick(1, 2);
    microbatches = 2 * stages + 2 * pick(0, 1);
  } else if (name == "fsdp") {
    parameters = {{"shard", "width"}};
  } else if (name == "custom") {
    parameters = {{"workers", absl::StrCat(pick(1, 4))},
                  {"compute", absl::StrCat("(", pick(0, 3), "*s + ", pick(0, 3), "*b) % W")}};
  }
  auto scheme = MakeSchedule(name, parameters, stages, microbatches);
  EXPECT_TRUE(scheme.ok()) << scheme.status();
  RunTerms terms;
  terms.takes_norm = seed % 3 == 0;
  const int staleness = name == "dualpipe" ? 0 : pick(0, 1);
  if (staleness > 0) scheme->staleness = [staleness](int, int) { return staleness; };
  *text = absl::StrCat("seed ", seed, ": ", name, " S=", stages, " B=", microbatches,
                       " staleness=", staleness, terms.takes_norm ? ", clips" : "");
  const int first_step = pick(0, 2);
  const int steps = pick(1, 4);
  RunSchedule schedule(*std::move(scheme), std::move(terms));
  // The tables are of the schedule without collectives, as a process makes them when it parses the run.
  auto tables = CheckedTables(schedule);
  EXPECT_TRUE(tables.ok()) << tables.status();
  return {std::move(schedule), first_step + steps, first_step, *std::move(tables)};
}

class WorkerCollectives : public ::testing::TestWithParam<uint64_t> {};

TEST_P(WorkerCollectives, AnyOrderOfEvents_EveryJobEndsAndAllBeginInOneOrder) {
  std::string text;
  const WorkerCore::RunShape shape = Draw(GetParam(), &text);
  for (const int launch_ahead : {1, 3}) {
    SCOPED_TRACE(absl::StrCat(text, ", launch ahead ", launch_ahead));
    Cores cores(shape, GetParam() * 31, launch_ahead);
    cores.Run();
    EXPECT_EQ(cores.failures(), 0);
    EXPECT_EQ(cores.completed().size(),
              static_cast<size_t>(cores.graph().jobs_per_step()) * (shape.steps - shape.first_step));
    const Graph& graph = cores.graph();
    for (const std::vector<Job>& begun : cores.begun()) {
      for (size_t i = 1; i < begun.size(); ++i)
        EXPECT_EQ(graph.joint_order().Before(begun[i]), begun[i - 1]) << Describe(begun[i]);
    }
    // Versions that are not read any more are not kept.
    for (Rank r = 0; r < graph.schedule().ranks; ++r) {
      int most = 0;
      for (int s = 0; s < graph.schedule().stages; ++s) most = std::max(most, MaxVersions(graph, s, r));
      EXPECT_LE(cores.core(r).peak_weight_versions(r), most) << "rank " << r;
    }
    EXPECT_FALSE(graph.joint_order().gathers() && cores.wants_weights());
  }
}

std::vector<uint64_t> Seeds() {
  if (const char* one = std::getenv("WEFT_SEED")) return {std::strtoull(one, nullptr, 10)};
  std::vector<uint64_t> seeds(120);
  for (size_t i = 0; i < seeds.size(); ++i) seeds[i] = i + 1;
  return seeds;
}
INSTANTIATE_TEST_SUITE_P(Seeds, WorkerCollectives, ::testing::ValuesIn(Seeds()));

// Rank 1 of two.
Assign AssignOf(uint64_t run, uint64_t epoch) {
  Assign a;
  a.run = run;
  a.epoch = epoch;
  a.reduction_mode = ReductionMode::kFast;
  a.process_of_rank = {0, 1};
  a.leases = {{1, {epoch, 1}}};
  return a;
}

class OneCore : public ::testing::Test {
 protected:
  template <typename T>
  std::vector<T> Only() const {
    std::vector<T> found;
    for (const WorkerEffect& e : out_) {
      if (const auto* t = std::get_if<T>(&e)) found.push_back(*t);
    }
    return found;
  }
  WorkerEffects out_;
  WorkerCore core_{[](const std::string&) -> absl::StatusOr<WorkerCore::RunShape> {
    return WorkerCore::RunShape{WithoutTerms(*MakeSchedule("ddp", {}, 2, 2)), 1};
  }};
};

TEST_F(OneCore, Assigned_ItsGroupsAreToBeJoinedAndItsStagesSumTheirOwn) {
  core_.OnMessage(1, AssignOf(kRun, kEpoch), &out_);
  const auto prepare = Only<PrepareEffect>();
  ASSERT_EQ(prepare.size(), 1u);
  ASSERT_EQ(prepare[0].groups.size(), 1u);
  EXPECT_THAT(prepare[0].groups[0].members, ElementsAre(0, 1));
  EXPECT_EQ(prepare[0].groups[0].self, 1);
  for (const auto& stage : prepare[0].stages) EXPECT_TRUE(stage.sums_own);
}

TEST(Gathers, OfTwoRanks_AreBegunTwoJobsAheadAndBehindTheReducesOfTheStepBefore) {
  Cores cores({WithoutTerms(*MakeSchedule("fsdp", {{"shard", "width"}}, 2, 2)), 2}, 1, 1);
  cores.Run();
  std::vector<std::string> begun;
  for (const Job& job : cores.begun().at(1))
    begun.push_back(absl::StrCat(JobKindName(job.kind), " ", job.stage, " of ", job.step));
  EXPECT_THAT(begun, ElementsAre("forward 0 of 0", "forward 1 of 0", "backward 1 of 0", "backward 0 of 0",
                                 "reduce 1 of 0", "reduce 0 of 0", "forward 0 of 1", "forward 1 of 1",
                                 "backward 1 of 1", "backward 0 of 1", "reduce 1 of 1", "reduce 0 of 1"));
}

// The device computes one job while it has the next, whatever is being gathered for those behind.
TEST(Gathers, UnderWay_LeaveTheDeviceItsJobsAhead) {
  WorkerCore core(
      [](const std::string&) -> absl::StatusOr<WorkerCore::RunShape> {
        return WorkerCore::RunShape{WithoutTerms(*MakeSchedule("fsdp", {{"shard", "width"}}, 4, 2)), 1};
      },
      /*launch_ahead=*/2);
  WorkerEffects out;
  core.OnMessage(1, AssignOf(kRun, kEpoch), &out);
  core.OnPrepared(2, &out);
  const auto forward = [](int stage) { return Job::Compute(0, stage, 1, JobKind::kForward); };
  core.OnMessage(3, Grant{kRun, 1, {kEpoch, 1}, {forward(0), forward(1), forward(2), forward(3)}}, &out);
  // Gives what the rank starts to the device, which does nothing yet.
  const auto launched = [&] {
    std::vector<std::string> started;
    while (!out.empty()) {
      const WorkerEffect effect = std::exchange(out, {}).back();
      const auto* start = std::get_if<StartEffect>(&effect);
      if (start == nullptr) break;
      started.push_back(absl::StrCat(start->last() ? "forward " : "gather ", start->job.stage));
      core.OnJobLaunched(4, 1, start->job, start->last(), {}, &out);
    }
    return started;
  };
  EXPECT_THAT(launched(), ElementsAre("gather 0", "gather 1"));
  core.OnJointOperationDone(5, 1, forward(1), &out);
  core.OnJointOperationDone(5, 1, forward(0), &out);
  EXPECT_THAT(launched(), ElementsAre("forward 0", "gather 2", "forward 1", "gather 3"));
  core.OnJointOperationDone(6, 1, forward(2), &out);
  EXPECT_THAT(launched(), ElementsAre()) << "two that compute are with the device";
}

TEST_F(OneCore, AssignedWithoutCollectives_HasNoGroups) {
  Assign assign = AssignOf(kRun, kEpoch);
  assign.reduction_mode = ReductionMode::kOrdered;
  core_.OnMessage(1, assign, &out_);
  EXPECT_TRUE(Only<PrepareEffect>().at(0).groups.empty());
  EXPECT_FALSE(Only<PrepareEffect>().at(0).stages.at(0).sums_own);
}

TEST_F(OneCore, TwoRanksOfOneProcess_AreRefused) {
  Assign assign = AssignOf(kRun, kEpoch);
  assign.leases = {{0, {1, 1}}, {1, {1, 2}}};
  core_.OnMessage(1, assign, &out_);
  const auto sent = Only<SendEffect>();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_THAT(std::get<Failed>(sent[0].message).reason, HasSubstr("a process for each rank"));
}

TEST_F(OneCore, IdOfAGroup_IsTakenForThePresentAttemptAlone) {
  core_.OnMessage(1, AssignOf(kRun, kEpoch), &out_);
  out_.clear();
  core_.OnMessage(2, GroupId{kRun, kEpoch, 0, "id"}, &out_);
  ASSERT_EQ(Only<JoinEffect>().size(), 1u);
  EXPECT_EQ(Only<JoinEffect>()[0].id, "id");
  core_.OnMessage(3, GroupId{kRun, kEpoch - 1, 0, "late"}, &out_);
  core_.OnMessage(4, GroupId{kRun + 1, kEpoch, 0, "foreign"}, &out_);
  EXPECT_EQ(Only<JoinEffect>().size(), 1u);
  EXPECT_EQ(core_.stale_grants(), 2u);
}

TEST_F(OneCore, IdMadeHere_IsSentWithRunAndEpoch) {
  core_.OnMessage(1, AssignOf(kRun, kEpoch), &out_);
  out_.clear();
  core_.OnGroupId(0, "made", &out_);
  const auto id = std::get<GroupId>(Only<SendEffect>().at(0).message);
  EXPECT_EQ(id.run, kRun);
  EXPECT_EQ(id.epoch, kEpoch);
  EXPECT_EQ(id.bytes, "made");
}

TEST_F(OneCore, IdOfTheNextRun_WaitsForIt) {
  core_.OnMessage(1, AssignOf(kRun, kEpoch), &out_);
  core_.OnMessage(2, Abort{kRun, "no more"}, &out_);
  ASSERT_EQ(Only<ForgetEffect>().size(), 1u);
  core_.OnMessage(3, AssignOf(kRun + 1, kEpoch + 1), &out_);
  core_.OnMessage(4, GroupId{kRun + 1, kEpoch + 1, 0, "next"}, &out_);
  EXPECT_TRUE(Only<JoinEffect>().empty());
  core_.Forget(5, &out_);
  ASSERT_EQ(Only<JoinEffect>().size(), 1u);
  EXPECT_EQ(Only<JoinEffect>()[0].id, "next");
  EXPECT_EQ(core_.stale_grants(), 0u);
}

}  // namespace
}  // namespace weft::worker_collectives_test
