// Reads what a machine has that Weft needs or is faster with: processors, memory, limits, devices.
//
// Failure: a figure that cannot be read is missing. Reads files of the kernel below `root`, which is ""
// except in tests, and asks the kernel for limits of this process.
#ifndef WEFT_CLIENT_DOCTOR_MACHINE_FACTS_H_
#define WEFT_CLIENT_DOCTOR_MACHINE_FACTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weft {

struct MachineFacts {
  int processors = 0;                          // those that this process may use
  std::optional<double> processor_quota;       // of its control group
  std::optional<int64_t> memory_bytes;         // that it can still get
  std::string memory_text;                     // the same in words
  int64_t open_files = 0;                      // the hard limit
  int64_t locked_bytes = 0;                    // the hard limit; -1: none
  std::optional<int64_t> shared_memory_bytes;  // free in /dev/shm
  std::optional<int> ptrace_scope;             // of Yama; none where the kernel has none
  std::string gpu_driver;                      // version of NVIDIA's driver; "" where there is none
  int gpus = 0;
  std::vector<std::string> rdma_devices;
  std::optional<bool> clock_synchronized;  // as the kernel was told by NTP or PTP; none: it does not say
};

MachineFacts ReadMachineFacts(const std::string& root = "");

}  // namespace weft

#endif  // WEFT_CLIENT_DOCTOR_MACHINE_FACTS_H_
