// Reads any text as the specification that a client submits: JSON.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/require.h"
#include "coordinator/shell/spec_planner.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto run = weft::ReadRun(std::string(reinterpret_cast<const char*>(data), size));
  if (!run.ok()) weft::Require(!run.status().message().empty(), "a refusal says why");
  return 0;
}
