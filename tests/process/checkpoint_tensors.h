// Reads the tensors of a checkpoint folder, for tests of whole programs.
#ifndef WEFT_TESTS_PROCESS_CHECKPOINT_TENSORS_H_
#define WEFT_TESTS_PROCESS_CHECKPOINT_TENSORS_H_

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>

#include "nlohmann/json.hpp"
#include "tests/process/command.h"

namespace weft {

using CheckpointTensors = std::map<std::string, std::string>;  // bytes by name

// Reads the newest weights; nothing of a folder that is not there.
inline CheckpointTensors ReadWeights(const std::string& folder) {
  CheckpointTensors tensors;
  if (!std::filesystem::exists(folder)) return tensors;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const std::string file = ReadWholeFile(entry.path());
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof length);
    const auto header = nlohmann::json::parse(file.substr(8, length));
    for (const auto& [name, value] : header.items()) {
      if (name == "__metadata__") continue;
      const uint64_t begin = value["data_offsets"][0], end = value["data_offsets"][1];
      tensors[name] = file.substr(8 + length + begin, end - begin);
    }
  }
  return tensors;
}

// Reads the weights with the older versions and the optimizer's state.
inline CheckpointTensors ReadTensors(const std::string& folder) {
  CheckpointTensors tensors = ReadWeights(folder);
  tensors.merge(ReadWeights(folder + "/state"));
  return tensors;
}

}  // namespace weft

#endif  // WEFT_TESTS_PROCESS_CHECKPOINT_TENSORS_H_
