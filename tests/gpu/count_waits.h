// Counts the calls of the CUDA runtime that wait for the device, or may: those that synchronize, that copy
// from or to memory that is not page-locked, and that make or free memory.
//
// Linking this puts its functions before the CUDA runtime's for the whole process, LibTorch included; they
// count where the calling thread asked for it and then do what the runtime does.
#ifndef WEFT_TESTS_GPU_COUNT_WAITS_H_
#define WEFT_TESTS_GPU_COUNT_WAITS_H_

#include <map>
#include <string>

namespace weft::testing {

// Counts the calls on this thread while it lives.
class CountWaits {
 public:
  CountWaits();
  ~CountWaits();
  CountWaits(const CountWaits&) = delete;
  CountWaits& operator=(const CountWaits&) = delete;

  // Returns the counts by the name of the call.
  const std::map<std::string, int>& calls() const { return calls_; }
  static void Note(const char* call);

 private:
  std::map<std::string, int> calls_;
};

}  // namespace weft::testing

#endif  // WEFT_TESTS_GPU_COUNT_WAITS_H_
