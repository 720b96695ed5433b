// Makes a run of an mlp in three stages for benchmarks of the compute adapter, which measure the middle one.
// The data is never read; it only has to be valid.
#ifndef WEFT_TESTS_BENCH_MLP_RUN_H_
#define WEFT_TESTS_BENCH_MLP_RUN_H_

#include <filesystem>
#include <fstream>
#include <string>

#include "run/run_spec.h"

namespace weft {

inline std::string ScratchFile(const char* name) {
  return (std::filesystem::temp_directory_path() / name).string();
}

// `layers`: of the middle stage. `samples`: of a micro-batch.
inline RunSpec MlpRun(int width, int layers, int samples, int microbatches) {
  const std::string images = ScratchFile("weft_bench_images"), labels = ScratchFile("weft_bench_labels");
  std::ofstream(images, std::ios::binary)
      << std::string("\0\0\x08\x03\0\0\0\x01\0\0\0\x01\0\0\0\x01\x07", 17);
  std::ofstream(labels, std::ios::binary) << std::string("\0\0\x08\x01\0\0\0\x01\0", 9);
  MlpSpec model;
  model.layers = layers + 2;
  model.width = width;
  model.inputs = 1;
  RunSpec run;
  run.model = model;
  run.data.source = IdxData{images, labels};
  run.train.batch = samples * microbatches;
  run.train.microbatches = microbatches;
  run.layers_of_stage = {1, layers, 1};
  return run;
}

}  // namespace weft

#endif  // WEFT_TESTS_BENCH_MLP_RUN_H_
