// Lets calls that change names, or make them durable, fail as those of a network file system or a broken disk
// do. The calls are those of the whole program; without a fault they go to the kernel.
#ifndef WEFT_TESTS_UNIT_DISK_FAULTS_H_
#define WEFT_TESTS_UNIT_DISK_FAULTS_H_

#include <string>

namespace weft {

struct DiskFaults {
  bool no_exchange = false;  // true if two names cannot be exchanged
  std::string name;          // path to which nothing can be renamed; "" for none
  int renames = 0;           // renames to it that fail before one does not
  std::string folder;        // path of a folder that cannot be synced; "" for none
};

// Has the faults as long as it lives. One thread alone makes and ends it.
class WithDiskFaults {
 public:
  explicit WithDiskFaults(const DiskFaults& faults);
  ~WithDiskFaults();
  WithDiskFaults(const WithDiskFaults&) = delete;
  WithDiskFaults& operator=(const WithDiskFaults&) = delete;
};

}  // namespace weft

#endif  // WEFT_TESTS_UNIT_DISK_FAULTS_H_
