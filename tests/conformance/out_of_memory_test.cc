// A rank whose memory is out in the middle of a run says which job, how many bytes, for what, what else is
// there, and what would help.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "run/run_schedule.h"
#include "tests/conformance/training_driver.h"
#include "worker/shell/compute/compute.h"

namespace weft::testing::out_of_memory_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Device& Cpu() {
  static const std::unique_ptr<Device> device = CreateCpuDevice();
  return *device;
}

// Segments until there are no more to be had.
class ScarceMemory final : public MemorySource {
 public:
  absl::StatusOr<void*> Allocate(size_t bytes) override {
    if (out_) return absl::ResourceExhaustedError("the arena of the test is full");
    return memory_.Allocate(bytes);
  }
  void Free(void* segment, size_t bytes) override { memory_.Free(segment, bytes); }
  void EndSupply() { out_ = true; }

 private:
  PlainMemory memory_;
  bool out_ = false;
};

class OutOfMemory : public ::testing::Test {
 protected:
  OutOfMemory() : run_(SmallGptRun(folder_.path(), 1)) {
    run_.train.batch = 4096;  // some MiB a micro-batch
    rank_ = Require(Cpu().CreateRank(*ScheduledRun::Make(run_), 0, memory_));
    Require(rank_->AddStage(0, StageRole::Whole()));
  }
  absl::Status Forward(int microbatch) {
    return rank_->Forward(Job::Compute(0, 0, microbatch, JobKind::kForward), {}, {}, 0).status();
  }

  TestFolder folder_;
  RunSpec run_;
  ScarceMemory memory_;
  std::unique_ptr<RankCompute> rank_;
};

// LibTorch asks for the memory. Memory that a forward uses counts as buffers until it has ended.
TEST_F(OutOfMemory, InTheMiddleOfAForward_NamesJobClassBytesAndRemedies) {
  Require(Forward(0));
  memory_.EndSupply();
  const absl::Status status = Forward(1);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("out of memory: " + Describe(Job::Compute(0, 0, 1, JobKind::kForward))),
            HasSubstr(" bytes for buffers: the arena of the test is full"), HasSubstr("the rank also has "),
            HasSubstr(" of weights, "), HasSubstr(" of activations"), HasSubstr("train.microbatches"),
            HasSubstr("recompute or offload"), Not(HasSubstr(" of gradients"))));
  // The earlier pass is untouched.
  EXPECT_GT(rank_->live_bytes()[static_cast<int>(MemoryClass::kActivations)], 0);
}

// The rank asks for it.
TEST_F(OutOfMemory, ForWeightsThatAreGathered_NamesTheSame) {
  memory_.EndSupply();
  const Job job = Job::Compute(0, 0, 0, JobKind::kForward);
  absl::Status status;
  std::vector<Tensor> taken;  // what is left of the segments
  while (status.ok()) {
    absl::StatusOr<Tensor> whole = rank_->GatherWeights(job, {Require(rank_->Weights(0, 0))}, 0);
    status = whole.status();
    if (whole.ok()) taken.push_back(*whole);
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("out of memory: gathering the weights for " + Describe(job)),
                    HasSubstr(" bytes for buffers: the arena of the test is full"), HasSubstr(" of weights"),
                    HasSubstr("more stages")));
}

}  // namespace
}  // namespace weft::testing::out_of_memory_test
