// Writes the seeds of the fuzzers of binary forms, made of real messages: fuzz_seeds FOLDER
//
// The first byte of a seed chooses what it is, as the fuzzers read it.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/wire/runs_codec.h"
#include "proto/wire/session_codec.h"
#include "worker/shell/transport/transport_address.h"
#include "worker/shell/transport/transport_message.h"

namespace weft {
namespace {

class Seeds {
 public:
  explicit Seeds(const std::string& folder) : folder_(folder) { std::filesystem::create_directories(folder); }
  void Add(char kind, const std::string& bytes) {
    std::ofstream(absl::StrCat(folder_, "/", ++count_), std::ios::binary) << kind << bytes;
  }

 private:
  const std::string folder_;
  int count_ = 0;
};

void AddFrames(Seeds* seeds) {
  for (int type = 1; type <= 10; ++type) {
    TransportMessage m;
    m.type = static_cast<TransportMessage::Type>(type);
    m.sender = 7;
    m.key = {1, 2, 3, 4, 5, 6, 7, 0, 1, TensorKind::kActivation, 0};
    m.shape = TensorShape{DataType::kFloat32, 2, {2, 3}};
    m.bytes = 24;
    m.offer = 9;
    m.segment = {11, 22, 1 << 20, 9};
    m.offset = 4096;
    m.offer_count = 2;
    char out[TransportMessage::kMaxBytes];
    seeds->Add(0, std::string(out, Encode(m, out)));
  }
  TransportAddress address;
  address.sender = 7;
  address.process = {"machine", 42, 1000};
  address.probe = {11, 22, 4096, 9};
  address.messenger = "ucx";
  address.device = {"cuda", "GPU-1"};
  address.sources = {std::string(4, 'a'), std::string(16, 'b')};
  seeds->Add(1, EncodeAddress(address));
}

RankReport SomeReport() {
  RankReport r;
  r.rank = 1;
  r.busy_seconds = {{"forward", 1.5}};
  r.idle_seconds = {{"dependency", 0.25}};
  r.live_bytes = {{"weights", 7}};
  r.peak_bytes = {{"activations", 1 << 20}};
  r.activation_bytes = {{0, 5}};
  r.bytes_sent = {{"activation", 11}};
  r.idle_spans = {{IdleCause::kLimit, 100, 107}};
  r.transfer_spans = {{1, TensorKind::kState, Job::Update(4, 3, 2), 100, 0, 101, 1 << 20}};
  return r;
}

std::vector<FromWorker> WorkerMessages() {
  Completion done{Job::Compute(1, 2, 3, JobKind::kForward), 10, 20, 0.5, true, 1.5};
  Reattach reattach;
  reattach.run = 3;
  reattach.epoch = 2;
  reattach.run_id = "0123456789abcdef0123456789abcdef";
  reattach.ranks = {{0, {2, 1}, 4, 8}};
  reattach.snapshots = {{4, true, false, true, false}};
  reattach.validations = {4};
  Report report{3, {SomeReport()}, {{0, Job::Compute(1, 2, 3, JobKind::kBackward), 5}}};
  return {Hello{"w", "host", 42, 0, "address", "cpu"},
          Prepared{3},
          Credit{3, 0, {1, 2}, 4},
          Completions{3, 0, {1, 2}, {done, done}},
          report,
          Failed{3, "no memory", 1, 4, 5, true},
          Finished{3, {SomeReport()}},
          GroupId{3, 1, 0, "id"},
          Forgotten{3},
          Stalled{3, "it waits"},
          SnapshotSaved{3, 4, ""},
          CheckpointSealed{3, 4, "no space"},
          Validation{3, 4, 10, 20, 0.5, {{"accuracy", 0.25}, {"top5", 0.5}}, ""},
          Leaving{"SIGTERM"},
          CopiesHeld{3, 1, 4, {{0, 0}, {1, 0}}},
          reattach,
          LogLines{3, {{LogSeverity::kWarning, 5, "slow"}}},
          Spans{3, {{1, {{IdleCause::kMemory, 100, 250}}, {}}}}};
}

std::vector<FromCoordinator> CoordinatorMessages() {
  Assign assign;
  assign.run = 3;
  assign.epoch = 2;
  assign.spec = "{}";
  assign.output = "/out";
  assign.leases = {{0, {2, 1}}, {1, {2, 2}}};
  assign.process_of_rank = {0, 0};
  assign.peers = {{0, "address", "process 0 (w)"}};
  assign.run_id = "0123456789abcdef0123456789abcdef";
  assign.copies = true;
  assign.kept = {{{0, 0}, 0}};
  return {Welcome{2, 0},
          assign,
          Grant{3, 0, {2, 1}, {Job::Compute(0, 0, 0, JobKind::kForward), Job::Update(0, 0, 0)}},
          Finish{3},
          Abort{3, "it failed"},
          Shutdown{"it ends"},
          GroupId{3, 1, 0, "id"},
          TakeSnapshot{3, 4},
          SealCheckpoint{3, 4, 2, false, true, false},
          Validate{3, 4},
          DropCopies{3, 1, 4},
          Settled{3, 1, 4, 4, 4},
          TellSpans{3}};
}

template <typename Wire, typename Value>
void AddPackets(char kind, const std::vector<Value>& messages, Seeds* seeds) {
  Packet<std::shared_ptr<const Value>> all{1, 5, 1, {}};
  for (const Value& message : messages) {
    const auto shared = std::make_shared<const Value>(message);
    all.messages.push_back(shared);
    Wire out;
    wire::Encode(Packet<std::shared_ptr<const Value>>{1, 5, 1, {shared}}, &out);
    seeds->Add(kind, out.SerializeAsString());
  }
  Wire out;
  wire::Encode(all, &out);
  seeds->Add(kind, out.SerializeAsString());
}

template <typename Wire, typename Value, typename... More>
void AddOne(char kind, const Value& value, Seeds* seeds, More... more) {
  Wire out;
  wire::Encode(value, more..., &out);
  seeds->Add(kind, out.SerializeAsString());
}

void AddRuns(Seeds* seeds) {
  AddOne<v1::SubmitRequest>(2, SubmitRequest{"r-1", "{}", 2, "/out", true, "run.yaml"}, seeds);
  AddOne<v1::MoveRequest>(3, MoveRequest{3, {0, 1}, "w", "reason"}, seeds);
  RunInfo run;
  run.id = 3;
  run.name = "tiny";
  run.schedule = "1f1b";
  run.state = RunState::kRunning;
  run.ranks = run.processes = 1;
  run.steps = 20;
  run.steps_done = 3;
  run.members = {"process 0 (w)"};
  run.member_of_rank = {0};
  run.validation = Validation{3, 4, 10, 20, 0.5, {{"accuracy", 0.25}, {"top5", 0.5}}, ""};
  run.recovery_ns = RecoveryTimes{1, 2, 3, 4};
  run.reports = {SomeReport()};
  AddOne<v1::Run>(4, run, seeds, int64_t{0});
  AddOne<v1::Worker>(5, WorkerInfo{0, "w", "host", 42, "cpu", "busy", 3, 100}, seeds);
  v1::RunEvent event;
  wire::Encode(StepDone{3, 4, 0.5, true, 100, 1.5}, event.mutable_step());
  seeds->Add(6, event.SerializeAsString());
  RunLogPart part;
  part.lines = {{3, 7, 1, "process 1 (w)", {0, 1}, {LogSeverity::kInfo, 5, "it runs"}}};
  part.last = 7;
  AddOne<v1::LogsResponse>(7, part, seeds);
  RunWaits waits{3, "tiny", RunState::kRunning, "", 5};
  waits.roots = {{"silent", -1, 1, std::nullopt, 9, "process 1 (w) has said nothing for 9 s"}};
  const Job job = Job::Compute(4, 1, 0, JobKind::kForward);
  waits.ranks = {{0, 0, "waits", job, 5, MissingInput{TensorKind::kActivation, job, 1}, 1, 0, {1}}};
  AddOne<v1::WaitsResponse>(8, waits, seeds);
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: fuzz_seeds FOLDER\n";
    return 2;
  }
  const std::string folder = argv[1];
  weft::Seeds frames(folder + "/frame"), wire(folder + "/wire");
  weft::AddFrames(&frames);
  weft::AddPackets<weft::v1::WorkerMessage>(0, weft::WorkerMessages(), &wire);
  weft::AddPackets<weft::v1::CoordinatorMessage>(1, weft::CoordinatorMessages(), &wire);
  weft::AddRuns(&wire);
  return 0;
}
