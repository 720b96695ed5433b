#include "base/settings/settings.h"

#include <stdlib.h>

#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "run/unknown_name.h"
#include "tests/test_folder.h"

namespace weft::settings_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Parsed settings.
struct Parsed {
  // Returns "" or what the settings say of the error; "usage: .." if they blame no file.
  std::string Parse(std::vector<std::string> arguments) {
    try {
      app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    } catch (const CLI::ParseError& e) {
      return settings->Blame(e).value_or(absl::StrCat("usage: ", e.what()));
    }
    return "";
  }

  CLI::App app;
  std::optional<Settings> settings;
};

// A daemon with some flags.
struct Daemon : Parsed {
  explicit Daemon(const std::string& default_file = "") {
    app.add_option("--listen", listen)->take_all()->delimiter(',');
    app.add_option("--lease", lease)->check(CLI::Range(5, 100));
    app.add_option("--log-level", log_level)->check(CLI::IsMember({"error", "warning", "info"}));
    app.add_flag("--insecure", insecure);
    app.add_option("--backup", backup)->configurable(false);
    settings.emplace(app, SettingsOptions{default_file, UnknownName});
  }

  // Returns "VALUE ORIGIN PLACE".
  std::string Of(const std::string& name) const {
    for (const Setting& s : settings->List()) {
      if (s.name == name) return absl::StrCat(s.value, " ", s.origin, s.place.empty() ? "" : " ", s.place);
    }
    return "none";
  }

  std::vector<std::string> listen = {"127.0.0.1:7070"};
  int lease = 15;
  std::string log_level = "info", backup;
  bool insecure = false;
};

class SettingsTest : public ::testing::Test {
 protected:
  ~SettingsTest() override {
    for (const char* name :
         {"WEFT_CONFIG", "WEFT_LEASE", "WEFT_LOG_LEVEL", "WEFT_LISTEN", "WEFT_BACKUP", "WEFT_TOKEN"})
      unsetenv(name);
  }
  void Write(const std::string& text) const { std::ofstream(file_) << text; }

  const TestFolder temporary_;
  const std::string folder_ = temporary_.path(), file_ = folder_ + "/coordinator.yaml";
};

TEST_F(SettingsTest, EachSource_WinsOverTheOnesBefore) {
  Write("log-level: warning\nlease: 20\nlisten: [a:1, b:2]\ninsecure: true\n");
  setenv("WEFT_LEASE", "30", 1);
  setenv("WEFT_LOG_LEVEL", "error", 1);
  Daemon daemon;
  ASSERT_EQ(daemon.Parse({"--config", file_, "--log-level", "info"}), "");
  EXPECT_EQ(daemon.log_level, "info");
  EXPECT_EQ(daemon.lease, 30);
  EXPECT_THAT(daemon.listen, ElementsAre("a:1", "b:2"));
  EXPECT_TRUE(daemon.insecure);
  EXPECT_EQ(daemon.Of("log-level"), "info flag --log-level");
  EXPECT_EQ(daemon.Of("lease"), "30 environment WEFT_LEASE");
  EXPECT_EQ(daemon.Of("listen"), absl::StrCat("a:1 b:2 file ", file_, ":3"));
  EXPECT_EQ(daemon.Of("insecure"), absl::StrCat("true file ", file_, ":4"));
  EXPECT_EQ(daemon.Of("backup"), "none") << "it is only a flag";
}

TEST_F(SettingsTest, WithoutAnySource_ValuesAreBuiltIn) {
  Daemon daemon(folder_ + "/not-there.yaml");
  ASSERT_EQ(daemon.Parse({}), "");
  EXPECT_EQ(daemon.Of("lease"), "15 built-in");
  EXPECT_EQ(daemon.Of("listen"), "127.0.0.1:7070 built-in");
  EXPECT_EQ(daemon.Of("insecure"), "false built-in");
  EXPECT_EQ(daemon.settings->file(), "");
}

TEST_F(SettingsTest, DefaultFile_IsReadIfItIsThere) {
  Write("lease: 20\n");
  Daemon daemon(file_);
  ASSERT_EQ(daemon.Parse({}), "");
  EXPECT_EQ(daemon.lease, 20);
  EXPECT_EQ(daemon.settings->file(), file_);
}

TEST_F(SettingsTest, FileOfTheVariable_IsReadBeforeTheDefaultOne) {
  const std::string other = folder_ + "/other.yaml";
  Write("lease: 20\n");
  std::ofstream(other) << "lease: 40\n";
  setenv("WEFT_CONFIG", other.c_str(), 1);
  Daemon daemon(file_);
  ASSERT_EQ(daemon.Parse({}), "");
  EXPECT_EQ(daemon.Of("lease"), absl::StrCat("40 file ", other, ":1"));
  EXPECT_EQ(daemon.settings->file(), other);
  Daemon flagged(other);
  ASSERT_EQ(flagged.Parse({"--config", file_}), "");
  EXPECT_EQ(flagged.lease, 20);
}

TEST_F(SettingsTest, FileOfTheVariableThatIsNotThere_IsRefusedWithTheVariable) {
  Write("lease: 20\n");
  for (const std::string& path : {folder_ + "/none.yaml", folder_}) {
    setenv("WEFT_CONFIG", path.c_str(), 1);
    EXPECT_THAT(Daemon(file_).Parse({}), StartsWith(absl::StrCat("WEFT_CONFIG: ", path, " "))) << path;
    EXPECT_EQ(Daemon().Parse({"--config", file_}), "") << "the flag wins";
  }
  setenv("WEFT_CONFIG", "", 1);
  Daemon daemon(file_);
  ASSERT_EQ(daemon.Parse({}), "");
  EXPECT_EQ(daemon.lease, 20) << "an empty variable is none";
}

TEST_F(SettingsTest, ListInTheEnvironment_HasCommas) {
  setenv("WEFT_LISTEN", "a:1,b:2", 1);
  Daemon daemon;
  ASSERT_EQ(daemon.Parse({}), "");
  EXPECT_THAT(daemon.listen, ElementsAre("a:1", "b:2"));
}

TEST_F(SettingsTest, UnknownKey_IsRefusedWithPlaceAndNearestKey) {
  Write("lease: 20\nlog-levle: warning\n");
  EXPECT_THAT(Daemon().Parse({"--config", file_}),
              AllOf(StartsWith(file_ + ":2: "), HasSubstr("unknown key \"log-levle\""),
                    HasSubstr("did you mean \"log-level\"?")));
}

TEST_F(SettingsTest, UnknownKeyOfTheDefaultFile_IsRefusedToo) {
  Write("leese: 20\n");
  EXPECT_THAT(Daemon(file_).Parse({}), HasSubstr("did you mean \"lease\"?"));
}

TEST_F(SettingsTest, KeyOfWhatIsOnlyAFlag_IsRefused) {
  Write("backup: x\n");
  EXPECT_THAT(Daemon().Parse({"--config", file_}), HasSubstr("unknown key \"backup\""));
  setenv("WEFT_BACKUP", "x", 1);
  std::ofstream(file_) << "";
  Daemon daemon;
  ASSERT_EQ(daemon.Parse({"--config", file_}), "");
  EXPECT_EQ(daemon.backup, "");
}

TEST_F(SettingsTest, WrongValues_AreRefusedWithTheirLine) {
  const std::map<std::string, std::string> wrong = {{"insecure: true\nlease: 2\n", ":2: "},
                                                    {"lease: many\n", ":1: "},
                                                    {"\nlog-level: loud\n", ":2: "},
                                                    {"lease: [1, 2]\n", ":1: lease must be one value"},
                                                    {"insecure: 3\n", "insecure must be true or false"},
                                                    {"lease: {a: 1}\n", "lease must be one value"},
                                                    {"- lease\n", ":1: must have keys"},
                                                    {"lease: 20\nlease: 30\n", "is given twice"},
                                                    {"lease: [\n", "is not YAML"}};
  for (const auto& [text, expected] : wrong) {
    std::ofstream(file_) << text;
    EXPECT_THAT(Daemon().Parse({"--config", file_}), AllOf(StartsWith(file_ + ":"), HasSubstr(expected)))
        << text;
  }
}

TEST_F(SettingsTest, WrongFlagBesideARightFile_IsUsage) {
  Write("log-level: warning\n");
  EXPECT_THAT(Daemon().Parse({"--config", file_, "--lease", "2"}), StartsWith("usage: "));
}

TEST_F(SettingsTest, FileThatIsNotThere_IsRefused) {
  EXPECT_THAT(Daemon().Parse({"--config", file_}), HasSubstr(file_));
}

TEST_F(SettingsTest, EmptyFile_SetsNothing) {
  Write("# nothing\n");
  Daemon daemon;
  EXPECT_EQ(daemon.Parse({"--config", file_}), "");
  EXPECT_EQ(daemon.lease, 15);
}

// A program with commands.
struct Program : Parsed {
  Program() {
    for (const char* name : {"ls", "train"}) {
      CLI::App* sub = app.add_subcommand(name, "");
      if (std::string(name) == "ls") sub->add_option("--coordinator", coordinator);
      if (std::string(name) == "ls") sub->add_option("--token-file", token_file);
      sub->add_option("--device", device[name]);
      CLI::Option* const processes = sub->add_option("--processes", processes_of[name]);
      sub->add_flag("--reference", reference[name])->excludes(processes);
    }
    settings.emplace(
        app, SettingsOptions{"", UnknownName, {"coordinator", "token-file"}, {{"token-file", "WEFT_TOKEN"}}});
  }

  std::string coordinator, token_file;
  std::map<std::string, std::string> device;
  std::map<std::string, int> processes_of;
  std::map<std::string, bool> reference;
};

TEST_F(SettingsTest, Commands_TakeTheirSectionsAndWhatStandsAbove) {
  Write("coordinator: a:1\nls: {device: cpu}\ntrain: {device: cuda}\n");
  Program ls, train;
  ASSERT_EQ(ls.Parse({"--config", file_, "ls"}), "");
  EXPECT_EQ(ls.coordinator, "a:1");
  EXPECT_EQ(ls.device["ls"], "cpu");
  EXPECT_EQ(ls.device["train"], "") << "it is not run";
  ASSERT_EQ(train.Parse({"--config", file_, "train"}), "");
  EXPECT_EQ(train.device["train"], "cuda");
}

TEST_F(SettingsTest, FlagThatAKeyExcludes_WinsOverTheFile) {
  Write("train: {device: cuda, processes: 2}\n");
  Program flag, none;
  ASSERT_EQ(flag.Parse({"--config", file_, "train", "--reference"}), "");
  EXPECT_TRUE(flag.reference["train"]);
  EXPECT_EQ(flag.processes_of["train"], 0);
  EXPECT_EQ(flag.device["train"], "cuda");
  ASSERT_EQ(none.Parse({"--config", file_, "train"}), "");
  EXPECT_EQ(none.processes_of["train"], 2);
  Write("train: {reference: true, processes: 2}\n");
  EXPECT_THAT(Program().Parse({"--config", file_, "train"}), AllOf(HasSubstr(":1: "), HasSubstr("excludes")));
}

TEST_F(SettingsTest, KeysOfCommands_AreRefusedWithTheNearest) {
  Write("coordinator: a:1\ntrain:\n  devise: cuda\n");
  EXPECT_THAT(Program().Parse({"--config", file_, "ls"}),
              AllOf(HasSubstr(":3: "), HasSubstr("did you mean \"device\"?")));
  Write("device: cuda\n");
  EXPECT_THAT(Program().Parse({"--config", file_, "train"}), HasSubstr("unknown key \"device\""))
      << "of one command alone, it needs a section";
  Write("trian: {}\n");
  EXPECT_THAT(Program().Parse({"--config", file_, "ls"}), HasSubstr("did you mean \"train\"?"));
}

TEST_F(SettingsTest, VariableThatReplacesAFlag_WinsOverTheFile) {
  Write("token-file: some\n");
  setenv("WEFT_TOKEN", "secret", 1);
  Program program;
  ASSERT_EQ(program.Parse({"--config", file_, "ls"}), "");
  EXPECT_EQ(program.token_file, "");
  for (const Setting& s : program.settings->List(program.app.get_subcommand("ls"))) {
    EXPECT_NE(s.value, "secret");
    if (s.name == "token-file") {
      EXPECT_EQ(s.place, "WEFT_TOKEN");
    }
  }
}

TEST(Settings, Text_HasOriginsIfWanted) {
  const std::vector<Setting> settings = {{"lease", "20", "file", "a.yaml:3"},
                                         {"log-level", "info", "built-in", ""}};
  EXPECT_EQ(SettingsText(settings, false), "lease      20\nlog-level  info\n");
  EXPECT_EQ(SettingsText(settings, true), "lease      20    file a.yaml:3\nlog-level  info  built-in\n");
}

TEST(ParseSettingsJson, TextOfSettingsJson_GivesTheSettings) {
  const auto settings = ParseSettingsJson(SettingsJson({{"lease", "20", "file", "a.yaml:3"}}).dump());
  ASSERT_TRUE(settings.ok()) << settings.status();
  ASSERT_EQ(settings->size(), 1u);
  EXPECT_EQ(SettingsText(*settings, true), "lease  20  file a.yaml:3\n");
}

TEST(ParseSettingsJson, AnyOtherText_IsRefused) {
  for (const char* text : {"", "no JSON", "{}", "[1]", "[{}]", R"([{"name": "lease"}])",
                           R"([{"name": "lease", "value": 20, "origin": "file", "place": ""}])"})
    EXPECT_FALSE(ParseSettingsJson(text).ok()) << text;
}

TEST(Settings, Changed_NamesWhatHasAnotherValue) {
  const std::vector<Setting> before = {{"a", "1", "file", "x:1"}, {"b", "2", "built-in", ""}};
  const std::vector<Setting> now = {{"a", "1", "environment", "WEFT_A"}, {"b", "3", "built-in", ""}};
  EXPECT_THAT(Changed(before, now), ElementsAre("b"));
}

}  // namespace
}  // namespace weft::settings_test
