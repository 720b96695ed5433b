// Sessions that no worker of Weft opens: what they send must cost the coordinator little, and end them with a
// sentence that names the cause.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/metrics/metrics.h"
#include "base/mutex.h"
#include "coordinator/shell/coordinator_server.h"
#include "coordinator/shell/session_table.h"
#include "proto/wire/channel.h"
#include "proto/wire/limits.h"
#include "proto/wire/session_codec.h"
#include "schedules/families/families.h"
#include "tests/process/quick_planner.h"
#include "tests/unit/without_terms.h"
#include "weft/v1/session.grpc.pb.h"

namespace weft::hostile_session_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

absl::StatusOr<std::shared_ptr<const RunPlan>> Plan(const std::string& spec) {
  return MakeRunPlan("test", spec, WithoutTerms(*MakeSchedule(spec, {}, 2, 2)), 1);
}

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * 4096;
}

// One stream of the protocol, message by message.
class HostileSession : public ::testing::Test {
 protected:
  HostileSession() {
    CoordinatorServerOptions options;
    options.listen = {"127.0.0.1:0"};
    options.planner = QuickPlanner(Plan);
    options.metrics = &metrics_;
    options.observer.worker = [this](const WorkerChange& w) {
      if (w.kind == WorkerChange::Kind::kJoined) return;
      MutexLock lock(mu_);
      lost_ = w.reason;
    };
    options.observer.refused = [this](const std::string& line) {
      MutexLock lock(mu_);
      refused_ = line;
    };
    server_ = *CoordinatorServer::Start(std::move(options));
    grpc::ChannelArguments args;
    channel_ = grpc::CreateCustomChannel(server_->addresses()[0], grpc::InsecureChannelCredentials(), args);
    stub_ = v1::Coordination::NewStub(channel_);
  }

  void WriteOpen(const ProtocolVersions& versions) {
    stream_ = stub_->Session(&context_);
    v1::WorkerMessage open;
    wire::Encode(versions, open.mutable_open());
    ASSERT_TRUE(stream_->Write(open));
  }
  void Open() {
    WriteOpen(kProtocolVersions);
    v1::CoordinatorMessage answer;
    ASSERT_TRUE(stream_->Read(&answer));
    ASSERT_TRUE(answer.has_open());
  }
  void Greet() {
    v1::WorkerMessage hello;
    hello.set_first(1);
    hello.add_payloads()->mutable_hello()->set_worker("w");
    hello.mutable_payloads(0)->mutable_hello()->set_process(-1);
    ASSERT_TRUE(stream_->Write(hello));
    v1::CoordinatorMessage answer;
    ASSERT_TRUE(stream_->Read(&answer));
  }
  // Returns the status with which the coordinator ends the stream.
  std::string End() {
    v1::CoordinatorMessage ignored;
    while (stream_->Read(&ignored)) {
    }
    const grpc::Status status = stream_->Finish();
    EXPECT_FALSE(status.ok());
    return status.error_message();
  }
  std::string lost() {
    for (int i = 0; i < 3000; ++i) {
      MutexLock lock(mu_);
      if (!lost_.empty()) return lost_;
      mu_wait_.WaitWithTimeout(mu_, 10'000'000);
    }
    return "";
  }

  // Returns the line about a refusal; it is there before the stream has ended.
  std::string refused() {
    MutexLock lock(mu_);
    return refused_;
  }

  // Returns true once the metrics have the line.
  bool Shows(const std::string& line) {
    for (int i = 0; i < 3000; ++i, usleep(10'000)) {
      if (metrics_.Text().find(line + "\n") != std::string::npos) return true;
    }
    return false;
  }

  Metrics metrics_;
  Mutex mu_;
  CondVar mu_wait_;
  std::string lost_ ABSL_GUARDED_BY(mu_);
  std::string refused_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<CoordinatorServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Coordination::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerMessage, v1::CoordinatorMessage>> stream_;
};

TEST_F(HostileSession, NoProtocolInCommon_IsRefusedAndCounted) {
  WriteOpen({kProtocolVersions.highest + 1, kProtocolVersions.highest + 2});
  EXPECT_THAT(End(), HasSubstr("upgrade it to one that speaks version"));
  EXPECT_THAT(refused(),
              AllOf(StartsWith("a worker at ipv4:127.0.0.1:"), HasSubstr(" was refused: the worker speaks"),
                    HasSubstr("upgrade it to one that speaks version")));
  EXPECT_TRUE(Shows("weft_protocol_violations_total 1"));
}

TEST_F(HostileSession, ProtocolVersionsAreNoRange_IsRefusedAndCounted) {
  WriteOpen({0, 0});
  EXPECT_THAT(End(), HasSubstr("the protocol versions 0 to 0, which is no range"));
  EXPECT_TRUE(Shows("weft_protocol_violations_total 1"));
}

TEST_F(HostileSession, FirstMessageIsNotOpen_IsRefusedAndCounted) {
  stream_ = stub_->Session(&context_);
  stream_->Write(v1::WorkerMessage());
  EXPECT_EQ(End(), "the first message of a stream must be `open`");
  EXPECT_THAT(refused(), HasSubstr("was refused: the first message of a stream must be `open`"));
  EXPECT_TRUE(Shows("weft_protocol_violations_total 1"));
}

TEST(SessionTable, ManyRefusalsWithinASecond_HaveOneLineAndAreCountedInTheNext) {
  std::vector<Event> events;
  std::vector<std::string> lines;
  SessionTable table(
      &events, kProtocolVersions, [](SessionId, int64_t) {},
      [&](const std::string& line) { lines.push_back(line); });
  const absl::Status why = absl::InvalidArgumentError("no message");
  for (int i = 0; i < 100; ++i) table.Refused(i * 10'000'000, absl::StrCat("ipv4:10.0.0.1:", i), why);
  EXPECT_THAT(lines, ElementsAre("a worker at ipv4:10.0.0.1:0 was refused: no message"));
  table.Refused(1'000'000'000, "ipv4:10.0.0.2:7", why);
  table.Refused(2'000'000'000, "ipv4:10.0.0.3:7", why);
  EXPECT_THAT(
      lines,
      ElementsAre(lines[0],
                  "a worker at ipv4:10.0.0.2:7 was refused: no message (99 more were refused since the "
                  "last such line)",
                  "a worker at ipv4:10.0.0.3:7 was refused: no message"));
}

TEST_F(HostileSession, LargeMessageBeforeHello_IsRefusedWithItsSize) {
  Open();
  v1::WorkerMessage large;
  large.set_first(1);
  large.add_payloads()->mutable_failed()->set_reason(std::string(2 << 20, 'x'));
  stream_->Write(large);
  EXPECT_THAT(End(), HasSubstr("bytes, but at most 32768 are allowed before Hello"));
  EXPECT_THAT(refused(),
              AllOf(StartsWith("a worker at ipv4:127.0.0.1:"), HasSubstr("are allowed before Hello")));
}

TEST_F(HostileSession, ManyEmptyRanks_CostNoMoreThanTheirBytes) {
  Open();
  Greet();
  const int64_t before = ResidentBytes();
  v1::WorkerMessage large;
  large.set_first(2);
  for (int payload = 0; payload < 5; ++payload) {
    v1::Report* report = large.add_payloads()->mutable_report();
    v1::Spans* spans = large.add_payloads()->mutable_spans();
    for (int i = 0; i < 20'000; ++i) report->add_ranks(), spans->add_ranks();
  }
  const int64_t ours = ResidentBytes() - before;
  stream_->Write(large);
  EXPECT_THAT(End(), HasSubstr("the number of ranks of its reports is 200000, but at most 65536 is allowed"));
  EXPECT_LT(ResidentBytes() - before, ours + (32 << 20));
  EXPECT_THAT(lost(), HasSubstr("it broke the protocol: "));
}

TEST_F(HostileSession, MessageOutOfOrder_IsRefusedAndNotHeld) {
  Open();
  Greet();
  v1::WorkerMessage early;
  early.set_first(3);
  early.add_payloads()->mutable_prepared()->set_run(1);
  stream_->Write(early);
  EXPECT_EQ(End(), "message 3 came, but number 2 is the next");
  EXPECT_EQ(refused(), "") << "it has greeted, so the line about the lost worker names it";
  EXPECT_THAT(lost(), HasSubstr("message 3 came"));
  EXPECT_TRUE(Shows("weft_protocol_violations_total 1"));
}

TEST_F(HostileSession, MessageLargerThanAllowed_IsNamedAsTheCause) {
  Open();
  Greet();
  v1::WorkerMessage large;
  large.set_first(2);
  large.add_payloads()->mutable_failed()->set_reason(std::string(kMaxWorkerMessageBytes, 'x'));
  stream_->Write(large);
  EXPECT_THAT(End(), HasSubstr("but at most 4194304 are allowed"));
  EXPECT_THAT(lost(), HasSubstr("it broke the protocol: a message has"));
  EXPECT_TRUE(Shows("weft_protocol_violations_total 1"));
}

// gRPC ends such a stream by itself, unread, and the sender gets the size and the limit. The coordinator
// sees only that the stream broke; no worker of Weft sends such a message
// (SessionStream.MessageLargerThanAllowed).
TEST_F(HostileSession, MessageLargerThanGrpcTakes_WorkerHearsWhy) {
  Open();
  Greet();
  v1::WorkerMessage large;
  large.set_first(2);
  large.add_payloads()->mutable_failed()->set_reason(std::string(kMaxReceivedBytes + 1, 'x'));
  stream_->Write(large);
  const size_t bytes = large.ByteSizeLong();
  EXPECT_THAT(End(), AllOf(HasSubstr("larger"), HasSubstr(absl::StrCat(bytes)),
                           HasSubstr(absl::StrCat(kMaxReceivedBytes))));
}

TEST_F(HostileSession, LongTransportAddress_IsRefused) {
  Open();
  v1::WorkerMessage hello;
  hello.set_first(1);
  hello.add_payloads()->mutable_hello()->set_worker("w");
  hello.mutable_payloads(0)->mutable_hello()->set_process(-1);
  hello.mutable_payloads(0)->mutable_hello()->set_address(std::string(kMaxAddressBytes + 1, 'a'));
  stream_->Write(hello);
  EXPECT_THAT(End(), HasSubstr("the length of hello.address in bytes is 4097, but at most 4096 is allowed"));
}

TEST_F(HostileSession, ControlCharacters_AreEscapedWhereverTheyAreShown) {
  Open();
  v1::WorkerMessage hello;
  hello.set_first(1);
  v1::Hello* h = hello.add_payloads()->mutable_hello();
  h->set_worker("w");
  h->set_host("host\n2026-01-01 forged");
  h->set_process(-1);
  ASSERT_TRUE(stream_->Write(hello));
  const auto run = server_->Submit({"", "ddp", 1, ""});
  ASSERT_TRUE(run.ok()) << run.status();
  v1::CoordinatorMessage answer;
  ASSERT_TRUE(stream_->Read(&answer));
  v1::WorkerMessage failed;
  failed.set_first(2);
  failed.add_payloads()->mutable_failed()->set_run(*run);
  failed.mutable_payloads(0)->mutable_failed()->set_reason(
      "red \x1b[31m\nweft: all is well\x7f\xc2\x9b tab\tend");
  for (int i = 0; i < 3000 && !server_->GetRun(*run)->reason.empty(); ++i) usleep(10'000);
  ASSERT_TRUE(stream_->Write(failed));
  RunInfo info;
  for (int i = 0; i < 3000 && !IsFinal(info.state); ++i, usleep(10'000)) info = *server_->GetRun(*run);
  EXPECT_THAT(info.reason, HasSubstr(R"(on host host\n2026-01-01 forged)"));
  EXPECT_THAT(info.reason, HasSubstr(R"(red \x1b[31m\nweft: all is well\x7f\x9b tab end)"));
}

}  // namespace
}  // namespace weft::hostile_session_test
