#include "run/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace weft::json_text_test {
namespace {

using ::testing::HasSubstr;

std::string Nested(int depth, const std::string& inside = "") {
  return std::string(depth, '[') + inside + std::string(depth, ']');
}

TEST(JsonText, NestedUpToTheLimit_IsParsed) {
  const auto json = ParseJson(Nested(kMaxJsonDepth, "1"));
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(json->dump(), Nested(kMaxJsonDepth, "1"));
}

TEST(JsonText, NestedDeeper_IsRefusedWithDepthAndLimit) {
  for (const std::string& text : {Nested(kMaxJsonDepth + 1), Nested(500'000), std::string(1 << 20, '[')}) {
    const auto json = ParseJson(text);
    EXPECT_EQ(json.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(json.status().message()), HasSubstr("33 levels deep at byte 32"));
    EXPECT_THAT(std::string(json.status().message()), HasSubstr("at most 32 levels"));
  }
  std::string objects;
  for (int i = 0; i < 60'000; ++i) objects += "{\"a\":";
  EXPECT_THAT(std::string(ParseJson(objects).status().message()), HasSubstr("33 levels deep"));
}

TEST(JsonText, BracketsWithinText_DoNotCount) {
  const std::string text =
      "[\"" + std::string(1000, '[') + "\", \"\\\"" + std::string(1000, '{') + "\", \"\\\\\"]";
  const auto json = ParseJson(text);
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(json->size(), 3u);
}

TEST(JsonText, Siblings_DoNotAddUp) {
  std::string text = "[";
  for (int i = 0; i < 1000; ++i) text += "[[]],";
  EXPECT_TRUE(ParseJson(text + "0]").ok());
}

TEST(JsonText, NoJson_IsRefused) {
  for (const char* text : {"", "{", "[1,]", "}", "\"open", "]]]]"}) {
    EXPECT_EQ(ParseJson(text).status().message(), "is not JSON") << text;
  }
}

}  // namespace
}  // namespace weft::json_text_test
