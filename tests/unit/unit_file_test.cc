// Tests what a unit of systemd gives its daemon, by the units of Weft and by small ones.
#include "client/files/unit_file.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/host_name.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/test_folder.h"

namespace weft::unit_file_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class UnitFile : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& text) const {
    const std::string path = absl::StrCat(folder_, "/", name);
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path) << text;
    return path;
  }

  static std::string Words(const UnitProcess& process) {
    return absl::StrJoin(process.arguments, "|",
                         [](std::string* out, const PlacedText& word) { out->append(word.text); });
  }

  const TestFolder temporary_;
  const std::string folder_ = temporary_.path();
};

TEST_F(UnitFile, EnvironmentFile_OverridesTheUnitAndHasLines) {
  const std::string conf =
      Write("c.conf", "# settings\n\nWEFT_LISTEN=10.0.0.1:7070\nWEFT_FLAGS=--lease 20 --roots \"/a b\"\n");
  const std::string unit = Write(
      "weft-coordinator.service",
      absl::StrCat(
          "[Unit]\nExecStart=/no\n[Service]\nEnvironment=WEFT_LISTEN=127.0.0.1:7070 \"A=b c\"\n",
          "EnvironmentFile=-", conf, "\nEnvironmentFile=-", folder_, "/none.conf\n",
          "ExecStart=/usr/bin/weft-coordinator --listen ${WEFT_LISTEN} --x ${A}$$ $WEFT_FLAGS $NONE\n"));
  const auto process = ReadUnit(unit);
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_EQ(process->program, "/usr/bin/weft-coordinator");
  EXPECT_EQ(Words(*process), "--listen|10.0.0.1:7070|--x|b c$|--lease|20|--roots|/a b");
  EXPECT_EQ(process->variables.at("WEFT_LISTEN").place, conf + ":3");
  EXPECT_EQ(process->variables.at("A").place, unit + ":4");
  EXPECT_EQ(process->arguments[0].place, unit + ":7");
  EXPECT_EQ(process->arguments[1].place, conf + ":3");
  EXPECT_EQ(process->arguments[4].place, conf + ":4");
}

TEST_F(UnitFile, InstanceOfATemplate_HasItsNameAndDropIns) {
  Write("weft-worker@.service",
        "[Service]\nEnvironment=D=cpu\nEnvironmentFile=-" + folder_ +
            "/worker-%i.conf\nExecStart=/usr/bin/weft-worker --name %l-%i \\\n  --device ${D}\n");
  const std::string own = Write("worker-7.conf", "D=cuda:7\n");
  Write("weft-worker@.service.d/a.conf", "[Service]\nEnvironment=E=1\n");
  const std::string host = HostName();
  const auto seven = ReadUnit(folder_ + "/weft-worker@7");
  ASSERT_TRUE(seven.ok()) << seven.status();
  EXPECT_EQ(Words(*seven), absl::StrCat("--name|", host.substr(0, host.find('.')), "-7|--device|cuda:7"));
  EXPECT_EQ(seven->variables.at("D").place, own + ":1");
  EXPECT_EQ(seven->variables.at("E").text, "1");
  Write("weft-worker@7.service.d/b.conf", "[Service]\nExecStart=\nExecStart=/opt/weft-worker --drain 3\n");
  const auto replaced = ReadUnit(folder_ + "/weft-worker@7.service");
  ASSERT_TRUE(replaced.ok()) << replaced.status();
  EXPECT_EQ(replaced->program, "/opt/weft-worker");
  EXPECT_EQ(Words(*replaced), "--drain|3");
}

TEST_F(UnitFile, VariablesWithinAWord_HaveTheirValuesAsTheyAre) {
  const std::string unit = Write("v.service",
                                 "[Service]\nEnvironment=A=${B}$$ B=x\n# the old one \\\n"
                                 "ExecStart=/bin/w --a=${A}${B} --none=${NONE}$$ --b ${\n");
  const auto process = ReadUnit(unit);
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_EQ(Words(*process), "--a=${B}$$x|--none=$|--b|${");
  EXPECT_EQ(process->arguments[0].place, unit + ":2");
}

TEST_F(UnitFile, WhatIsMissing_IsNamed) {
  EXPECT_THAT(ReadUnit(folder_ + "/nothing").status().message(), HasSubstr("nothing.service"));
  const std::string empty = Write("e.service", "[Service]\nRestart=no\n");
  EXPECT_THAT(ReadUnit(empty).status().message(), HasSubstr("has no ExecStart="));
  const std::string nothing = Write("p.service", "[Service]\nExecStart=$FOO\n");
  EXPECT_THAT(ReadUnit(nothing).status().message(), HasSubstr("p.service:2: ExecStart= names no program"));
  const std::string needs =
      Write("n.service", "[Service]\nEnvironmentFile=/nowhere/x.conf\nExecStart=/bin/true\n");
  EXPECT_THAT(ReadUnit(needs).status().message(), HasSubstr("cannot read /nowhere/x.conf"));
}

// The unit as it is installed, on a machine without its environment file.
TEST_F(UnitFile, CoordinatorsOwn_GivesItsDefaults) {
  const auto process =
      ReadUnit(std::string(std::getenv("WEFT_SOURCE")) + "/deploy/systemd/weft-coordinator.service");
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_EQ(process->program, "/usr/bin/weft-coordinator");
  EXPECT_THAT(Words(*process), HasSubstr("--listen|unix:/run/weft/coordinator.sock|--listen|"));
  EXPECT_THAT(Words(*process), HasSubstr("--output-root|/var/lib/weft/runs"));
}

}  // namespace
}  // namespace weft::unit_file_test
