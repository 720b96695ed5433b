// Opens the devices that the conformance suites run on, each behind the same face: calls that have been done
// when they return, and tensors of the host.
//
// cpu      as it is
// testgpu  a device whose memory the host cannot touch and whose work is late (tests/testgpu)
// cuda     a GPU, where there is one that works; else its cases are skipped, and how many is said once,
// loudly
#ifndef WEFT_TESTS_CONFORMANCE_DEVICES_H_
#define WEFT_TESTS_CONFORMANCE_DEVICES_H_

#include <string>
#include <vector>

#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/device_backend.h"

namespace weft::testing {

// Returns the devices with memory of their own that can be used here, to be parameters of tests. Without a
// GPU that works one line at the program's begin says how many cases that leaves out.
std::vector<std::string> OwnMemoryDevices();

// Returns "cpu", or one of those. One a process each.
Device& DeviceNamed(const std::string& name);
// Returns the backend of one of those, for loops that take a backend; null where it cannot be used here.
DeviceBackend* BackendNamed(const std::string& name);

}  // namespace weft::testing

#endif  // WEFT_TESTS_CONFORMANCE_DEVICES_H_
