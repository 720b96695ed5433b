// Tests which texts are a range of ports.
#include "base/net/port_range.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace weft::port_range_test {
namespace {

std::string Parsed(const std::string& text) {
  const auto ports = ParsePorts(text);
  return ports.has_value() ? absl::StrCat(ports->first, " to ", ports->last) : "none";
}

TEST(ParsePorts, RangeOrOnePort_HasItsEnds) {
  EXPECT_EQ(Parsed("20000-20100"), "20000 to 20100");
  EXPECT_EQ(Parsed("20000"), "20000 to 20000");
  EXPECT_EQ(Parsed("1-65535"), "1 to 65535");
}

TEST(ParsePorts, TextsThatAreNone_AreRefused) {
  for (const char* text : {"", "-", "20000-", "-20000", "a-b", "20000-b", "0", "0-5", "20100-20000", "65536",
                           "65000-65536", "1-2-3"})
    EXPECT_EQ(Parsed(text), "none") << text;
}

}  // namespace
}  // namespace weft::port_range_test
