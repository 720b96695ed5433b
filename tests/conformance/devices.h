// The devices that the conformance suites run on, each behind the same face: calls that have been done when
// they return, and tensors of the host.
//
//   cpu      as it is
//   testgpu  a device whose memory the host cannot touch and whose work is late (tests/testgpu)
//   cuda     a GPU, where there is one that works; else its cases are skipped, and how many is said once,
//   loudly
#ifndef WEFT_TESTS_CONFORMANCE_DEVICES_H_
#define WEFT_TESTS_CONFORMANCE_DEVICES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/shell/compute/compute.h"

namespace weft::testing {

// As the names of test parameters.
inline const std::vector<std::string> kOwnMemoryDevices = {"testgpu", "cuda"};

// Why the device's cases cannot run here; OK where they can.
absl::Status CheckDevice(const std::string& name);

// Requires that CheckDevice says OK. One a process.
Device& DeviceNamed(const std::string& name);

// In SetUp of a fixture, or at a test's begin.
#define WEFT_SKIP_WITHOUT(device)                                                       \
  if (const absl::Status missing = ::weft::testing::CheckDevice(device); !missing.ok()) \
  GTEST_SKIP() << missing.message()

}  // namespace weft::testing

#endif  // WEFT_TESTS_CONFORMANCE_DEVICES_H_
