// Every message: value to protobuf to bytes and back; and what must be refused.
#include <gmock/gmock.h>
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "base/net/address.h"
#include "proto/wire/limits.h"
#include "proto/wire/runs_codec.h"
#include "proto/wire/session_codec.h"
#include "proto/wire/stream_end.h"

namespace weft::wire_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

FromWorker RoundTrip(const FromWorker& m) {
  v1::WorkerPayload out, in;
  wire::Encode(m, &out);
  EXPECT_TRUE(in.ParseFromString(out.SerializeAsString()));
  const absl::StatusOr<FromWorker> back = wire::Decode(in);
  EXPECT_TRUE(back.ok()) << back.status();
  return back.value_or(FromWorker{});
}
FromCoordinator RoundTrip(const FromCoordinator& m) {
  v1::CoordinatorPayload out, in;
  wire::Encode(m, &out);
  EXPECT_TRUE(in.ParseFromString(out.SerializeAsString()));
  const absl::StatusOr<FromCoordinator> back = wire::Decode(in);
  EXPECT_TRUE(back.ok()) << back.status();
  return back.value_or(FromCoordinator{});
}

RankReport SomeReport() {
  RankReport r;
  r.rank = 3;
  r.busy_seconds = {{"forward", 1.5}, {"backward", 2.5}};
  r.idle_seconds = {{"dependency", 0.25}};
  r.live_bytes = {{"weights", 7}};
  r.activation_bytes = {{0, 5}, {65535, 1ll << 33}};
  r.job_bytes = {{JobKind::kForward, 0, {1, 2, 3, 4, 5, 6}}, {JobKind::kUpdate, 65535, {0, 0, 5, -6, -7, 8}}};
  r.gpu = {{"utilization", 0.875}, {"temperature_celsius", 63}};
  r.peak_bytes = {{"activations", 1ll << 40}};
  r.bytes_sent = {{"activation", 11}};
  r.bytes_received = {{"input_gradient", 13}};
  r.peak_activations = 4;
  r.peak_weight_versions = 2;
  r.most_bytes = int64_t{5} << 40;
  r.wall_seconds = 4.25;
  r.idle_spans = {{IdleCause::kLimit, 1ll << 50, (1ll << 50) + 7}, {IdleCause::kNoWork, 5, 5}};
  r.transfer_spans = {{65535, TensorKind::kState, Job::Update(4, 3, 2), 100, 0, 101, 1ll << 40},
                      {0, TensorKind::kActivation, Job::Compute(1, 2, 3, JobKind::kForward), 90, 95, 99}};
  return r;
}
void ExpectEqual(const RankReport& a, const RankReport& b) {
  EXPECT_EQ(a.rank, b.rank);
  EXPECT_EQ(a.busy_seconds, b.busy_seconds);
  EXPECT_EQ(a.idle_seconds, b.idle_seconds);
  EXPECT_EQ(a.live_bytes, b.live_bytes);
  EXPECT_EQ(a.activation_bytes, b.activation_bytes);
  EXPECT_EQ(a.job_bytes, b.job_bytes);
  EXPECT_EQ(a.gpu, b.gpu);
  EXPECT_EQ(a.peak_bytes, b.peak_bytes);
  EXPECT_EQ(a.bytes_sent, b.bytes_sent);
  EXPECT_EQ(a.bytes_received, b.bytes_received);
  EXPECT_EQ(a.peak_activations, b.peak_activations);
  EXPECT_EQ(a.peak_weight_versions, b.peak_weight_versions);
  EXPECT_EQ(a.most_bytes, b.most_bytes);
  EXPECT_EQ(a.wall_seconds, b.wall_seconds);
  EXPECT_EQ(a.idle_spans, b.idle_spans);
  EXPECT_EQ(a.transfer_spans, b.transfer_spans);
}

const std::vector<Job> kJobs = {Job::Compute(0, 0, 0, JobKind::kForward),
                                Job::Compute(7, 3, 1000, JobKind::kBackward),
                                Job::Compute(6, 2, 5, JobKind::kBackwardInput),
                                Job::Compute(1 << 29, 65535, 9, JobKind::kBackwardWeight),
                                Job::Reduce(2, 1, 3),
                                Job::Update(3, 0, 0)};

TEST(SessionCodec, SpansThatAreNone_AreRefused) {
  v1::RankReport good;
  wire::Encode(SomeReport(), &good);
  const auto refused = [&](auto change) {
    v1::RankReport bad = good;
    change(bad);
    EXPECT_EQ(wire::Decode(bad).status().code(), absl::StatusCode::kInvalidArgument)
        << bad.ShortDebugString();
  };
  ASSERT_TRUE(wire::Decode(good).ok());
  v1::RankReport without_bytes = good;  // of a worker that does not count them
  without_bytes.mutable_transfer_spans()->clear_bytes();
  ASSERT_TRUE(wire::Decode(without_bytes).ok());
  EXPECT_EQ(wire::Decode(without_bytes)->transfer_spans[0].bytes, 0);
  refused([](auto& r) { r.mutable_idle_spans()->mutable_cause()->at(0) = kIdleCauses; });
  refused([](auto& r) { r.mutable_idle_spans()->add_start_ns(1); });
  refused([](auto& r) { r.mutable_idle_spans()->set_start_ns(0, INT64_MIN); });
  refused([](auto& r) { r.mutable_idle_spans()->set_duration_ns(0, UINT64_MAX); });
  refused([](auto& r) { r.mutable_idle_spans()->set_start_ns(1, INT64_MIN + 1); });
  refused([](auto& r) { r.mutable_transfer_spans()->mutable_tensor()->at(1) = kTensorKinds; });
  refused([](auto& r) { r.mutable_transfer_spans()->set_from(0, 1u << 20); });
  refused([](auto& r) { r.mutable_transfer_spans()->add_made_ns(0); });
  refused([](auto& r) { r.mutable_transfer_spans()->clear_consumers(); });
  refused([](auto& r) { r.mutable_transfer_spans()->add_bytes(0); });
  refused([](auto& r) { r.mutable_transfer_spans()->set_bytes(0, UINT64_MAX); });
  refused([](auto& r) { r.mutable_transfer_spans()->set_wanted_ns(1, INT64_MAX); });
}

TEST(SessionCodec, Hello_RoundTrip_IsEqual) {
  const auto m = std::get<Hello>(RoundTrip(
      FromWorker(Hello{"worker-1", "host a", 4711, -1, std::string("\0\xff opaque", 9), "cuda", "GPU-4711",
                       "nccl 2.28.3", "large", true, true, "boot 7", "node 3", "0.1.0", "UCX 1.19.0"})));
  EXPECT_EQ(m.pool, "large");
  EXPECT_TRUE(m.returns && m.tells_spans);
  EXPECT_EQ(m.clock, "boot 7");
  EXPECT_EQ(m.node, "node 3");
  EXPECT_EQ(m.release, "0.1.0");
  EXPECT_EQ(m.libraries, "UCX 1.19.0");
  EXPECT_EQ(m.device, "cuda");
  EXPECT_EQ(m.device_id, "GPU-4711");
  EXPECT_EQ(m.reduction_library, "nccl 2.28.3");
  EXPECT_EQ(m.worker, "worker-1");
  EXPECT_EQ(m.host, "host a");
  EXPECT_EQ(m.pid, 4711);
  EXPECT_EQ(m.process, -1);
  EXPECT_EQ(m.address, std::string("\0\xff opaque", 9));
}

TEST(SessionCodec, Reattach_RoundTrip_IsEqual) {
  const Reattach sent{9,
                      5,
                      "abc-1",
                      12,
                      10,
                      -1,
                      {{3, {5, 8}, 64, 700}, {4, {5, 9}, 0, 0}},
                      {{11, true, false, true, false}, {13, false, false, false, false}},
                      {10, 11}};
  const auto m = std::get<Reattach>(RoundTrip(FromWorker(sent)));
  EXPECT_EQ(m.run, 9u);
  EXPECT_EQ(m.epoch, 5u);
  EXPECT_EQ(m.run_id, "abc-1");
  EXPECT_EQ(std::tie(m.ended, m.sealed, m.validated), std::tie(sent.ended, sent.sealed, sent.validated));
  ASSERT_EQ(m.ranks.size(), 2u);
  EXPECT_EQ(m.ranks[0].rank, 3);
  EXPECT_EQ(m.ranks[0].token, (Token{5, 8}));
  EXPECT_EQ(m.ranks[0].credit, 64);
  EXPECT_EQ(m.ranks[0].granted, 700);
  ASSERT_EQ(m.snapshots.size(), 2u);
  EXPECT_EQ(m.snapshots[0].step, 11);
  EXPECT_TRUE(m.snapshots[0].seal && m.snapshots[0].validate);
  EXPECT_FALSE(m.snapshots[0].drop || m.snapshots[0].passing || m.snapshots[1].seal);
  EXPECT_EQ(m.validations, (std::vector<int32_t>{10, 11}));
  EXPECT_TRUE(std::get<Settled>(RoundTrip(FromCoordinator(Settled{9, 5, 12, 10, -1}))) ==
              (Settled{9, 5, 12, 10, -1}));
  Hello hello{"w", "h"};
  hello.returns = true;
  EXPECT_TRUE(std::get<Hello>(RoundTrip(FromWorker(hello))).returns);
}

TEST(SessionCodec, WrongReattach_IsRefused) {
  v1::WorkerPayload wire;
  wire::Encode(FromWorker(Reattach{9, 5, "a", 0, -1, -1, {{3, {5, 8}, 64, 700}}, {{11}}, {10}}), &wire);
  const auto refused = [&](const std::function<void(v1::Reattach&)>& change) {
    v1::WorkerPayload changed = wire;
    change(*changed.mutable_reattach());
    EXPECT_TRUE(absl::IsInvalidArgument(wire::Decode(changed).status())) << changed.DebugString();
  };
  refused([](auto& r) { r.add_rank(4); });
  refused([](auto& r) { r.set_rank(0, 1u << 20); });
  refused([](auto& r) { r.set_credit(0, 1u << 20); });
  refused([](auto& r) { r.set_granted(0, UINT64_MAX); });
  refused([](auto& r) { r.add_snapshot(12); });
  refused([](auto& r) { r.set_snapshot(0, UINT32_MAX); });
  refused([](auto& r) { r.set_asked(std::string(1, 16)); });
  refused([](auto& r) { r.set_validation(0, UINT32_MAX); });
  refused([](auto& r) { r.set_ended(UINT32_MAX); });
  refused([](auto& r) { r.set_sealed(-2); });
  refused([](auto& r) { r.set_run_id("Not A Name"); });
}

TEST(SessionCodec, Copies_RoundTrip_AreEqual) {
  const std::vector<StatePart> parts = {{0, 0}, {3, 7}};
  const auto held = std::get<CopiesHeld>(RoundTrip(FromWorker(CopiesHeld{9, 5, 12, parts})));
  EXPECT_EQ(held.run, 9u);
  EXPECT_EQ(held.epoch, 5u);
  EXPECT_EQ(held.step, 12);
  EXPECT_EQ(held.parts, parts);
  const auto drop = std::get<DropCopies>(RoundTrip(FromCoordinator(DropCopies{9, 5, 12})));
  EXPECT_EQ(drop.run, 9u);
  EXPECT_EQ(drop.epoch, 5u);
  EXPECT_EQ(drop.step, 12);
  Assign assign;
  assign.process_of_rank = {0};
  assign.copies = true;
  assign.copies_epoch = 4;
  assign.kept = {{{0, 0}, 2}, {{3, 7}, 1}};
  const auto back = std::get<Assign>(RoundTrip(FromCoordinator(assign)));
  EXPECT_TRUE(back.copies);
  EXPECT_EQ(back.copies_epoch, 4u);
  ASSERT_EQ(back.kept.size(), 2u);
  EXPECT_EQ(back.kept[1].part, (StatePart{3, 7}));
  EXPECT_EQ(back.kept[1].process, 1);
}

TEST(SessionCodec, CopiesThatAreNone_AreRefused) {
  v1::WorkerPayload held;
  held.mutable_copies_held()->add_stage(1);
  EXPECT_EQ(wire::Decode(held).status().code(), absl::StatusCode::kInvalidArgument);
  held.mutable_copies_held()->add_part(1u << 20);
  EXPECT_EQ(wire::Decode(held).status().code(), absl::StatusCode::kInvalidArgument);
  v1::CoordinatorPayload assign;
  assign.mutable_assign()->add_kept_process(1);
  EXPECT_EQ(wire::Decode(assign).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SessionCodec, GroupId_RoundTrip_IsEqualBothWays) {
  const GroupId id{9, 5, 3, std::string("\0\xff opaque", 9)};
  for (const GroupId& back :
       {std::get<GroupId>(RoundTrip(FromWorker(id))), std::get<GroupId>(RoundTrip(FromCoordinator(id)))}) {
    EXPECT_EQ(back.run, 9u);
    EXPECT_EQ(back.epoch, 5u);
    EXPECT_EQ(back.group, 3);
    EXPECT_EQ(back.bytes, id.bytes);
  }
}

TEST(SessionCodec, EndOfARunAndItsStalls_RoundTrip_AreEqual) {
  EXPECT_EQ(std::get<Forgotten>(RoundTrip(FromWorker(Forgotten{9}))).run, 9u);
  const auto stalled = std::get<Stalled>(RoundTrip(FromWorker(Stalled{9, "waiting for activation"})));
  EXPECT_EQ(stalled.run, 9u);
  EXPECT_EQ(stalled.reason, "waiting for activation");
  EXPECT_EQ(std::get<Stalled>(RoundTrip(FromWorker(Stalled{9, ""}))).reason, "");
}

TEST(SessionCodec, LogLines_RoundTrip_AreEqualAndOnOneLine) {
  LogLines lines{9, {{LogSeverity::kWarning, 5, "slow"}, {LogSeverity::kError, 6, "two\nlines"}}};
  const auto back = std::get<LogLines>(RoundTrip(FromWorker(lines)));
  EXPECT_EQ(back.run, 9u);
  lines.lines[1].text = "two\\nlines";
  EXPECT_EQ(back.lines, lines.lines);
}

TEST(SessionCodec, LogLines_OfUnknownSeverity_AreRefused) {
  v1::WorkerPayload out;
  wire::Encode(FromWorker(LogLines{9, {{LogSeverity::kInfo, 5, "slow"}}}), &out);
  out.mutable_log_lines()->mutable_lines(0)->set_severity(3);
  EXPECT_TRUE(absl::IsInvalidArgument(wire::Decode(out).status()));
}

TEST(RunsCodec, PartOfALog_RoundTrip_IsEqual) {
  RunLogPart part;
  part.lines = {{0, 7, -1, "coordinator", {}, {LogSeverity::kInfo, 5, "it runs"}},
                {0, 8, 1, "process 1 (w)", {2, 3}, {LogSeverity::kWarning, 6, "slow"}}};
  part.last = 9;
  part.dropped = 4;
  part.more = part.ended = true;
  v1::LogsResponse out;
  wire::Encode(part, &out);
  const auto back = wire::Decode(out);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->lines, part.lines);
  EXPECT_EQ(back->last, 9u);
  EXPECT_EQ(back->dropped, 4u);
  EXPECT_TRUE(back->more && back->ended);
}

RunWaits SomeWaits() {
  RunWaits waits{3, "tiny", RunState::kRunning, "", 5};
  const Job job = Job::Compute(4, 1, 0, JobKind::kForward);
  waits.roots = {{"silent", -1, 1, std::nullopt, 9, "process 1 (w) has said nothing for 9 s"},
                 {"job", 2, 2, Job::Reduce(4, 1, 3), 7, "rank 2 computes"}};
  waits.ranks = {{0, 0, "waits", job, 5, MissingInput{TensorKind::kActivation, job, 1}, 1, 0, {1}},
                 {1, 1, "silent", std::nullopt, 9, std::nullopt, 0, 0},
                 {2, 2, "computes", Job::Reduce(4, 1, 3), 7}};
  return waits;
}

TEST(RunsCodec, WaitsOfARun_RoundTrip_AreEqual) {
  v1::WaitsResponse out;
  wire::Encode(SomeWaits(), &out);
  const auto back = wire::Decode(out);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, SomeWaits());
}

TEST(RunsCodec, WaitsOfAFaultyCoordinator_AreRefused) {
  v1::WaitsResponse good;
  wire::Encode(SomeWaits(), &good);
  const auto refused = [&](const auto& change) {
    v1::WaitsResponse bad = good;
    change(bad);
    return wire::Decode(bad).status().code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](auto& w) { w.mutable_ranks(0)->set_root(2); }));
  EXPECT_TRUE(refused([](auto& w) { w.mutable_ranks(0)->mutable_job()->set_stage(kMaxStages); }));
  EXPECT_TRUE(refused([](auto& w) { w.mutable_ranks(0)->mutable_job()->set_kind("forwards"); }));
  EXPECT_TRUE(refused([](auto& w) { w.mutable_ranks(0)->add_chain(1 << 20); }));
  EXPECT_TRUE(refused([](auto& w) {
    for (int i = 0; i < kMostOfChain; ++i) w.mutable_ranks(0)->add_chain(0);
  }));
  EXPECT_TRUE(refused([](auto& w) { w.mutable_ranks(0)->set_tensor("none"); }));
  EXPECT_TRUE(refused([](auto& w) { w.mutable_ranks(0)->mutable_job()->set_kind("sleep"); }));
  EXPECT_TRUE(refused([](auto& w) { w.mutable_ranks(0)->set_does("a\nb"); }));
  EXPECT_TRUE(refused([](auto& w) { w.mutable_roots(0)->set_process(1 << 20); }));
  EXPECT_TRUE(refused([](auto& w) { w.set_state(v1::RUN_STATE_UNSPECIFIED); }));
}

TEST(RunsCodec, WorkerWithJobs_RoundTrip_IsEqual) {
  WorkerInfo worker{1, "w", "host", 42, "cpu", "silent", 3, 100};
  worker.jobs = {{2, Job::Compute(4, 1, 0, JobKind::kForward), 900}, {3, Job::Update(4, 2, 1), 0}};
  v1::Worker out;
  wire::Encode(worker, &out);
  const auto back = wire::Decode(out);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->jobs, worker.jobs);
  EXPECT_EQ(back->state, "silent");
}

TEST(SessionCodec, GroupId_TooLong_IsRefused) {
  v1::WorkerPayload out;
  wire::Encode(FromWorker(GroupId{9, 5, 3, std::string(1 << 16, 'x')}), &out);
  EXPECT_EQ(wire::Decode(out).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SessionCodec, PreparedCreditFailed_RoundTrip_AreEqual) {
  EXPECT_EQ(std::get<Prepared>(RoundTrip(FromWorker(Prepared{9}))).run, 9u);
  const auto credit = std::get<Credit>(RoundTrip(FromWorker(Credit{9, 2, {5, 6}, 64})));
  EXPECT_EQ(credit.run, 9u);
  EXPECT_EQ(credit.rank, 2);
  EXPECT_EQ(credit.token, (Token{5, 6}));
  EXPECT_EQ(credit.jobs, 64);
  const auto failed = std::get<Failed>(RoundTrip(FromWorker(Failed{9, "out of memory"})));
  EXPECT_EQ(failed.run, 9u);
  EXPECT_EQ(failed.reason, "out of memory");
  EXPECT_EQ(failed.link_to, -1);
  const auto link = std::get<Failed>(RoundTrip(FromWorker(Failed{9, "process 3 does not answer", 3})));
  EXPECT_EQ(link.link_to, 3);
}

TEST(SessionCodec, Leaving_RoundTrip_IsEqual) {
  EXPECT_EQ(std::get<Leaving>(RoundTrip(FromWorker(Leaving{"SIGTERM"}))).reason, "SIGTERM");
}

TEST(SessionCodec, FailedForALostDevice_RoundTrip_SaysSo) {
  for (const bool lost : {false, true})
    EXPECT_EQ(std::get<Failed>(RoundTrip(FromWorker(Failed{9, "", -1, -1, -1, lost}))).device_lost, lost);
}

TEST(SessionCodec, JobsThatRun_RoundTrip_AreEqual) {
  Report report{9, {SomeReport()}};
  for (size_t i = 0; i < kJobs.size(); ++i)
    report.running.push_back({static_cast<Rank>(i * 13107), kJobs[i], int64_t{900'000'000'000} << i});
  EXPECT_EQ(std::get<Report>(RoundTrip(FromWorker(report))).running, report.running);
}

template <typename Change>
void ExpectRefused(const Report& report, const Change& change) {
  v1::WorkerPayload out;
  wire::Encode(FromWorker(report), &out);
  change(out.mutable_report());
  EXPECT_TRUE(absl::IsInvalidArgument(wire::Decode(out).status()));
}

TEST(SessionCodec, JobsThatRunOutOfRange_AreRefused) {
  const Report report{1, {}, {{3, kJobs[0], 5}, {4, kJobs[1], 6}}};
  const auto refuse = [&](const auto& change) { ExpectRefused(report, change); };
  refuse([](v1::Report* r) { r->set_running_rank(1, 1 << 16); });
  refuse([](v1::Report* r) { r->set_running_age_ns(1, uint64_t{1} << 63); });
  refuse([](v1::Report* r) { r->add_running_rank(5); });
  refuse([](v1::Report* r) { r->clear_running_age_ns(); });
  refuse([](v1::Report* r) { r->mutable_running()->set_kind(std::string("\x00\x07", 2)); });
}

TEST(SessionCodec, CollectivesThatRun_RoundTrip_AreEqual) {
  Report report{9, {SomeReport()}};
  for (size_t i = 0; i < kJobs.size(); ++i)
    report.joint_operations.push_back(
        {static_cast<Rank>(i * 13107), kJobs[i], int64_t{900'000'000'000} << i, uint64_t{1} << (8 * i)});
  EXPECT_EQ(std::get<Report>(RoundTrip(FromWorker(report))).joint_operations, report.joint_operations);
}

TEST(SessionCodec, CollectivesThatRunOutOfRange_AreRefused) {
  const Report report{1, {}, {}, {{3, kJobs[0], 5, 7}, {4, kJobs[1], 6, 8}}};
  const auto refuse = [&](const auto& change) { ExpectRefused(report, change); };
  refuse([](v1::Report* r) { r->set_joint_operation_rank(1, 1 << 16); });
  refuse([](v1::Report* r) { r->set_joint_operation_age_ns(1, uint64_t{1} << 63); });
  refuse([](v1::Report* r) { r->set_joint_operation_bytes(1, uint64_t{1} << 63); });
  refuse([](v1::Report* r) { r->add_joint_operation_rank(5); });
  refuse([](v1::Report* r) { r->clear_joint_operation_age_ns(); });
  refuse([](v1::Report* r) { r->clear_joint_operation_bytes(); });
  refuse([](v1::Report* r) { r->mutable_joint_operations()->set_kind(std::string("\x00\x07", 2)); });
}

TEST(SessionCodec, FailedLinkToAnImpossibleProcess_IsRefused) {
  v1::WorkerPayload out;
  wire::Encode(FromWorker(Failed{9, "", 1 << 14}), &out);
  EXPECT_EQ(wire::Decode(out).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SessionCodec, FailedForADamagedCheckpoint_RoundTrip_KeepsItsStep) {
  for (const int32_t step : {0, 40})
    EXPECT_EQ(std::get<Failed>(RoundTrip(FromWorker(Failed{9, "", -1, step}))).damaged_checkpoint, step);
  v1::WorkerPayload out;
  out.mutable_failed()->set_damaged_checkpoint(uint32_t{1} << 31);
  EXPECT_THAT(std::string(wire::Decode(out).status().message()), HasSubstr("failed.damaged_checkpoint"));
}

TEST(SessionCodec, AssignOfARunWithSuspects_RoundTrip_KeepsTheWatchedSteps) {
  Assign assign;
  assign.watched_before = 41;
  EXPECT_EQ(std::get<Assign>(RoundTrip(FromCoordinator(assign))).watched_before, 41);
}

TEST(SessionCodec, FailedForANumberThatIsNotFinite_RoundTrip_KeepsItsStep) {
  for (const int32_t step : {-1, 0, 40}) {
    EXPECT_EQ(std::get<Failed>(RoundTrip(FromWorker(Failed{9, "", -1, -1, step}))).non_finite_step, step);
    Assign assign;
    assign.examined_step = step;
    EXPECT_EQ(std::get<Assign>(RoundTrip(FromCoordinator(assign))).examined_step, step);
  }
  v1::WorkerPayload out;
  out.mutable_failed()->set_non_finite_step(uint32_t{1} << 31);
  EXPECT_THAT(std::string(wire::Decode(out).status().message()), HasSubstr("failed.non_finite_step"));
}

TEST(SessionCodec, Completions_RoundTrip_AreEqual) {
  Completions m{9, 2, {5, 6}, {}};
  int64_t start = 1'000'000'000'000'000;
  for (const Job& job : kJobs) {
    m.jobs.push_back({job, start, start + 250'000, 0, false});
    start -= 7;  // not ascending
  }
  m.jobs[1].has_loss = true;
  m.jobs[1].loss = -0.125;
  m.jobs[5].has_loss = true;
  m.jobs[5].loss = std::numeric_limits<double>::quiet_NaN();
  m.jobs[4].gradient_norm = 0.75;
  m.jobs[3].delay_ns = 12'345'678;
  const auto back = std::get<Completions>(RoundTrip(FromWorker(m)));
  EXPECT_EQ(back.run, 9u);
  EXPECT_EQ(back.rank, 2);
  EXPECT_EQ(back.token, m.token);
  ASSERT_EQ(back.jobs.size(), m.jobs.size());
  for (size_t i = 0; i < m.jobs.size(); ++i) {
    EXPECT_EQ(back.jobs[i].job, m.jobs[i].job);
    EXPECT_EQ(back.jobs[i].start_ns, m.jobs[i].start_ns);
    EXPECT_EQ(back.jobs[i].end_ns, m.jobs[i].end_ns);
    EXPECT_EQ(back.jobs[i].has_loss, m.jobs[i].has_loss);
    EXPECT_EQ(back.jobs[i].gradient_norm, m.jobs[i].gradient_norm);
    EXPECT_EQ(back.jobs[i].delay_ns, m.jobs[i].delay_ns);
  }
  EXPECT_EQ(back.jobs[1].loss, -0.125);
  EXPECT_TRUE(std::isnan(back.jobs[5].loss)) << "a loss that is not a number is news, not an error";
}

TEST(SessionCodec, Completions_WithHashesOfSomeJobs_AreEqual) {
  Completions m{9, 2, {5, 6}, {}};
  for (const Job& job : kJobs) m.jobs.push_back({job, 1, 2, 0, false});
  m.jobs[1].hashes = {{HashedValue::kActivation, false, 0, 0, 1, 0xffffffffffffffff},
                      {HashedValue::kGradientSum, true, -1, 2, 3, 0}};
  m.jobs[4].hashes = {{HashedValue::kInitialWeights, false, 7, 0, 1, 12}};
  const auto back = std::get<Completions>(RoundTrip(FromWorker(m)));
  ASSERT_EQ(back.jobs.size(), m.jobs.size());
  for (size_t i = 0; i < m.jobs.size(); ++i) EXPECT_EQ(back.jobs[i].hashes, m.jobs[i].hashes) << i;
}
TEST(SessionCodec, Completions_Columns_AreCompact) {
  Completions m{9, 2, {5, 6}, {}};
  for (int i = 0; i < 256; ++i) {
    m.jobs.push_back({Job::Compute(100, 3, i % 64, JobKind::kForward), 10'000'000ll * i,
                      10'000'000ll * i + 300'000, 0, false});
  }
  v1::WorkerPayload out;
  wire::Encode(FromWorker(m), &out);
  EXPECT_LT(out.ByteSizeLong(), 256u * 14);
}

TEST(SessionCodec, ReportAndFinished_RoundTrip_AreEqual) {
  ExpectEqual(std::get<Report>(RoundTrip(FromWorker(Report{9, {SomeReport()}}))).ranks.at(0), SomeReport());
  ExpectEqual(std::get<Finished>(RoundTrip(FromWorker(Finished{9, {SomeReport()}}))).ranks.at(0),
              SomeReport());
}

TEST(SessionCodec, Assign_RoundTrip_IsEqual) {
  const Assign m{9,
                 4,
                 "{\"name\": \"x\"}",
                 "out",
                 {{0, {4, 1}}, {2, {4, 2}}},
                 {0, 1, 0},
                 {{0, "addr0", "process 0"}, {1, "addr1", "process 1"}},
                 ReductionMode::kFast,
                 "fast: the cuda devices sum"};
  const auto back = std::get<Assign>(RoundTrip(FromCoordinator(m)));
  EXPECT_EQ(back.run, m.run);
  EXPECT_EQ(back.epoch, m.epoch);
  EXPECT_EQ(back.spec, m.spec);
  EXPECT_EQ(back.output, m.output);
  ASSERT_EQ(back.leases.size(), 2u);
  EXPECT_EQ(back.leases[1].rank, 2);
  EXPECT_EQ(back.leases[1].token, (Token{4, 2}));
  EXPECT_EQ(back.process_of_rank, m.process_of_rank);
  ASSERT_EQ(back.peers.size(), 2u);
  EXPECT_EQ(back.peers[1].process, 1);
  EXPECT_EQ(back.peers[1].address, "addr1");
  EXPECT_EQ(back.peers[1].label, "process 1");
  EXPECT_EQ(back.reduction_mode, ReductionMode::kFast);
  EXPECT_EQ(back.reduction, m.reduction);
}

TEST(SessionCodec, OtherCoordinatorMessages_RoundTrip_AreEqual) {
  const auto welcome = std::get<Welcome>(RoundTrip(FromCoordinator(Welcome{5, 2})));
  EXPECT_EQ(welcome.epoch, 5u);
  EXPECT_EQ(welcome.process, 2);
  const auto grant = std::get<Grant>(RoundTrip(FromCoordinator(Grant{9, 2, {5, 6}, kJobs})));
  EXPECT_EQ(grant.run, 9u);
  EXPECT_EQ(grant.rank, 2);
  EXPECT_EQ(grant.token, (Token{5, 6}));
  EXPECT_EQ(grant.jobs, kJobs);
  EXPECT_EQ(std::get<Finish>(RoundTrip(FromCoordinator(Finish{9}))).run, 9u);
  const auto abort = std::get<Abort>(RoundTrip(FromCoordinator(Abort{9, "because"})));
  EXPECT_EQ(abort.run, 9u);
  EXPECT_EQ(abort.reason, "because");
  EXPECT_EQ(std::get<Shutdown>(RoundTrip(FromCoordinator(Shutdown{"bye"}))).reason, "bye");
}

TEST(SessionCodec, SpansAndTheQuestionForThem_RoundTrip_AreEqual) {
  EXPECT_EQ(std::get<TellSpans>(RoundTrip(FromCoordinator(TellSpans{9}))).run, 9u);
  const std::vector<IdleSpan> idle = {{IdleCause::kTransfer, 100, 250}, {IdleCause::kMemory, 300, 301}};
  const std::vector<TransferSpan> transfers = {
      {1, TensorKind::kActivation, Job::Compute(4, 2, 0, JobKind::kForward), 100, 120, 250, 4096}};
  const auto spans = std::get<Spans>(RoundTrip(FromWorker(Spans{9, {{2, idle, transfers}, {5, {}, {}}}})));
  EXPECT_EQ(spans.run, 9u);
  ASSERT_EQ(spans.ranks.size(), 2u);
  EXPECT_EQ(spans.ranks[0].rank, 2);
  EXPECT_EQ(spans.ranks[0].idle, idle);
  EXPECT_EQ(spans.ranks[0].transfers, transfers);
  EXPECT_EQ(spans.ranks[1].rank, 5);
  EXPECT_TRUE(spans.ranks[1].idle.empty() && spans.ranks[1].transfers.empty());
  v1::WorkerPayload wrong;
  wrong.mutable_spans()->add_ranks()->set_rank(1 << 20);
  EXPECT_THAT(std::string(wire::Decode(wrong).status().message()), ::testing::HasSubstr("spans.rank"));
}

TEST(SessionCodec, MessagesOfCheckpoints_RoundTrip_AreEqual) {
  const auto take = std::get<TakeSnapshot>(RoundTrip(FromCoordinator(TakeSnapshot{9, 40})));
  EXPECT_EQ(take.run, 9u);
  EXPECT_EQ(take.step, 40);
  const auto seal = std::get<SealCheckpoint>(RoundTrip(FromCoordinator(SealCheckpoint{9, 40, 3, true})));
  EXPECT_EQ(seal.run, 9u);
  EXPECT_EQ(seal.step, 40);
  EXPECT_EQ(seal.keep, 3);
  EXPECT_TRUE(seal.drop);
  EXPECT_FALSE(seal.validate || seal.passing);
  const auto saved = std::get<SnapshotSaved>(RoundTrip(FromWorker(SnapshotSaved{9, 40, "full"})));
  EXPECT_EQ(saved.run, 9u);
  EXPECT_EQ(saved.step, 40);
  EXPECT_EQ(saved.failure, "full");
  const auto sealed = std::get<CheckpointSealed>(RoundTrip(FromWorker(CheckpointSealed{9, 41, ""})));
  EXPECT_EQ(sealed.run, 9u);
  EXPECT_EQ(sealed.step, 41);
  EXPECT_EQ(sealed.failure, "");
  // A step beyond all steps.
  v1::CoordinatorPayload out;
  wire::Encode(FromCoordinator(TakeSnapshot{9, 40}), &out);
  out.mutable_take_snapshot()->set_step(uint32_t{1} << 31);
  EXPECT_THAT(std::string(wire::Decode(out).status().message()), HasSubstr("take_snapshot.step"));
}

TEST(SessionCodec, ReasonThatIsNotUtf8_StillTravels) {
  const std::string bad = "torch says \xff\xfe and " + std::string(kMaxTextBytes, 'x') + "\xe2\x82";
  const auto failed = std::get<Failed>(RoundTrip(FromWorker(Failed{9, bad})));
  EXPECT_THAT(failed.reason, HasSubstr("torch says ?? and"));
  EXPECT_LE(failed.reason.size(), kMaxTextBytes);
  EXPECT_THAT(std::get<Abort>(RoundTrip(FromCoordinator(Abort{9, "\xc3\xa9t\xc3\xa9 \xc3"}))).reason,
              "\xc3\xa9t\xc3\xa9 ?");
}

TEST(SessionCodec, ReusedMessage_HoldsOnlyTheLast) {
  v1::WorkerPayload out;
  wire::Encode(FromWorker(Completions{9, 2, {5, 6}, {{kJobs[0], 1, 2, 3, true}, {kJobs[1], 1, 2, 0, false}}}),
               &out);
  wire::Encode(FromWorker(Completions{8, 1, {5, 7}, {{kJobs[1], 1, 2, 0, false}}}), &out);
  const auto m = std::get<Completions>(*wire::Decode(out));
  EXPECT_EQ(m.run, 8u);
  ASSERT_EQ(m.jobs.size(), 1u);
  EXPECT_EQ(m.jobs[0].job, kJobs[1]);
  EXPECT_FALSE(m.jobs[0].has_loss);
  wire::Encode(FromWorker(Prepared{1}), &out);
  EXPECT_TRUE(wire::Decode(out).ok());
}

// ---- refusals

template <typename Change>
absl::Status Refuse(const FromWorker& m, Change change) {
  v1::WorkerPayload p;
  wire::Encode(m, &p);
  change(&p);
  return wire::Decode(p).status();
}
template <typename Change>
absl::Status Refuse(const FromCoordinator& m, Change change) {
  v1::CoordinatorPayload p;
  wire::Encode(m, &p);
  change(&p);
  return wire::Decode(p).status();
}

void ExpectInvalid(const absl::Status& s, const std::string& field) {
  EXPECT_EQ(s.code(), absl::StatusCode::kInvalidArgument) << s;
  EXPECT_THAT(std::string(s.message()), HasSubstr(field));
}

TEST(SessionCodec, OutOfRange_IsRefusedWithTheField) {
  const FromWorker hello = Hello{"worker-1", "h", 1, -1, "a"};
  ExpectInvalid(Refuse(hello, [](auto* p) { p->mutable_hello()->set_worker("Worker 1"); }), "hello.worker");
  ExpectInvalid(Refuse(hello, [](auto* p) { p->mutable_hello()->set_worker(std::string(64, 'a')); }),
                "hello.worker");
  ExpectInvalid(Refuse(hello, [](auto* p) { p->mutable_hello()->set_process(-2); }), "hello.process");
  ExpectInvalid(
      Refuse(hello, [](auto* p) { p->mutable_hello()->set_address(std::string(kMaxAddressBytes + 1, 'a')); }),
      "hello.address");
  ExpectInvalid(Refuse(hello, [](auto* p) { p->mutable_prepared(); }), "2 known messages");
  ExpectInvalid(Refuse(hello, [](auto* p) { p->Clear(); }), "0 known messages");
  ExpectInvalid(
      Refuse(FromWorker(Credit{1, 0, {}, 1}), [](auto* p) { p->mutable_credit()->set_jobs(kMaxCredit + 1); }),
      "credit.jobs");
  ExpectInvalid(Refuse(FromWorker(Report{1, {SomeReport()}}),
                       [](auto* p) { p->mutable_report()->mutable_ranks(0)->set_wall_seconds(INFINITY); }),
                "wall_seconds");
  ExpectInvalid(
      Refuse(FromWorker(Report{1, {SomeReport()}}),
             [](auto* p) { (*p->mutable_report()->mutable_ranks(0)->mutable_live_bytes())["a b"] = 1; }),
      "live_bytes");
  ExpectInvalid(Refuse(FromWorker(Report{1, {SomeReport()}}),
                       [](auto* p) {
                         (*p->mutable_report()->mutable_ranks(0)->mutable_activation_bytes())[kMaxStages] = 1;
                       }),
                "activation_bytes");
  ExpectInvalid(
      Refuse(FromWorker(Report{1, {SomeReport()}}),
             [](auto* p) { (*p->mutable_report()->mutable_ranks(0)->mutable_activation_bytes())[0] = -1; }),
      "activation_bytes");
  const auto refuse_job_bytes = [](auto change) {
    return Refuse(FromWorker(Report{1, {SomeReport()}}), [&](auto* p) {
      v1::JobBytes* const job = p->mutable_report()->mutable_ranks(0)->add_job_bytes();
      job->set_kind("forward");
      change(job);
    });
  };
  ExpectInvalid(refuse_job_bytes([](v1::JobBytes* job) { job->set_kind("forwards"); }),
                "unknown kind of job");
  ExpectInvalid(refuse_job_bytes([](v1::JobBytes* job) { job->set_stage(kMaxStages); }), "stage");
  ExpectInvalid(Refuse(FromCoordinator(Assign{1, 1, "", "", {}, {0}, {}}),
                       [](auto* p) { p->mutable_assign()->set_spec(std::string(kMaxSpecBytes + 1, ' ')); }),
                "assign.spec");
  ExpectInvalid(Refuse(FromCoordinator(Assign{1, 1, "", "", {{0, {}}}, {0}, {}}),
                       [](auto* p) { p->mutable_assign()->mutable_leases(0)->set_rank(1); }),
                "assign.leases");
}

TEST(SessionCodec, BrokenColumns_AreRefused) {
  const FromCoordinator grant = Grant{1, 0, {}, kJobs};
  ExpectInvalid(Refuse(grant, [](auto* p) { p->mutable_grant()->mutable_jobs()->add_stage(1); }),
                "differ in length");
  ExpectInvalid(Refuse(grant, [](auto* p) { (*p->mutable_grant()->mutable_jobs()->mutable_kind())[0] = 6; }),
                "job 0 is out of range");
  ExpectInvalid(Refuse(grant, [](auto* p) { p->mutable_grant()->mutable_jobs()->set_step(0, -1); }),
                "job 0 is out of range");
  ExpectInvalid(Refuse(grant, [](auto* p) { p->mutable_grant()->mutable_jobs()->set_step(0, INT32_MAX); }),
                "job 0 is out of range");
  ExpectInvalid(Refuse(grant, [](auto* p) { p->mutable_grant()->mutable_jobs()->set_part(2, UINT32_MAX); }),
                "job 2 is out of range");
  const FromWorker done = Completions{1, 0, {}, {{kJobs[0], 1, 2, 0, false}, {kJobs[1], 1, 2, 0, true}}};
  ExpectInvalid(Refuse(done, [](auto* p) { p->mutable_completions()->add_start_ns(1); }), "start_ns");
  ExpectInvalid(Refuse(done, [](auto* p) { p->mutable_completions()->set_start_ns(1, INT64_MIN); }),
                "times of job 1");
  ExpectInvalid(Refuse(done, [](auto* p) { p->mutable_completions()->set_duration_ns(0, UINT64_MAX); }),
                "times of job 0");
  ExpectInvalid(Refuse(done, [](auto* p) { p->mutable_completions()->add_delay_ns(1); }), "column delay_ns");
  ExpectInvalid(Refuse(done,
                       [](auto* p) {
                         p->mutable_completions()->add_delay_ns(1);
                         p->mutable_completions()->add_delay_ns(UINT64_MAX);
                       }),
                "the delay of job 1");
  ExpectInvalid(Refuse(done, [](auto* p) { p->mutable_completions()->set_loss_row(0, 2); }), "loss_row");
  ExpectInvalid(Refuse(done, [](auto* p) { p->mutable_completions()->add_loss(1); }), "loss_row and loss");
  Completions hashed{1, 0, {}, {{kJobs[0], 1, 2, 0, false}}};
  hashed.jobs[0].hashes = {{HashedValue::kGradient, false, 0, 1, 2, 5}};
  const FromWorker with = hashed;
  ExpectInvalid(Refuse(with, [](auto* p) { p->mutable_completions()->add_hash(1); }), "columns of hashes");
  ExpectInvalid(Refuse(with, [](auto* p) { p->mutable_completions()->set_hash_row(0, 1); }), "job 1");
  ExpectInvalid(Refuse(with, [](auto* p) { p->mutable_completions()->set_hash_part(0, 2); }), "part 2 of 2");
  ExpectInvalid(Refuse(with, [](auto* p) { (*p->mutable_completions()->mutable_hash_value())[0] = 7; }),
                "value 7");
  ExpectInvalid(Refuse(with, [](auto* p) { p->mutable_completions()->set_hash_source(0, -2); }), "source -2");
}

TEST(SessionCodec, Packet_RoundTrip_IsEqual) {
  Packet<std::shared_ptr<const FromWorker>> packet{0, 17, 4, {}};
  packet.messages.push_back(std::make_shared<const FromWorker>(Prepared{9}));
  packet.messages.push_back(std::make_shared<const FromWorker>(Failed{9, "x"}));
  v1::WorkerMessage wire;
  wire::Encode(packet, &wire);
  const auto back = wire::Decode(3, wire);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->link, 3u);
  EXPECT_EQ(back->ack, 17u);
  EXPECT_EQ(back->first, 4u);
  ASSERT_EQ(back->messages.size(), 2u);
  EXPECT_EQ(std::get<Failed>(back->messages[1]).reason, "x");
  wire.mutable_open();
  EXPECT_FALSE(wire::Decode(3, wire).ok()) << "`open` within a session";
}

TEST(SessionCodec, MessagesOfValidations_RoundTrip_AreEqual) {
  const auto seal = std::get<SealCheckpoint>(
      RoundTrip(FromCoordinator(SealCheckpoint{9, 40, 3, false, /*validate=*/true, /*passing=*/true})));
  EXPECT_TRUE(seal.validate);
  EXPECT_TRUE(seal.passing);
  const auto validate = std::get<Validate>(RoundTrip(FromCoordinator(Validate{9, 40})));
  EXPECT_EQ(validate.run, 9u);
  EXPECT_EQ(validate.step, 40);
  const auto done = std::get<Validation>(
      RoundTrip(FromWorker(Validation{9, 40, 7, 8, 0.1, {{"accuracy", 0.7}, {"top5", 0.9}}, "gone"})));
  EXPECT_EQ(done.run, 9u);
  EXPECT_EQ(done.step, 40);
  EXPECT_EQ(done.samples, 7);
  EXPECT_EQ(done.all_samples, 8);
  EXPECT_EQ(done.loss, 0.1);
  EXPECT_THAT(done.metrics, ElementsAre(Pair("accuracy", 0.7), Pair("top5", 0.9)));
  EXPECT_EQ(done.failure, "gone");
  v1::WorkerPayload out;
  wire::Encode(FromWorker(Validation{9, 40, 7, 8}), &out);
  out.mutable_validation()->set_samples(9);
  EXPECT_THAT(std::string(wire::Decode(out).status().message()), HasSubstr("validation.samples"));
}

// Any bytes either do not parse, are refused, or decode to a value that encodes again.
TEST(SessionCodec, RandomBytes_NeverCrash) {
  google::protobuf::LogSilencer quiet;  // it complains of every text that is not UTF-8
  uint64_t state = 1;
  const auto next = [&state] {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
  };
  v1::WorkerMessage seed;
  Packet<std::shared_ptr<const FromWorker>> packet{0, 1, 1, {}};
  packet.messages.push_back(std::make_shared<const FromWorker>(Hello{"w", "h", 1, 0, "a"}));
  packet.messages.push_back(std::make_shared<const FromWorker>(
      Completions{1, 0, {1, 1}, {{kJobs[0], 5, 9, 0.5, true}, {kJobs[4], 5, 9, 0, false}}}));
  Completions hashed{1, 0, {1, 1}, {{kJobs[1], 5, 9, 0, false}}};
  hashed.jobs[0].hashes = {{HashedValue::kWeights, true, 3, 1, 2, 99}};
  packet.messages.push_back(std::make_shared<const FromWorker>(hashed));
  packet.messages.push_back(std::make_shared<const FromWorker>(Report{1, {SomeReport()}}));
  packet.messages.push_back(std::make_shared<const FromWorker>(SnapshotSaved{1, 7, "full"}));
  packet.messages.push_back(std::make_shared<const FromWorker>(CheckpointSealed{1, 7, ""}));
  packet.messages.push_back(
      std::make_shared<const FromWorker>(Validation{1, 7, 8, 8, 0.5, {{"top5", 0.25}}, ""}));
  wire::Encode(packet, &seed);
  const std::string good = seed.SerializeAsString();
  int parsed = 0, decoded = 0;
  for (int i = 0; i < 50'000; ++i) {
    std::string bytes = good;
    for (uint64_t flips = 1 + next() % 4; flips > 0; --flips)
      bytes[next() % bytes.size()] = static_cast<char>(next());
    if (next() % 4 == 0) bytes.resize(next() % bytes.size());
    v1::WorkerMessage m;
    if (!m.ParseFromString(bytes)) continue;
    ++parsed;
    const auto back = wire::Decode(1, m);
    if (!back.ok()) continue;
    ++decoded;
    for (const FromWorker& value : back->messages) {
      v1::WorkerPayload again;
      wire::Encode(value, &again);
      EXPECT_TRUE(wire::Decode(again).ok());
    }
  }
  EXPECT_GT(parsed, 1000) << "the mutations reach the decoder";
  EXPECT_GT(decoded, 100);
  EXPECT_GT(parsed, decoded) << "some were refused";
}

// ---- the run API

TEST(RunsCodec, Submit_RoundTrip_IsEqual) {
  v1::SubmitRequest wire;
  SubmitRequest sent{"req-1", "{}", 3, "out"};
  sent.terms = {-7, "large", "mallory"};
  wire::Encode(sent, &wire);
  const auto back = wire::Decode(wire);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->request, "req-1");
  EXPECT_EQ(back->spec, "{}");
  EXPECT_EQ(back->processes, 3);
  EXPECT_EQ(back->output, "out");
  EXPECT_EQ(back->terms, (QueueTerms{-7, "large", ""})) << "nobody says himself who he is";
  for (const int32_t priority : {-1001, 1001}) {
    wire.set_priority(priority);
    ExpectInvalid(wire::Decode(wire).status(), "priority");
  }
  wire.set_priority(0);
  wire.set_pool("Not A Name");
  ExpectInvalid(wire::Decode(wire).status(), "pool");
  wire.set_pool("");
  wire.set_request("Not A Name");
  ExpectInvalid(wire::Decode(wire).status(), "request");
  wire.set_request("");
  wire.set_spec(std::string(kMaxSpecBytes + 1, ' '));
  ExpectInvalid(wire::Decode(wire).status(), "spec");
}

TEST(RunsCodec, Run_RoundTrip_IsEqualButForTheClock) {
  RunInfo run;
  run.id = 4;
  run.name = "n";
  run.schedule = "lpp,groups=2";
  run.state = RunState::kFailed;
  run.reason = "why";
  run.ranks = 4;
  run.processes = 2;
  run.steps = 10;
  run.steps_done = 3;
  run.loss = 0.5;
  run.has_loss = true;
  run.submitted_ns = 100;
  run.started_ns = 0;
  run.ended_ns = 300;
  run.reports = {SomeReport()};
  run.validation = Validation{4, 2, 8, 8, 0.75, {{"accuracy", 0.5}}};
  run.validation_failure = "the disk is full";
  run.output_closed = true;
  run.output_failure = "the folder was removed";
  run.restarts = 2;
  run.terms = {5, "large", "alice"};
  run.recovery_ns = RecoveryTimes{1, 2, 3, 4};
  run.failed_validations = 1;
  v1::RunEvent wire;
  wire::Encode(run, 1000, wire.mutable_run());
  const auto event = wire::Decode(wire);
  ASSERT_TRUE(event.ok());
  const RunInfo& back = std::get<RunInfo>(*event);
  EXPECT_EQ(back.id, run.id);
  EXPECT_EQ(back.schedule, run.schedule);
  EXPECT_EQ(back.state, run.state);
  EXPECT_EQ(back.reason, run.reason);
  EXPECT_EQ(back.steps_done, 3);
  EXPECT_EQ(back.loss, 0.5);
  EXPECT_EQ(back.submitted_ns, 1100);
  EXPECT_EQ(back.started_ns, 0) << "not yet";
  ASSERT_TRUE(back.validation.has_value());
  EXPECT_EQ(back.validation->step, 2);
  EXPECT_EQ(back.validation->loss, 0.75);
  EXPECT_EQ(back.validation_failure, "the disk is full");
  EXPECT_EQ(back.output_closed, true);
  EXPECT_EQ(back.output_failure, "the folder was removed");
  EXPECT_EQ(back.restarts, 2);
  EXPECT_EQ(back.terms, run.terms);
  EXPECT_EQ(back.recovery_ns, run.recovery_ns);
  EXPECT_EQ(back.failed_validations, 1);
  ExpectEqual(back.reports.at(0), SomeReport());
  wire.mutable_run()->set_steps_done(11);
  ExpectInvalid(wire::Decode(wire).status(), "steps_done");
}

TEST(RunsCodec, Step_RoundTrip_IsEqual) {
  v1::RunEvent wire;
  wire::Encode(StepDone{4, 7, 0.25, true, 99}, wire.mutable_step());
  const StepDone step = std::get<StepDone>(*wire::Decode(wire));
  EXPECT_EQ(step.run, 4u);
  EXPECT_EQ(step.step, 7);
  EXPECT_EQ(step.loss, 0.25);
  EXPECT_TRUE(step.has_loss);
  EXPECT_EQ(step.end_ns, 99);
  EXPECT_FALSE(step.gradient_norm.has_value());
  wire::Encode(StepDone{4, 7, 0.25, true, 99, 1.5}, wire.mutable_step());
  EXPECT_EQ(std::get<StepDone>(*wire::Decode(wire)).gradient_norm, 1.5);
  EXPECT_FALSE(wire::Decode(v1::RunEvent()).ok());
}

// ---- addresses

TEST(Address, Forms_Parse) {
  EXPECT_EQ(ParseAddress("unix:/run/weft.sock")->path, "/run/weft.sock");
  EXPECT_EQ(ParseAddress("127.0.0.1:7070")->port, 7070);
  EXPECT_EQ(ParseAddress("[::1]:7070")->host, "::1");
  EXPECT_EQ(ParseAddress("[::1]:7070")->text(), "[::1]:7070");
  EXPECT_TRUE(ParseAddress("[::1]:7070")->loopback());
  EXPECT_TRUE(ParseAddress("localhost:1")->loopback());
  EXPECT_FALSE(ParseAddress("0.0.0.0:1")->loopback());
  EXPECT_FALSE(ParseAddress("127.example.org:1")->loopback()) << "a name is not an address";
}

TEST(Address, Wrong_IsRefusedWithTheForms) {
  for (const char* text : {"", "unix:", "7070", ":7070", "host:", "host:70700", "[::1:7070", "host:-1"}) {
    const auto a = ParseAddress(text);
    EXPECT_EQ(a.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(a.status().message()), HasSubstr("unix:PATH or HOST:PORT"));
  }
  EXPECT_FALSE(ParseAddress("unix:/" + std::string(107, 'x')).ok());
}

TEST(Addresses, OneOrSeveral_AreTakenInTheirOrder) {
  EXPECT_EQ(TextOf(*ParseAddresses("10.0.0.2:7070,10.0.0.1:7071")), "10.0.0.2:7070,10.0.0.1:7071");
  EXPECT_EQ(ParseAddresses("unix:/run/a,b.sock")->front().path, "/run/a,b.sock");
  EXPECT_EQ(ParseAddresses("weft.example.org:7070")->size(), 1u);
  for (const char* wrong : {"", ",", "10.0.0.1:7070,", "10.0.0.1:7070,unix:/a", "a.example.org:1,10.0.0.1:2"})
    EXPECT_EQ(ParseAddresses(wrong).status().code(), absl::StatusCode::kInvalidArgument) << wrong;
}

// A worker that answers pings and does not read would cost the coordinator without end.
TEST(StreamEnd, PeerThatAcknowledgesNothing_IsOverAtTheBound) {
  StreamEnd<FromCoordinator, FromWorker> end;
  v1::CoordinatorMessage wire;
  const size_t messages = kMaxBacklogBytes >> 20;
  for (size_t i = 0; i < messages - 1; ++i) {
    end.Send(Abort{1, std::string(1 << 20, 'x')});
    ASSERT_TRUE(end.Next(0, &wire).ok());
    ASSERT_TRUE(end.CheckBacklog().ok()) << i;
  }
  for (int i = 0; i < 2; ++i) end.Send(Abort{1, std::string(1 << 20, 'x')});
  const absl::Status over = end.CheckBacklog();
  EXPECT_EQ(over.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(over.message()), HasSubstr("the limit is 64 MiB. It does not read"));
}

}  // namespace
}  // namespace weft::wire_test
