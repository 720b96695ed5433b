// MKL's choice of kernels for exp and its like, which two threads must not make at once (PrepareProcess).
#include <ATen/ops/exp.h>
#include <ATen/ops/linspace.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "worker/shell/torch/torch_layers.h"

namespace weft::vector_kernels_test {
namespace {

constexpr int kValues = 1000;

enum class Prepared : bool { kNo, kYes };

// Returns exponentials as a new process computes them, in which MKL is told after its preparation that it
// runs on another processor; nothing if the process dies, since the processor has other instructions.
std::vector<float> ExponentialsOn(const char* processor, Prepared prepared) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  EXPECT_GE(child, 0);
  if (child == 0) {
    if (prepared == Prepared::kYes) PrepareProcess();
    if (processor != nullptr) setenv("MKL_VML_DEBUG_CPU_TYPE", processor, 1);
    const at::Tensor made = at::exp(at::linspace(-5, 5, kValues));
    const ssize_t bytes = kValues * sizeof(float);
    _exit(write(ends[1], made.const_data_ptr<float>(), bytes) == bytes ? 0 : 1);
  }
  close(ends[1]);
  std::vector<float> values(kValues);
  const ssize_t got = read(ends[0], values.data(), kValues * sizeof(float));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0 || got != static_cast<ssize_t>(kValues * sizeof(float))) return {};
  return values;
}

TEST(VectorKernels, PreparedProcess_HasChosenThem) {
  const std::vector<float> own = ExponentialsOn(nullptr, Prepared::kNo);
  ASSERT_EQ(own.size(), kValues);
  int others = 0;
  for (const char* processor : {"0", "3"}) {
    const std::vector<float> other = ExponentialsOn(processor, Prepared::kNo);
    if (other.empty() || other == own) continue;
    ++others;
    EXPECT_EQ(ExponentialsOn(processor, Prepared::kYes), own);
  }
  if (others == 0) GTEST_SKIP() << "NOT TESTED: exp has the same bits with every kernel that runs here";
}

}  // namespace
}  // namespace weft::vector_kernels_test
