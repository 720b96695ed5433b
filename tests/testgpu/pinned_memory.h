// Provides host memory that the test device copies from by itself, later; and the queue that does it for this
// thread.
#ifndef WEFT_TESTS_TESTGPU_PINNED_MEMORY_H_
#define WEFT_TESTS_TESTGPU_PINNED_MEMORY_H_

#include "tests/testgpu/device_queue.h"

namespace weft::testgpu {

bool IsPinned(const void* address);
DeviceQueue* ThreadQueue();

}  // namespace weft::testgpu

#endif  // WEFT_TESTS_TESTGPU_PINNED_MEMORY_H_
