// gRPC's health service at a real coordinator, asked by its stub and by gRPC's own client-side check: it
// serves once it has read its store, and says to those that watch that it stops.
#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "health/health.grpc.pb.h"
#include "tests/process/command.h"
#include "tests/process/free_ports.h"
#include "tests/process/run_files.h"

namespace weft::health_service_test {
namespace {

using grpc::StatusCode;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using ::testing::HasSubstr;

constexpr int kSeconds = 60;  // for hangs only

std::chrono::system_clock::time_point Deadline() {
  const char* factor = std::getenv("WEFT_TEST_TIME_FACTOR");
  const int times = factor == nullptr ? 1 : std::atoi(factor);
  return std::chrono::system_clock::now() + std::chrono::seconds(kSeconds * times);
}

class HealthService : public ::testing::Test {
 protected:
  HealthService() : address_(absl::StrCat("127.0.0.1:", FreePorts(1))) { Start(); }

  void Start() {
    coordinator_.reset();
    coordinator_ = std::make_unique<Command>(std::vector<std::string>{"weft-coordinator", "--listen",
                                                                      address_, "--store", folder_ / "store",
                                                                      "--output-root", folder_.path()});
  }
  void AwaitListening() { ASSERT_TRUE(coordinator_->WaitFor("listening on", kSeconds)); }
  CommandResult Weft(std::vector<std::string> words) const {
    words.insert(words.begin(), "weft");
    words.insert(words.end(), {"--coordinator", address_});
    return Command::Run(words, kSeconds);
  }
  std::unique_ptr<grpc::health::v1::Health::Stub> Stub() const {
    return grpc::health::v1::Health::NewStub(
        grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
  }
  // A channel as a load balancer has it: gRPC watches that service's health, and sends calls while it serves.
  std::shared_ptr<grpc::Channel> CheckingChannel(const std::string& service) const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetServiceConfigJSON(absl::StrCat(
        R"({"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": ")", service,
        "\"}}"));
    return grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments);
  }

  const TestFolder folder_;
  const std::string address_;
  std::unique_ptr<Command> coordinator_;
};

// Waits until the channel has the state; returns false if that takes too long.
bool Reaches(grpc::Channel& channel, grpc_connectivity_state wanted) {
  const auto deadline = Deadline();
  for (grpc_connectivity_state now = channel.GetState(true); now != wanted; now = channel.GetState(true)) {
    if (!channel.WaitForStateChange(now, deadline)) return false;
  }
  return true;
}

// Waits until the channel has another state; returns false if that takes too long.
bool Leaves(grpc::Channel& channel, grpc_connectivity_state former) {
  return channel.GetState(false) != former || channel.WaitForStateChange(former, Deadline());
}

HealthCheckRequest AskFor(const std::string& service) {
  HealthCheckRequest request;
  request.set_service(service);
  return request;
}

TEST_F(HealthService, Check_AnswersForTheServerAndItsServices) {
  AwaitListening();
  const auto stub = Stub();
  const auto check = [&stub](const std::string& service, HealthCheckResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(Deadline());
    return stub->Check(&context, AskFor(service), response).error_code();
  };
  for (const char* service : {"", "weft.v1.Runs", "weft.v1.Coordination"}) {
    HealthCheckResponse response;
    EXPECT_EQ(check(service, &response), StatusCode::OK) << service;
    EXPECT_EQ(response.status(), HealthCheckResponse::SERVING) << service;
  }
  HealthCheckResponse response;
  EXPECT_EQ(check("weft.v1.Nothing", &response), StatusCode::NOT_FOUND);
}

TEST_F(HealthService, CoordinatorThatServes_HasReadItsStore) {
  AwaitListening();
  ASSERT_EQ(Weft({"submit", WriteSmallRun(folder_), "--detach"}).code, 0);
  const auto channel = CheckingChannel("weft.v1.Runs");
  EXPECT_TRUE(Reaches(*channel, GRPC_CHANNEL_READY));
  coordinator_->Signal(SIGKILL);
  coordinator_->Wait(kSeconds);
  ASSERT_TRUE(Leaves(*channel, GRPC_CHANNEL_READY));
  Start();
  EXPECT_TRUE(Reaches(*channel, GRPC_CHANNEL_READY));
  EXPECT_THAT(Weft({"ls"}).out, HasSubstr("waiting"));
}

TEST_F(HealthService, ServiceThatIsNotThere_GetsNoCalls) {
  AwaitListening();
  EXPECT_TRUE(Reaches(*CheckingChannel(""), GRPC_CHANNEL_READY));
  EXPECT_TRUE(Reaches(*CheckingChannel("weft.v1.Nothing"), GRPC_CHANNEL_TRANSIENT_FAILURE));
}

TEST_F(HealthService, CoordinatorThatStops_SaysSoToThoseThatWatch) {
  AwaitListening();
  const auto stub = Stub();
  grpc::ClientContext context, other_context, gone_context;
  for (grpc::ClientContext* each : {&context, &other_context, &gone_context}) each->set_deadline(Deadline());
  const auto watch = stub->Watch(&context, AskFor(""));
  const auto other = stub->Watch(&other_context, AskFor("weft.v1.Nothing"));
  const auto gone = stub->Watch(&gone_context, AskFor(""));
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  ASSERT_TRUE(other->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVICE_UNKNOWN);
  ASSERT_TRUE(gone->Read(&response));
  gone_context.TryCancel();
  EXPECT_EQ(gone->Finish().error_code(), StatusCode::CANCELLED);
  coordinator_->Signal(SIGTERM);
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  EXPECT_FALSE(watch->Read(&response));
  EXPECT_FALSE(other->Read(&response));
  EXPECT_EQ(coordinator_->Wait(kSeconds).code, 0);
}

}  // namespace
}  // namespace weft::health_service_test
