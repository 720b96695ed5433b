// A device library as it should be, whose device does nothing but say how it was asked for.
#include "absl/strings/str_cat.h"
#include "worker/shell/compute/device_backend.h"
#include "worker/shell/compute/device_version.h"
#include "worker/shell/memory/communicator.h"
#include "worker/shell/torch/rank_device.h"

namespace weft {
namespace {

class GoodBackend final : public DeviceBackend {
 public:
  explicit GoodBackend(const DeviceOptions& options)
      : name_(absl::StrCat("good:", options.index)),
        uuid_(absl::StrCat("process ", options.process, options.graphs ? " graphs" : "",
                           options.mark_jobs ? " marks" : "")) {}
  const std::string& name() const override { return name_; }
  const std::string& uuid() const override { return uuid_; }
  void PrepareThread() override {}
  absl::StatusOr<std::unique_ptr<RankDevice>> CreateRankDevice(Rank, MemorySource&) override {
    return absl::UnimplementedError("it computes nothing");
  }
  MemorySource& memory() override { return memory_; }
  CommunicationLibrary* communication() override { return nullptr; }

 private:
  const std::string name_, uuid_;
  PlainMemory memory_;
};

}  // namespace
}  // namespace weft

extern "C" __attribute__((visibility("default"))) absl::Status weft_device_backend(
    const char* version, const weft::DeviceOptions& options, std::unique_ptr<weft::DeviceBackend>* backend) {
  if (const absl::Status same = weft::CheckDeviceVersion(version); !same.ok()) return same;
  *backend = std::make_unique<weft::GoodBackend>(options);
  return absl::OkStatus();
}
