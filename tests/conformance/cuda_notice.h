// Says in one line what a suite leaves out where there is no GPU.
#ifndef WEFT_TESTS_CONFORMANCE_CUDA_NOTICE_H_
#define WEFT_TESTS_CONFORMANCE_CUDA_NOTICE_H_

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "tests/conformance/device_memory.h"

namespace weft::testing {

inline bool HasCuda() {
  static const bool has = OpenCudaDevice() != nullptr;
  return has;
}

// The notice of a suite whose tests run with each of `values` parameters, and without CUDA lack `missing`
// more.
class CudaNotice : public ::testing::Environment {
 public:
  CudaNotice(std::string suite, int values, int missing)
      : suite_(std::move(suite)), values_(values), missing_(missing) {}
  void SetUp() override {
    if (HasCuda()) return;
    const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
    for (int i = 0; i < all.total_test_suite_count(); ++i) {
      if (suite_ != all.GetTestSuite(i)->name()) continue;
      std::fprintf(stderr, "CUDA: no driver on this machine, %d cases of %s not run\n",
                   all.GetTestSuite(i)->total_test_count() / values_ * missing_, suite_.c_str());
    }
  }

 private:
  const std::string suite_;
  const int values_, missing_;
};

}  // namespace weft::testing

#endif  // WEFT_TESTS_CONFORMANCE_CUDA_NOTICE_H_
