// Configuration from files, variables and flags, with the real programs: order, refusals, weft config,
// SIGHUP.
#include <signal.h>
#include <stdlib.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/command.h"
#include "tests/process/run_files.h"

namespace weft::config_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Config : public ::testing::Test {
 protected:
  ~Config() override {
    for (const char* name : {"WEFT_CONFIG", "WEFT_LEASE", "WEFT_COORDINATOR", "WEFT_LINK_TIMEOUT",
                             "WEFT_LISTEN", "XDG_CONFIG_HOME"})
      unsetenv(name);
  }

  std::string Socket(const std::string& name) const { return "unix:" + (folder_ / name); }

  // Returns value, origin and place of a setting, as weft config show has it.
  static std::string Shown(const CommandResult& shown, const std::string& name) {
    const auto json = nlohmann::json::parse(shown.out, nullptr, /*allow_exceptions=*/false);
    for (const auto& setting : json) {
      if (setting["name"] == name)
        return absl::StrCat(setting["value"].get<std::string>(), " ", setting["origin"].get<std::string>(),
                            " ", setting["place"].get<std::string>());
    }
    return absl::StrCat("none of that name: ", shown.out, shown.err);
  }

  const TestFolder folder_;
};

TEST_F(Config, OfADaemon_IsShownWithItsOrigins) {
  const std::string file = folder_.Write("coordinator.yaml", "lease: 20\ngrace: 12\n");
  setenv("WEFT_LEASE", "30", 1);
  const CommandResult shown =
      Command::Run({"weft", "config", "show", file, "--program", "weft-coordinator", "-o", "json"});
  ASSERT_EQ(shown.code, 0) << shown.err;
  EXPECT_EQ(Shown(shown, "lease"), "30 environment WEFT_LEASE");
  EXPECT_EQ(Shown(shown, "grace"), absl::StrCat("12 file ", file, ":2"));
  EXPECT_EQ(Shown(shown, "log-level"), "info built-in ");
  const CommandResult worker =
      Command::Run({"weft", "config", "show", "--program", "weft-worker", "--origin"});
  ASSERT_EQ(worker.code, 0) << worker.err;
  EXPECT_THAT(worker.out, HasSubstr("built-in"));
}

// A unit gives its daemon words and variables, from files that the person's own shell does not have.
TEST_F(Config, OfAUnit_IsShownWithTheLinesOfItsFiles) {
  const std::string conf = folder_.Write(
      "coordinator.conf", absl::StrCat("# settings\nWEFT_LISTEN=", Socket("unit.sock"),
                                       "\nWEFT_ROOTS=/srv/runs\nWEFT_COORDINATOR_FLAGS=--lease 30\n"));
  const std::string unit = folder_.Write(
      "weft-coordinator.service",
      absl::StrCat("[Service]\nEnvironmentFile=-", conf, "\nExecStart=/usr/bin/weft-coordinator --listen ",
                   "${WEFT_LISTEN} --output-root /var/lib/weft/runs $WEFT_COORDINATOR_FLAGS\n"));
  setenv("WEFT_LEASE", "7", 1);  // of the person, and not of the unit
  const CommandResult shown = Command::Run({"weft", "config", "show", "--unit", unit, "-o", "json"});
  ASSERT_EQ(shown.code, 0) << shown.err;
  EXPECT_EQ(Shown(shown, "listen"), absl::StrCat(Socket("unit.sock"), " flag ", conf, ":2"));
  EXPECT_EQ(Shown(shown, "roots"), absl::StrCat("/srv/runs environment ", conf, ":3"));
  EXPECT_EQ(Shown(shown, "lease"), absl::StrCat("30 flag ", conf, ":4"));
  EXPECT_EQ(Shown(shown, "output-root"), absl::StrCat("/var/lib/weft/runs flag ", unit, ":3"));
  EXPECT_THAT(Command::Run({"weft", "config", "show", "--unit", unit, "--origin"}).out,
              HasSubstr(conf + ":2"));
  folder_.Write("coordinator.conf", "WEFT_LISTEN=unix:/c\nWEFT_COORDINATOR_FLAGS=--leese 30\n");
  const CommandResult wrong = Command::Run({"weft", "config", "show", "--unit", unit});
  EXPECT_EQ(wrong.code, 78);
  EXPECT_THAT(wrong.err, HasSubstr("leese"));
  EXPECT_EQ(Command::Run({"weft", "config", "show", "--unit", folder_ / "none"}).code, 78);
  // The program `weft` is there, and is no daemon: it is not run.
  const std::string other = folder_.Write("other.service", "[Service]\nExecStart=/usr/bin/weft ls\n");
  const CommandResult refused = Command::Run({"weft", "config", "show", "--unit", other});
  EXPECT_EQ(refused.code, 78);
  EXPECT_THAT(refused.err, HasSubstr("it starts /usr/bin/weft; give a unit that starts weft-coordinator or"));
  EXPECT_EQ(Command::Run({"weft", "config", "check", "--unit", unit}).code, 2);
}

TEST_F(Config, OfTheClient_IsTakenByItsCommands) {
  setenv("XDG_CONFIG_HOME", folder_.path().c_str(), 1);
  ASSERT_EQ(system(absl::StrCat("mkdir ", folder_ / "weft").c_str()), 0);
  folder_.Write("weft/config.yaml", absl::StrCat("coordinator: ", Socket("from-file"), "\n"));
  EXPECT_THAT(Command::Run({"weft", "ls"}).err, HasSubstr("from-file"));
  EXPECT_THAT(Shown(Command::Run({"weft", "config", "show", "-o", "json"}), "coordinator"),
              AllOf(HasSubstr("from-file file "), HasSubstr("config.yaml:1")));
  setenv("WEFT_COORDINATOR", Socket("from-variable").c_str(), 1);
  EXPECT_THAT(Command::Run({"weft", "ls"}).err, HasSubstr("from-variable"));
  EXPECT_THAT(Command::Run({"weft", "ls", "--coordinator", Socket("from-flag")}).err, HasSubstr("from-flag"));
  unsetenv("WEFT_COORDINATOR");
  const std::string other =
      folder_.Write("other.yaml", absl::StrCat("coordinator: ", Socket("from-other"), "\n"));
  EXPECT_THAT(Command::Run({"weft", "ls", "--config", other}).err, HasSubstr("from-other"));
  EXPECT_THAT(Command::Run({"weft", absl::StrCat("--config=", other), "ls"}).err, HasSubstr("from-other"));
  for (const std::vector<std::string>& show : std::vector<std::vector<std::string>>{
           {"weft", "--config", other, "config", "show", "-o", "json"},
           {"weft", "config", "show", other, "-o", "json"},
           {"weft", "--config", "/dev/null", "config", "show", other, "-o", "json"}}) {
    EXPECT_THAT(Shown(Command::Run(show), "coordinator"), HasSubstr("from-other file "));
  }
}

TEST_F(Config, OfTheVariable_IsTakenByEachProgram) {
  const std::string client =
      folder_.Write("client.yaml", absl::StrCat("coordinator: ", Socket("from-client"), "\n"));
  setenv("WEFT_CONFIG", client.c_str(), 1);
  EXPECT_THAT(Command::Run({"weft", "ls"}).err, HasSubstr("from-client"));
  EXPECT_EQ(Shown(Command::Run({"weft", "config", "show", "-o", "json"}), "coordinator"),
            absl::StrCat(Socket("from-client"), " file ", client, ":1"));
  for (const std::string name : {"coordinator", "worker"}) {
    const std::string file = folder_.Write(name + "-of-test.yaml", "log-level: warning\n");
    setenv("WEFT_CONFIG", file.c_str(), 1);
    const CommandResult shown = Command::Run({"weft-" + name, "--show-config", "json"});
    EXPECT_EQ(Shown(shown, "log-level"), absl::StrCat("warning file ", file, ":1")) << shown.err;
    setenv("WEFT_CONFIG", (folder_ / "none.yaml").c_str(), 1);
    const CommandResult refused = Command::Run({"weft-" + name, "--show-config", "json"});
    EXPECT_EQ(refused.code, 78) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr(absl::StrCat("WEFT_CONFIG: ", folder_ / "none.yaml")));
  }
}

TEST_F(Config, WrongFiles_AreRefusedWithPlaceAndNearestKey) {
  const std::string daemon = folder_.Write("coordinator.yaml", "grace: 12\nleese: 20\n");
  for (const auto& command : std::vector<std::vector<std::string>>{{"weft-coordinator", "--config", daemon},
                                                                   {"weft", "config", "check", daemon}}) {
    const CommandResult refused = Command::Run(command);
    EXPECT_EQ(refused.code, 78) << refused.err;
    EXPECT_THAT(refused.err, AllOf(HasSubstr(daemon + ":2: "), HasSubstr("did you mean \"lease\"?")));
  }
  const std::string worker = folder_.Write("worker.yaml", "coordinator: a:1\nlink-timeout: 1\n");
  EXPECT_EQ(Command::Run({"weft", "config", "check", worker}).code, 78);
  EXPECT_EQ(Command::Run({"weft-worker", "--config", worker}).code, 78);
  const std::string client = folder_.Write("client.yaml", "train: {proceses: 2}\n");
  for (const auto& command : std::vector<std::vector<std::string>>{{"weft", "ls", "--config", client},
                                                                   {"weft", "config", "check", client}}) {
    const CommandResult refused = Command::Run(command);
    EXPECT_EQ(refused.code, 78) << refused.err;
    EXPECT_THAT(refused.err, AllOf(HasSubstr(client + ":1: "), HasSubstr("did you mean \"processes\"?")));
  }
  const std::string right =
      folder_.Write("client.yaml", "tls: certs\ntrain: {processes: 2}\nls: {output: json}\n");
  const CommandResult checked = Command::Run({"weft", "config", "check", right});
  EXPECT_EQ(checked.code, 0) << checked.err;
  EXPECT_EQ(Command::Run({"weft", "config", "check"}).code, 2);
  EXPECT_EQ(Command::Run({"weft", "config", "check", folder_ / "gone.yaml"}).code, 78);
}

// The row and the ports are what the daemons would do, so a wrong configuration shows and no port is made up.
TEST_F(Config, OfEitherDaemon_WrongForDoctor_IsBadAndHasNoPort) {
  const auto rows = [] {
    const CommandResult result = Command::Run({"weft", "doctor", "--machine", "-o", "json"});
    std::map<std::string, nlohmann::json> by_name;
    for (const auto& row : nlohmann::json::parse(result.out, nullptr, /*allow_exceptions=*/false))
      by_name[row.value("name", "")] = row;
    return std::pair(result.code, by_name);
  };
  setenv("WEFT_LISTEN", absl::StrCat(Socket("c.sock"), ",127.0.0.1:0").c_str(), 1);
  auto right = rows().second;
  EXPECT_EQ(right["weft-coordinator"]["verdict"], "ok");
  EXPECT_EQ(right["weft-worker"]["verdict"], "ok");
  EXPECT_EQ(right["coordinator's port"]["found"], "127.0.0.1:0: free") << "the first that is no path";
  EXPECT_EQ(right.count("data ports"), 1u);
  setenv("WEFT_LEASE", "abc", 1);
  setenv("WEFT_LINK_TIMEOUT", "abc", 1);
  auto [code, wrong] = rows();
  EXPECT_EQ(code, 1);
  EXPECT_EQ(wrong["weft-coordinator"]["verdict"], "bad");
  EXPECT_THAT(wrong["weft-coordinator"].value("advice", ""), HasSubstr("lease"));
  EXPECT_EQ(wrong["weft-worker"]["verdict"], "bad");
  EXPECT_EQ(wrong.count("coordinator's port"), 0u);
  EXPECT_EQ(wrong.count("data ports"), 0u);
}

TEST_F(Config, Hangup_TakesANewLogLevelAndStopsNothing) {
  const std::string file =
      folder_.Write("coordinator.yaml", absl::StrCat("listen: ", Socket("c.sock"), "\nlog-level: info\n"));
  Command coordinator({"weft-coordinator", "--config", file, "--output-root", folder_ / "runs"});
  ASSERT_TRUE(coordinator.WaitFor("listening on", 60));
  const std::string worker_file = folder_.Write("worker.yaml", "log-level: info\n");
  Command worker({"weft-worker", "--coordinator", Socket("c.sock"), "--config", worker_file, "--name", "w"});
  ASSERT_TRUE(worker.WaitFor("joined as process", 60));

  folder_.Write("worker.yaml", "log-level: info\ndrain: 3\nlink-timeout: 60\n");
  worker.Signal(SIGHUP);
  EXPECT_TRUE(worker.WaitFor("reloaded: log level info, drain 3; certificates", 60));
  EXPECT_TRUE(worker.WaitFor("take effect at the next start: link-timeout\n", 60));

  folder_.Write("coordinator.yaml", absl::StrCat("listen: ", Socket("c.sock"), "\nlog-level: wrong\n"));
  coordinator.Signal(SIGHUP);
  EXPECT_TRUE(coordinator.WaitFor("the configuration is not taken: ", 60));
  folder_.Write("coordinator.yaml", absl::StrCat("listen: ", Socket("c.sock"), "\nlog-level: warning\n"));
  coordinator.Signal(SIGHUP);
  // It says no more of what is only information, and serves as before.
  worker.Signal(SIGTERM);
  EXPECT_EQ(worker.Wait(60).code, 0);
  const CommandResult listed = Command::Run({"weft", "ls", "--coordinator", Socket("c.sock")});
  EXPECT_EQ(listed.code, 0) << listed.err;
  coordinator.Signal(SIGTERM);
  const CommandResult ended = coordinator.Wait(60);
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(ended.err, ::testing::Not(HasSubstr("stopping on"))) << "the new level holds";
}

// Limits of a coordinator follow its configuration at SIGHUP: those that nothing rests on are taken at once.
TEST_F(Config, LimitsAtSighup_CountForWhatBeginsFromThenOn) {
  const auto configure = [&](const std::string& rest) {
    folder_.Write("coordinator.yaml", absl::StrCat("listen: ", Socket("c.sock"), "\n", rest));
  };
  configure("queue: 1\n");
  Command coordinator(
      {"weft-coordinator", "--config", folder_ / "coordinator.yaml", "--output-root", folder_ / "out"});
  ASSERT_TRUE(coordinator.WaitFor("listening on", 60));
  const std::string run = WriteSmallRun(folder_);
  const auto submit = [&](const std::string& name) {
    return Command::Run(
        {"weft", "submit", run, "--coordinator", Socket("c.sock"), "--detach", "--out", folder_ / name});
  };
  EXPECT_EQ(submit("a").code, 0);
  const CommandResult refused = submit("b");
  EXPECT_EQ(refused.code, 75) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("1 runs wait or run already"));

  configure("queue: 2\nwaiting: 1\nmetrics: 127.0.0.1:0\n");
  coordinator.Signal(SIGHUP);
  EXPECT_TRUE(coordinator.WaitFor("waiting 1, ", 60));
  EXPECT_TRUE(coordinator.WaitFor("queue 2, history 100; certificates", 60));
  EXPECT_TRUE(coordinator.WaitFor("take effect at the next start: metrics\n", 60));
  EXPECT_EQ(submit("b").code, 0);
  const CommandResult waited = Command::Run({"weft", "wait", "2", "--coordinator", Socket("c.sock")});
  EXPECT_EQ(waited.code, 1);
  EXPECT_THAT(waited.out + waited.err, HasSubstr("waited 1 s for worker processes"));
  const CommandResult first = Command::Run({"weft", "ls", "--coordinator", Socket("c.sock"), "-o", "json"});
  EXPECT_EQ(nlohmann::json::parse(first.out, nullptr, false)[0]["state"], "waiting") << "its time had begun";
}

}  // namespace
}  // namespace weft::config_test
