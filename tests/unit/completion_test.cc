#include "client/commands/completion.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::completion_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Kind = CompletedValue::Kind;

std::string Script(const std::string& shell) {
  const std::vector<CompletedFlag> flags = {
      {{"-o", "--output"}, "table [default] or: json, 'it'", {Kind::kAny, {"table", "json"}}},
      {{"--out"}, "Folder", {Kind::kFolder}},
      {{"--detach"}, "Leave", {}}};
  return CompletionScript(shell, {{"train", "Train 'here'", flags, {Kind::kFile}}, {"ls", "List", {}, {}}},
                          {{{"--version"}, "Version", {}}});
}

TEST(CompletionScript_Bash, CommandsFlagsAndValues) {
  const std::string script = Script("bash");
  EXPECT_THAT(script, AllOf(HasSubstr("compgen -W 'train ls --version'"), HasSubstr("-o|--output) mapfile"),
                            HasSubstr("-W 'table json'"), HasSubstr("-o --output --out --detach"),
                            HasSubstr("complete -F _weft weft")));
  EXPECT_THAT(script, Not(HasSubstr("--detach)"))) << "it takes no value";
}

TEST(CompletionScript_Zsh, QuotesWhatItWouldRead) {
  const std::string script = Script("zsh");
  EXPECT_THAT(script,
              AllOf(HasSubstr("#compdef weft"), HasSubstr(R"('train:Train '\''here'\''')"),
                    HasSubstr(R"('--output[table \[default\] or\: json, '\''it'\'']:value:(table json)')"),
                    HasSubstr("'--out[Folder]:value:_files -/'"), HasSubstr("'--detach[Leave]'")));
}

TEST(CompletionScript_Fish, OneLineAFlag) {
  const std::string script = Script("fish");
  EXPECT_THAT(script,
              AllOf(HasSubstr(R"(-s o -l output -x -a 'table json' -d 'table [default] or: json, \'it\'')"),
                    HasSubstr("__fish_seen_subcommand_from train' -l detach -d 'Leave'"),
                    HasSubstr(R"(-a train -d 'Train \'here\'')")));
}

}  // namespace
}  // namespace weft::completion_test
