// `weft compare`: every family of schedules on a run file's model, side by side, fastest first.
#ifndef WEFT_CLIENT_COMPARE_COMMAND_H_
#define WEFT_CLIENT_COMPARE_COMMAND_H_

#include <string>

#include "client/console.h"

namespace weft {

struct CompareOptions {
  std::string file;      // the run file; its schedule is compared too
  std::string profile;   // of the model; empty: counted FLOPs
  double memory = 0;     // bytes a rank; 0: the run file's, else no budget
  double flops = 1e9;    // a unit of time, for counted FLOPs
  double bandwidth = 0;  // bytes per unit of time; 0: the profile's, else infinite
  double latency = 0;    // 0: the profile's, else none
  int workers = 0;       // at most as many ranks; 0: any number
  bool json = false;
};

ExitCode RunCompare(const CompareOptions& options);

}  // namespace weft

#endif  // WEFT_CLIENT_COMPARE_COMMAND_H_
