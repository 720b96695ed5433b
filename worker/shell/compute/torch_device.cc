// CpuDevice: ranks that compute through LibTorch, one thread a kernel.
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/cpu_rank.h"
#include "worker/shell/compute/data.h"
#include "worker/shell/compute/host_offload.h"
#include "worker/shell/compute/memory_scope.h"
#include "worker/shell/compute/parameters.h"
#include "worker/shell/compute/torch_context.h"
#include "worker/shell/compute/torch_guard.h"

namespace weft {
namespace {

class CpuDevice final : public Device {
 public:
  absl::string_view name() const override { return "cpu"; }

  absl::StatusOr<std::unique_ptr<RankCompute>> CreateRank(const RunSpec& run, Rank rank,
                                                          MemorySource& memory) override {
    auto what = [&] { return absl::StrCat("rank ", rank); };
    return Guarded(what, [&]() -> absl::StatusOr<std::unique_ptr<RankCompute>> {
      int layers = 0;
      for (int n : run.layers_of_stage) layers += n;
      if (layers != static_cast<int>(DescribeLayers(run.model).size())) {
        return absl::InvalidArgumentError(
            absl::StrFormat("the stages have %d layers, the model has %d", layers,
                            static_cast<int>(DescribeLayers(run.model).size())));
      }
      PrepareRun(run.precision, run.kernels);
      absl::StatusOr<std::unique_ptr<Dataset>> data = Dataset::Open(run);
      if (!data.ok()) return data.status();
      return std::unique_ptr<RankCompute>(new CpuRank(run, *std::move(data), memory));
    });
  }
};

}  // namespace

std::unique_ptr<Device> CreateCpuDevice() {
  PrepareProcess();
  InstallTorchAllocator();
  InstallOffloadEngine();
  return std::make_unique<CpuDevice>();
}

}  // namespace weft
