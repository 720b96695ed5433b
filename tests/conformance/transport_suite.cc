#include "tests/conformance/transport_suite.h"

#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "tests/conformance/cuda_notice.h"
#include "tests/conformance/worker_certificates.h"
#include "worker/shell/transport/ucx_transport.h"

namespace weft::testing {
namespace {

using Kind = TransportEvent::Kind;

TransportCase Loopback(const char* name, const char* device) {
  const bool carried = device[0] != '\0';
  return {name, /*in_place=*/true, device, carried,
          [carried](LoopbackNetwork& network, TestDevice*) { return network.CreateTransport(carried); }};
}

TransportCase Ucx(const char* name, UcxOptions options, const char* device = "", bool carried = false) {
  return {name, options.in_place && !carried, device, carried,
          [options](LoopbackNetwork&, TestDevice* memory) {
            UcxOptions with = options;
            if (memory != nullptr) {
              with.device_memory = &memory->memory();
              with.device_kind = memory->kind();
              with.device_uuid = memory->uuid();
            }
            absl::StatusOr<std::unique_ptr<Transport>> transport = CreateUcxTransport(with);
            if (!transport.ok()) throw std::runtime_error(transport.status().ToString());
            return *std::move(transport);
          }};
}

constexpr int kCasesWithoutCuda = 12;

std::vector<TransportCase> Cases() {
  UcxOptions copied, tcp, all, tls;
  copied.in_place = false;
  tcp.in_place = false;
  tcp.ucx_transports = "tcp";
  all.net_devices = "";
  all.inline_bytes = 0;  // even one byte is read in place
  tls.in_place = false;
  tls.shared_memory = false;
  tls.tls_network = LoopbackNetworkWith(SharedWorkerCertificates());
  std::vector<TransportCase> cases = {
      Loopback("loopback", ""),
      Ucx("ucx_in_place", UcxOptions()),
      Ucx("ucx_all_in_place", all),
      Ucx("ucx_copied", copied),
      Ucx("ucx_tcp", tcp),
      Ucx("tls", tls),
      Loopback("loopback_hidden_device", "hidden"),
      Ucx("ucx_hidden_device_staged", UcxOptions(), "hidden"),
      Ucx("ucx_hidden_device_staged_tcp", tcp, "hidden"),
      Ucx("hidden_device_staged_tls", tls, "hidden"),
      Ucx("ucx_host_device", UcxOptions(), "host", /*carried=*/true),
      Ucx("ucx_host_device_tcp", tcp, "host", /*carried=*/true),
  };
  if (cases.size() != kCasesWithoutCuda) std::abort();
  // Within one process CUDA IPC does not work, so UCX has no direct way and the tensors are staged; between
  // processes: transport_process_test.
  if (HasCuda()) {
    cases.push_back(Loopback("loopback_cuda", "cuda"));
    cases.push_back(Ucx("ucx_cuda_staged", UcxOptions(), "cuda"));
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Every, TransportConformance, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

[[maybe_unused]] const auto* const kNotice = ::testing::AddGlobalTestEnvironment(
    new CudaNotice("Every/TransportConformance", kCasesWithoutCuda, /*missing=*/2));

}  // namespace

void TransportConformance::SetUp() {
  device_ = OpenDevice(GetParam().device);
  producer_ = GetParam().create(network_, device_.get());
  consumer_ = GetParam().create(network_, device_.get());
  producer_->BeginEpoch(kRun, 1);
  consumer_->BeginEpoch(kRun, 1);
}

void TransportConformance::Connect() {
  ASSERT_TRUE(producer_->Admit({{consumer_->address(), kConsumerLabel}}).ok());
  ASSERT_TRUE(consumer_->Admit({{producer_->address(), kProducerLabel}}).ok());
  ASSERT_TRUE(producer_->Connect(kConsumer, consumer_->address(), kConsumerLabel).ok());
  ASSERT_TRUE(consumer_->Connect(kProducer, producer_->address(), kProducerLabel).ok());
  ASSERT_EQ(producer_->CarriesDevice(kConsumer), GetParam().carried);
}

void TransportConformance::Pump() {
  const Nanos now = MonotonicNow();
  int handled = 0;
  if (producer_) handled += producer_->Progress(now, &producer_events_);
  if (consumer_) handled += consumer_->Progress(now, &consumer_events_);
  if (handled == 0) std::this_thread::yield();
}

bool TransportConformance::PumpUntil(const std::function<bool()>& done, Nanos limit) {
  for (const Nanos end = MonotonicNow() + limit; !done();) {
    if (MonotonicNow() > end) return false;
    Pump();
  }
  return true;
}

void TransportConformance::PumpFor(Nanos time) {
  PumpUntil([] { return false; }, time);
}

bool TransportConformance::PumpUntilEvents(size_t n) {
  return PumpUntil([&] { return consumer_events_.size() >= n; });
}

void TransportConformance::Settle() {
  const size_t before = consumer_events_.size();
  ASSERT_TRUE(Transfer(Key(900'000 + settled_++), Tensor{}));
  ASSERT_EQ(consumer_events_.size(), before);
}

Tensor TransportConformance::Make(const std::unique_ptr<Transport>& owner, size_t bytes, uint32_t seed,
                                  int* released) {
  return device_ == nullptr ? MakeTensor(owner->memory(), bytes, seed, released)
                            : MakeDeviceTensor(*device_, bytes, seed, released);
}

void TransportConformance::Fill(const Tensor& tensor, size_t offset, size_t bytes, uint32_t seed) {
  std::vector<char> pattern(bytes);
  FillPattern(pattern.data(), bytes, seed);
  char* const to = static_cast<char*>(tensor.data) + offset;
  if (tensor.place == MemoryPlace::kHost) {
    std::memcpy(to, pattern.data(), bytes);
  } else {
    device_->Write(to, pattern.data(), bytes);
  }
}

void TransportConformance::Offer(const std::unique_ptr<Transport>& from, PeerId to, const TensorKey& key,
                                 Tensor tensor) {
  if (tensor.place == MemoryPlace::kDevice && !from->CarriesDevice(to)) {
    tensor = ToHost(*device_, tensor, from->memory());
  }
  from->Offer(to, key, std::move(tensor));
}

bool TransportConformance::Holds(const Tensor& tensor, uint32_t seed) {
  if (device_ == nullptr || tensor.place == MemoryPlace::kDevice) {
    EXPECT_EQ(tensor.place == MemoryPlace::kDevice, device_ != nullptr);
    return device_ == nullptr ? HasPattern(tensor, seed) : DeviceHasPattern(*device_, tensor, seed);
  }
  EXPECT_FALSE(GetParam().carried) << "a tensor of the device arrived as one of the host";
  return DeviceHasPattern(*device_, ToDevice(*device_, tensor), seed);
}

std::optional<Tensor> TransportConformance::Transfer(const TensorKey& key, Tensor tensor) {
  const size_t before = consumer_events_.size();
  consumer_->Want(kProducer, key);
  Offer(producer_, kConsumer, key, std::move(tensor));
  if (!PumpUntilEvents(before + 1)) return std::nullopt;
  TransportEvent event = std::move(consumer_events_.back());
  consumer_events_.pop_back();
  if (event.kind != Kind::kArrived || event.key != key || event.peer != kProducer) return std::nullopt;
  return std::move(event.tensor);
}

}  // namespace weft::testing
