// The table of tokens: what is written is found again, and what is wrong is named by its line.
#include "coordinator/shell/user_tokens.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/certificates/secret_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::user_tokens_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(TokenTable, TokensOfUsers_AreFoundAndNotShown) {
  TokenTable table;
  ASSERT_TRUE(table.Put({Role::kViewer, "bob"}, "secret1").ok());
  ASSERT_TRUE(table.Put({Role::kAdmin, "bob"}, "secret2").ok());
  EXPECT_THAT(table.Text(), Not(HasSubstr("secret")));
  const auto read = TokenTable::Parse(table.Text());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->Find("secret1"), (Identity{Role::kViewer, "bob"}));
  EXPECT_EQ(read->Find("secret2"), (Identity{Role::kAdmin, "bob"}));
  for (const char* unknown : {"", "secret", "secret11", "Secret1"}) {
    EXPECT_EQ(read->Find(unknown), std::nullopt) << unknown;
  }
  // A hash is no token.
  EXPECT_EQ(read->Find(Sha256Of("secret1")), std::nullopt);
}

TEST(TokenTable, SecondTokenOfAnIdentity_ReplacesTheFirst) {
  TokenTable table;
  ASSERT_TRUE(table.Put({Role::kViewer, "bob"}, "first").ok());
  ASSERT_TRUE(table.Put({Role::kViewer, "bob"}, "second").ok());
  EXPECT_EQ(table.Find("first"), std::nullopt);
  EXPECT_TRUE(table.Find("second").has_value());
}

TEST(TokenTable, LineThatIsWrong_IsNamed) {
  const std::string hash = Sha256Of("x");
  EXPECT_TRUE(TokenTable::Parse(absl::StrCat("\n# a comment\n  viewer\tbob  ", hash, "\r\n")).ok());
  for (const std::string& line :
       {std::string("viewer bob"), absl::StrCat("root bob ", hash), absl::StrCat("viewer b/b ", hash),
        absl::StrCat("worker w ", hash), absl::StrCat("coordinator c ", hash),
        absl::StrCat("viewer bob ", hash, " more"), absl::StrCat("viewer bob ", hash.substr(1)),
        absl::StrCat("viewer bob ", std::string(64, 'A'))}) {
    const auto read = TokenTable::Parse(absl::StrCat("viewer a ", hash, "\n", line));
    ASSERT_FALSE(read.ok()) << line;
    EXPECT_THAT(std::string(read.status().message()), HasSubstr("line 2: ")) << line;
  }
}

}  // namespace
}  // namespace weft::user_tokens_test
