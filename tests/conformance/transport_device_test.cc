// Tests what the UCX transport does with a device's memory: to whom it may go, where it lands, by which path,
// and what happens when there is none left. The devices here are memory of the host (device_memory.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/device_memory.h"
#include "tests/conformance/transport_fixture.h"
#include "worker/shell/transport/ucx_transport.h"

namespace weft::testing {
namespace {

using Kind = TransportEvent::Kind;

// Ordinary memory that knows what it handed out and can refuse.
class RecordingMemory final : public MemorySource {
 public:
  absl::StatusOr<void*> Allocate(size_t bytes) override {
    if (full) return absl::ResourceExhaustedError("no device memory: 80 GiB are in use");
    absl::StatusOr<void*> segment = memory_.Allocate(bytes);
    if (segment.ok()) segments.emplace_back(static_cast<char*>(*segment), bytes);
    return segment;
  }
  void Free(void* segment, size_t bytes) override {
    ++freed;
    memory_.Free(segment, bytes);
  }
  bool Owns(const void* data) const {
    return std::any_of(segments.begin(), segments.end(),
                       [data](const auto& s) { return data >= s.first && data < s.first + s.second; });
  }

  bool full = false;
  int freed = 0;
  std::vector<std::pair<char*, size_t>> segments;

 private:
  PlainMemory memory_;
};

UcxOptions WithDevice(MemorySource* memory, const char* name) {
  UcxOptions options;
  UseDevice(name, "gpu-0", memory, &options);
  return options;
}

std::unique_ptr<Transport> Create(const UcxOptions& options) {
  absl::StatusOr<std::unique_ptr<Transport>> transport = CreateUcxTransport(options);
  if (!transport.ok()) throw std::runtime_error(transport.status().ToString());
  (*transport)->BeginEpoch(kRun, 1);
  return *std::move(transport);
}

// Two connected transports with a device each; 1 sends, 2 receives.
class TransportDevice : public ::testing::Test {
 protected:
  void Start(UcxOptions from, UcxOptions to) {
    from.log = [this](const std::string& line) { lines_.push_back(line); };
    from_ = Create(from);
    to_ = Create(to);
    ASSERT_TRUE(from_->Connect(2, to_->address(), "process 2").ok());
    ASSERT_TRUE(to_->Connect(1, from_->address(), "process 1").ok());
  }
  // The event by which the want ended.
  TransportEvent Move(int step, Tensor tensor) {
    to_->Want(1, Key(step));
    from_->Offer(2, Key(step), std::move(tensor));
    std::vector<TransportEvent> events, others;
    while (events.empty()) {
      from_->Progress(MonotonicNow(), &others);
      to_->Progress(MonotonicNow(), &events);
    }
    EXPECT_TRUE(others.empty());
    return std::move(events.front());
  }
  void PumpUntilReleased(const int& released) {
    std::vector<TransportEvent> events;
    for (const Nanos end = MonotonicNow() + 60 * kSecond; released == 0 && MonotonicNow() < end;) {
      from_->Progress(MonotonicNow(), &events);
      to_->Progress(MonotonicNow(), &events);
    }
  }

  RecordingMemory source_, target_;
  std::vector<std::string> lines_;
  std::unique_ptr<Transport> from_, to_;
};

Tensor OnDevice(Tensor tensor) {
  tensor.place = MemoryPlace::kDevice;
  return tensor;
}

TEST_F(TransportDevice, Tensor_OfAnySize_LandsInTheMemoryOfTheConsumersDevice) {
  Start(WithDevice(&source_, "host:0"), WithDevice(&target_, "host:1"));
  int step = 0;
  // Some of these would go within the message, or eagerly, if they were the host's.
  for (const size_t bytes :
       {size_t{1}, size_t{64}, size_t{1000}, size_t{5000}, size_t{200'000}, size_t{20} << 20}) {
    SCOPED_TRACE(bytes);
    int released = 0;
    TransportEvent event = Move(step, OnDevice(MakeTensor(source_, bytes, step, &released)));
    ASSERT_EQ(event.kind, Kind::kArrived) << event.status;
    EXPECT_EQ(event.tensor.place, MemoryPlace::kDevice);
    EXPECT_EQ(event.tensor.ready, nullptr);
    EXPECT_TRUE(target_.Owns(event.tensor.data));
    EXPECT_TRUE(HasPattern(event.tensor, step));
    PumpUntilReleased(released);
    EXPECT_EQ(released, 1);
    ++step;
  }
  EXPECT_EQ(to_->counters().bytes_in_place, 0u);
}

TEST_F(TransportDevice, Tensor_InMemoryThatPeersCouldMap_IsStillCopied) {
  Start(WithDevice(&source_, "host:0"), WithDevice(&target_, "host:1"));
  TransportEvent event = Move(0, OnDevice(MakeTensor(from_->memory(), 100'000, 3)));
  ASSERT_EQ(event.kind, Kind::kArrived);
  EXPECT_EQ(event.tensor.place, MemoryPlace::kDevice);
  EXPECT_TRUE(target_.Owns(event.tensor.data));
}

TEST_F(TransportDevice, TensorOfTheHost_WithDevicesOnBothSides_StaysOneOfTheHost) {
  Start(WithDevice(&source_, "host:0"), WithDevice(&target_, "host:1"));
  TransportEvent event = Move(0, MakeTensor(from_->memory(), 100'000, 3));
  ASSERT_EQ(event.kind, Kind::kArrived);
  EXPECT_EQ(event.tensor.place, MemoryPlace::kHost);
  EXPECT_TRUE(target_.segments.empty());
  EXPECT_EQ(to_->counters().bytes_in_place, 100'000u);
}

TEST_F(TransportDevice, MemoryOfTheDevice_Exhausted_FailsTheWantNamingTensorAndPeer) {
  Start(WithDevice(&source_, "host:0"), WithDevice(&target_, "host:1"));
  target_.full = true;
  int released = 0;
  TransportEvent event = Move(0, OnDevice(MakeTensor(source_, 500'000, 3, &released)));
  EXPECT_EQ(event.kind, Kind::kWantFailed);
  EXPECT_EQ(event.status.code(), absl::StatusCode::kResourceExhausted);
  const std::string message(event.status.message());
  EXPECT_THAT(message, ::testing::HasSubstr("activation of step 0, stage 3"));
  EXPECT_THAT(message, ::testing::HasSubstr("process 1"));
  EXPECT_THAT(message, ::testing::HasSubstr("80 GiB are in use"));
  PumpUntilReleased(released);
  EXPECT_EQ(released, 1);
  EXPECT_EQ(from_->counters().sent_again, 0u) << "its producer has it back when it is refused";
  target_.full = false;
  EXPECT_EQ(Move(1, OnDevice(MakeTensor(source_, 500'000, 4))).kind, Kind::kArrived);
}

TEST_F(TransportDevice, MemoryOfTheDevice_OnceTaken_IsKeptAndUsedAgain) {
  Start(WithDevice(&source_, "host:0"), WithDevice(&target_, "host:1"));
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(Move(i, OnDevice(MakeTensor(source_, size_t{300} << 20 >> 3, i))).kind, Kind::kArrived);
  }
  EXPECT_EQ(target_.segments.size(), 1u);
  EXPECT_EQ(target_.freed, 0);
  from_.reset();
  to_.reset();
  EXPECT_EQ(target_.freed, 1);
}

TEST_F(TransportDevice, Paths_AreToldOncePerPeerWhenTensorsGoThere) {
  Start(WithDevice(&source_, "host:0"), WithDevice(&target_, "host:1"));
  EXPECT_TRUE(lines_.empty());
  EXPECT_TRUE(from_->paths().empty());
  const std::string device_path = from_->PathTo(2, MemoryPlace::kDevice);
  EXPECT_THAT(device_path, ::testing::AnyOf("cma", "sysv", "tcp"));
  EXPECT_EQ(from_->PathTo(2, MemoryPlace::kHost), "in_place");
  EXPECT_EQ(from_->PathTo(77, MemoryPlace::kHost), "");
  for (int i = 0; i < 3; ++i) Move(i, OnDevice(MakeTensor(source_, 5000, i)));
  EXPECT_THAT(lines_, ::testing::ElementsAre(
                          "tensors to process 2: host memory by in_place, device memory by " + device_path));
  const std::vector<PeerPath> paths = from_->paths();
  ASSERT_EQ(paths.size(), 2u);
  EXPECT_EQ(paths[0].peer, 2);
  EXPECT_EQ(paths[0].place, MemoryPlace::kHost);
  EXPECT_EQ(paths[0].path, "in_place");
  EXPECT_EQ(paths[1].place, MemoryPlace::kDevice);
  EXPECT_EQ(paths[1].path, device_path);
  EXPECT_TRUE(to_->paths().empty()) << "nothing went the other way";
}

TEST_F(TransportDevice, PeerWithoutADevice_TakesNone) {
  Start(WithDevice(&source_, "host"), UcxOptions());
  EXPECT_FALSE(from_->CarriesDevice(2));
  EXPECT_EQ(from_->PathTo(2, MemoryPlace::kDevice), "staged");
  EXPECT_FALSE(to_->CarriesDevice(1));
  EXPECT_EQ(to_->PathTo(1, MemoryPlace::kDevice), "");
  EXPECT_EQ(Move(0, MakeTensor(from_->memory(), 100'000, 3)).kind, Kind::kArrived);
  EXPECT_THAT(lines_,
              ::testing::ElementsAre("tensors to process 2: host memory by in_place, device memory by staged "
                                     "(the other process does not take device memory directly)"));
}

TEST_F(TransportDevice, PeerWithADeviceOfAnotherKind_TakesNone) {
  // UCX knows nothing of such memory, which therefore is not offered to anybody.
  Start(WithDevice(&source_, "hidden"), WithDevice(&target_, "host"));
  EXPECT_FALSE(from_->CarriesDevice(2));
  EXPECT_FALSE(to_->CarriesDevice(1));
  EXPECT_EQ(from_->PathTo(2, MemoryPlace::kDevice), "staged");
  Move(0, MakeTensor(from_->memory(), 100'000, 3));
  EXPECT_THAT(lines_, ::testing::ElementsAre(::testing::EndsWith(
                          "device memory by staged (this UCX does not know memory of hidden)")));
}

TEST_F(TransportDevice, DirectWayTurnedOff_StagesBothWays) {
  UcxOptions off = WithDevice(&target_, "host");
  off.device_direct = false;
  Start(WithDevice(&source_, "host"), off);
  EXPECT_FALSE(from_->CarriesDevice(2));
  EXPECT_FALSE(to_->CarriesDevice(1));
  EXPECT_EQ(to_->PathTo(1, MemoryPlace::kDevice), "staged");
}

// A peer that does not do as this transport does: device memory that comes within a message.
class EagerReceiver final : public UcxMessenger::Handler {
 public:
  void OnMessage(absl::string_view) override {}
  Landing OnPayload(absl::string_view, size_t) override { return {memory, 5, MemoryPlace::kDevice}; }
  void OnLanded(uint64_t token, const absl::Status& status) override {
    landed = token;
    landed_status = status;
  }
  void OnSent(uint64_t, const absl::Status&) override {}
  void OnLinkFailed(UcxMessenger::LinkId, const absl::Status&) override {}

  void* memory = nullptr;
  uint64_t landed = 0;
  absl::Status landed_status;
};

TEST(TransportDeviceMessages, DeviceMemory_SentEagerly_IsRefusedUntouched) {
  const std::unique_ptr<TestDevice> hidden = CreateHiddenDevice();
  const Tensor there = MakeDeviceTensor(*hidden, 4096, 9);
  EagerReceiver sending, receiving;
  receiving.memory = there.data;
  absl::StatusOr<std::unique_ptr<UcxMessenger>> from =
      UcxMessenger::Create(UcxSettings(UcxOptions()), &sending);
  absl::StatusOr<std::unique_ptr<UcxMessenger>> to =
      UcxMessenger::Create(UcxSettings(UcxOptions()), &receiving);
  ASSERT_TRUE(from.ok() && to.ok());
  const absl::StatusOr<UcxMessenger::LinkId> link = (*from)->Connect((*to)->address());
  ASSERT_TRUE(link.ok());
  EXPECT_FALSE((*from)->Transports(*link).empty());
  const char bytes[100] = {};
  (*from)->Send(*link, "header", {bytes, sizeof bytes, MemoryPlace::kHost, 1});
  for (const Nanos end = MonotonicNow() + 60 * kSecond; receiving.landed == 0 && MonotonicNow() < end;) {
    (*from)->Progress();
    (*to)->Progress();
  }
  EXPECT_EQ(receiving.landed, 5u);
  EXPECT_EQ(receiving.landed_status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(DeviceHasPattern(*hidden, there, 9));
  (*from)->Disconnect(*link);
  EXPECT_TRUE((*from)->Transports(*link).empty());
  EXPECT_TRUE((*from)->KnowsMemory("host"));
  EXPECT_FALSE((*from)->KnowsMemory("hidden"));
  EXPECT_FALSE((*from)->KnowsMemory(""));
}

TEST(TransportDeviceOptions, Device_IsNamedByItsKind) {
  PlainMemory memory;
  UcxOptions options;
  UseDevice("cuda:3", "GPU-1", &memory, &options);
  EXPECT_EQ(options.device_kind, "cuda");
  EXPECT_EQ(options.device_uuid, "GPU-1");
  EXPECT_EQ(options.device_memory, &memory);
  UseDevice("testgpu", "", &memory, &options);
  EXPECT_EQ(options.device_kind, "testgpu");
}

TEST(TransportDeviceOptions, Environment_ChangesTheDefaults) {
  EXPECT_TRUE(UcxOptionsFromEnvironment().device_direct);
  setenv("WEFT_DEVICE_DIRECT", "0", 1);
  setenv("WEFT_DEVICE_RDMA", "1", 1);
  EXPECT_FALSE(UcxOptionsFromEnvironment().device_direct);
  EXPECT_TRUE(UcxOptionsFromEnvironment().rdma_direct);
  setenv("WEFT_DEVICE_RDMA", "0", 1);
  EXPECT_FALSE(UcxOptionsFromEnvironment().rdma_direct);
  unsetenv("WEFT_DEVICE_DIRECT");
  unsetenv("WEFT_DEVICE_RDMA");
}

}  // namespace
}  // namespace weft::testing
