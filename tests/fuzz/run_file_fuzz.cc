// Reads any text as a run file. An accepted text must be a run that the coordinator accepts too: as JSON it
// is the same run again.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/require.h"
#include "client/files/run_file.h"
#include "nlohmann/json.hpp"
#include "run/run_spec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto run = weft::ParseRunFile("/fuzz/run.yaml", text, weft::RunFileData::kIgnored);
  if (!run.ok()) {
    weft::Require(!run.status().message().empty(), "a refusal says why");
    return 0;
  }
  const nlohmann::json json = weft::ToJson(*run);
  const auto again = weft::ParseRunSpec(json);
  weft::Require(again.ok(), "a run that was read is accepted as JSON");
  weft::Require(weft::ToJson(*again) == json, "it is the same run");
  return 0;
}
