// Makes a small run as the client writes it, changed in places, and checks the message where it is refused.
#ifndef WEFT_TESTS_UNIT_SMALL_RUN_SPEC_H_
#define WEFT_TESTS_UNIT_SMALL_RUN_SPEC_H_

#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "run/run_spec.h"

namespace weft {

using Json = nlohmann::json;

inline Json GptRun() {
  return Json::parse(R"({
    "name": "small",
    "model": {"gpt": {"layers": 4, "width": 32, "heads": 2, "context": 16}},
    "data": {"text": {"path": "/data/a.txt"}, "order": "sequential"},
    "train": {"steps": 3, "batch": 16, "microbatches": 4, "seed": 7, "optimizer": {"adamw": {"lr": 1e-3}}},
    "stages": 4,
    "schedule": {"lpp": {"groups": 2, "ranks": 4}, "rule": "sync", "reduction": "ordered"}})");
}

inline Json With(const char* pointer, Json value) {
  Json run = GptRun();
  run[Json::json_pointer(pointer)] = std::move(value);
  return run;
}

inline Json Without(const char* section, const char* key) {
  Json run = GptRun();
  (*section != '\0' ? run[section] : run).erase(key);
  return run;
}

struct Refusal {
  Json file;
  std::string path;
  std::string message;  // part of it
};

inline void ExpectRefused(const Refusal& refusal) {
  SCOPED_TRACE(refusal.file.dump());
  const auto spec = ParseRunSpec(refusal.file);
  ASSERT_FALSE(spec.ok());
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(spec.status().message()), ::testing::HasSubstr(refusal.message));
  const auto path = spec.status().GetPayload(kPathPayload);
  ASSERT_TRUE(path.has_value());
  EXPECT_EQ(std::string(*path), refusal.path);
  if (!refusal.path.empty()) {
    EXPECT_EQ(std::string(spec.status().message()).rfind(refusal.path + ": ", 0), 0u) << spec.status();
  }
}

}  // namespace weft

#endif  // WEFT_TESTS_UNIT_SMALL_RUN_SPEC_H_
