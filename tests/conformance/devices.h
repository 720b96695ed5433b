// Opens the devices that the conformance suites run on, each behind the same face: calls that have been done
// when they return, and tensors of the host.
//
// cpu      as it is
// testgpu  a device whose memory the host cannot touch and whose work is late (tests/testgpu)
// cuda     a GPU
//
// None captures passes: the suites walk passes in ways that no schedule does, halves of backwards among them.
//
// A process has the CPU and one of the others: WEFT_TEST_DEVICE says which, testgpu if it is not set. If that
// one cannot be loaded, the process ends and says why.
#ifndef WEFT_TESTS_CONFORMANCE_DEVICES_H_
#define WEFT_TESTS_CONFORMANCE_DEVICES_H_

#include <string>
#include <vector>

#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/device_backend.h"

namespace weft::testing {

// Returns the devices with memory of their own of this process, to be parameters of tests.
std::vector<std::string> OwnMemoryDevices();

// Returns the device "cpu", or one of those; there is one of each in a process.
Device& DeviceNamed(const std::string& name);
// Returns false for a GPU, whose libraries keep workspaces: what is counted to the byte does not hold there.
bool TakesBytesAsAsked(const std::string& name);

// Returns the backend whose plain loop has the bits of the device; null for the CPU, whose bits the test
// device has too.
DeviceBackend* ReferenceOf(const std::string& name);
// Returns the backend of one of those, for loops that take a backend; null for the CPU and for what this
// process has not loaded.
DeviceBackend* BackendNamed(const std::string& name);

}  // namespace weft::testing

#endif  // WEFT_TESTS_CONFORMANCE_DEVICES_H_
