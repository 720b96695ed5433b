// The metrics of a real run, scraped while it trains, against what the run says of itself at the end.
#include <signal.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/command.h"
#include "tests/process/eventually.h"
#include "tests/process/free_ports.h"

namespace weft::metrics_test {
namespace {

using Json = nlohmann::json;
using Series = std::map<std::string, double>;

constexpr int kSteps = 400;

std::string Fetch(int port) {
  return Command::Run(
             {"/usr/bin/curl", "-s", "--max-time", "5", absl::StrCat("http://127.0.0.1:", port, "/metrics")},
             20)
      .out;
}

Series Parse(const std::string& text) {
  Series series;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const size_t space = line.rfind(' ');
    if (line.empty() || line[0] == '#' || space == absl::string_view::npos) continue;
    double value = 0;
    if (absl::SimpleAtod(line.substr(space + 1), &value)) series[std::string(line.substr(0, space))] = value;
  }
  return series;
}

double Total(const Series& series, const std::string& name) {
  double sum = 0;
  for (const auto& [key, value] : series) {
    if (key == name || key.rfind(name + "{", 0) == 0) sum += value;
  }
  return sum;
}

double Of(const Series& series, const std::string& key) {
  const auto it = series.find(key);
  EXPECT_NE(it, series.end()) << "no series " << key;
  return it == series.end() ? -1 : it->second;
}

std::string RunFile(const TestFolder& folder, int steps, const std::string& more = "") {
  std::string text;
  for (int i = 0; i < 4000; ++i) text += i % 7 == 0 ? "weft and warp " : "loom ";
  return folder.Write(
      "run.yaml", absl::StrCat("name: scraped\nmodel: {gpt: {layers: 4, width: 48, heads: 2, context: 32}}\n",
                               "data: {text: {path: ", folder.Write("text.txt", text),
                               "}, order: sequential}\n", "train: {steps: ", steps,
                               ", batch: 8, microbatches: 4, seed: 1, optimizer: {adamw: {lr: 1.0e-3}}}\n",
                               "stages: 2\nschedule: 1f1b\n", more));
}

TEST(Metrics, ScrapedDuringARun_AgreeWithItsSummary) {
  TestFolder folder;
  const int port = FreePorts(3);
  ASSERT_NE(port, 0);
  const std::string file = RunFile(folder, kSteps);
  Command train({"weft", "train", file, "--processes", "2", "--out", folder / "out", "--metrics",
                 absl::StrCat("127.0.0.1:", port)});
  Series coordinator, workers[2];
  std::string texts[3];
  // The last scrape of all three behind which the run had steps to make: until then no worker gives back
  // memory.
  for (int i = 0; i < 600; ++i) {
    std::string now[3];
    for (int p = 0; p < 3; ++p) now[p] = Fetch(port + p);
    const Series c = Parse(now[0]), later = Parse(Fetch(port));
    const bool all = !now[1].empty() && !now[2].empty() && !later.empty();
    if (!all && !texts[0].empty()) break;
    if (!all || Total(c, "weft_steps_total") < 20) continue;
    if (Total(later, "weft_steps_total") >= kSteps) break;
    // A worker reports what it holds from time to time, the first time perhaps only behind these steps.
    const auto has_reported = [](const std::string& text) {
      return Of(Parse(text), "weft_memory_bytes{class=\"weights\"}") > 0;
    };
    if (!has_reported(now[1]) || !has_reported(now[2])) continue;
    coordinator = c;
    for (int p = 0; p < 3; ++p) texts[p] = now[p];
    for (int p = 0; p < 2; ++p) workers[p] = Parse(now[p + 1]);
  }
  const CommandResult r = train.Wait(120);
  ASSERT_EQ(r.code, 0) << r.err;
  ASSERT_FALSE(texts[0].empty()) << "the run was never scraped";
  const Json summary = Json::parse(ReadWholeFile(folder / "out/summary.json"));

  const double steps = Of(coordinator, "weft_steps_total");
  EXPECT_GE(steps, 20);
  EXPECT_LT(steps, kSteps);
  EXPECT_GT(Of(coordinator, "weft_loss"), 0);
  EXPECT_EQ(Of(coordinator, "weft_workers{state=\"busy\"}"), 2);
  const double forwards = Of(coordinator, "weft_job_completions_total{kind=\"forward\"}");
  EXPECT_GE(forwards, steps * 8);
  EXPECT_LE(forwards, kSteps * 8);

  for (int p = 0; p < 2; ++p) {
    SCOPED_TRACE(absl::StrCat("process ", p));
    const Series& w = workers[p];
    // One rank a process; its peaks do not change after the first steps.
    for (const char* c : {"weights", "gradients", "optimizer", "activations"}) {
      EXPECT_EQ(Of(w, absl::StrCat("weft_memory_peak_bytes{class=\"", c, "\"}")),
                summary["peak_bytes"][p][c].get<double>())
          << c;
      EXPECT_GE(Of(w, absl::StrCat("weft_memory_bytes{class=\"", c, "\"}")), 0);
    }
    // Building the stages needed a little more for a moment.
    const double weights = summary["peak_bytes"][p]["weights"];
    EXPECT_NEAR(Of(w, "weft_memory_bytes{class=\"weights\"}"), weights, 0.01 * weights);
    for (const char* cause : {"dependency", "dispatch", "reduce", "memory"}) {
      EXPECT_LE(Of(w, absl::StrCat("weft_idle_seconds_total{cause=\"", cause, "\"}")),
                summary["idle_seconds"][p][cause].get<double>() + 1e-6)
          << cause;
    }
    EXPECT_EQ(Of(w, "weft_weight_versions"), 1);
    EXPECT_EQ(Of(w, "weft_weight_versions_peak"), summary["peak_weight_versions"][p].get<double>());
    EXPECT_GT(Of(w, "weft_busy_seconds_total{kind=\"forward\"}"), 0);
    EXPECT_GT(Of(w, "weft_busy_seconds_total{kind=\"backward\"}"), 0);
    EXPECT_EQ(Of(w, "weft_transfer_dropped_messages_total"), 0);
    EXPECT_EQ(
        Of(w, absl::StrCat("weft_transfer_path_info{path=\"in_place\",peer=\"", 1 - p, "\",place=\"host\"}")),
        1);
  }
  // One side receives what the other sent, except tensors that are on their way; it is so many bytes a step.
  const double a_step = summary["bytes_sent"]["activation"].get<double>() / kSteps;
  const double sent = Of(workers[0], "weft_transfer_bytes_total{direction=\"sent\",tensor=\"activation\"}");
  const double received =
      Of(workers[1], "weft_transfer_bytes_total{direction=\"received\",tensor=\"activation\"}");
  EXPECT_EQ(a_step, 8 * 32 * 48 * 4);
  EXPECT_GE(sent, (steps - 1) * a_step);
  EXPECT_GE(received, sent);  // scraped after it
  EXPECT_LE(sent, kSteps * a_step);
  EXPECT_EQ(Total(workers[0], "weft_fenced_total"), 0);

  for (const std::string& text : texts) {
    const std::string path = folder.Write("metrics.txt", text);
    const CommandResult lint =
        Command::Run({"/bin/sh", "-c", absl::StrCat("promtool check metrics < ", path)});
    EXPECT_EQ(lint.code, 0) << lint.out << lint.err;
    EXPECT_LT(Parse(text).size(), 200u) << "too many series for one process";
  }
}

// A coordinator and two workers as daemons, which serve one run with checkpoints.
class MetricsOfDaemons : public ::testing::Test {
 protected:
  MetricsOfDaemons() {
    for (int w = 0; w < 2; ++w) {
      workers_.push_back(std::make_unique<Command>(
          std::vector<std::string>{"weft-worker", "--coordinator", socket_, "--metrics", Address(1 + w)}));
    }
  }

  std::string Address(int process) const { return absl::StrCat("127.0.0.1:", port_ + process); }
  Series Scrape(int process) const { return Parse(Fetch(port_ + process)); }

  const TestFolder folder_;
  const int port_ = FreePorts(3);
  const std::string socket_ = absl::StrCat("unix:", folder_ / "coordinator.sock");
  const std::string config_ = folder_.Write("coordinator.yaml", "lease: 30\n");
  Command coordinator_{{"weft-coordinator", "--config", config_, "--listen", socket_, "--metrics", Address(0),
                        "--store", folder_ / "store", "--output-root", folder_ / "out"}};
  std::vector<std::unique_ptr<Command>> workers_;
};

TEST_F(MetricsOfDaemons, RunThatEnds_HasMovedThem) {
  const std::string file = RunFile(folder_, 30, "checkpoint: {every: 10}\n");
  ASSERT_TRUE(coordinator_.WaitFor("listening on ", 60));
  const CommandResult run =
      Command::Run({"weft", "submit", file, "--processes", "2", "--coordinator", socket_}, 120);
  ASSERT_EQ(run.code, 0) << run.err;
  Series coordinator;
  // `weft submit` ends with the run; the coordinator's figures follow within its interval of updates.
  EXPECT_TRUE(Eventually([&] {
    coordinator = Scrape(0);
    return Of(coordinator, "weft_checkpoint_duration_seconds_count") == 4 &&
           Of(coordinator, "weft_workers{state=\"free\"}") == 2;
  })) << "checkpoints of the steps 0, 10, 20 and 30, and workers that are free again";
  EXPECT_EQ(Of(coordinator, "weft_coordinator_leads"), 1);
  EXPECT_EQ(Of(coordinator, "weft_queue_wait_seconds_count"), 1);
  EXPECT_EQ(Of(coordinator, "weft_checkpoint_duration_seconds_count"), 4);
  EXPECT_GT(Of(coordinator, "weft_checkpoint_duration_seconds_sum"), 0);
  EXPECT_EQ(Of(coordinator, "weft_checkpoint_failures_total"), 0);
  EXPECT_GT(Of(coordinator, "weft_claim_latency_seconds_count"), 0);
  EXPECT_EQ(Of(coordinator, "weft_job_duration_seconds_count{kind=\"forward\"}"),
            Of(coordinator, "weft_job_completions_total{kind=\"forward\"}"));
  EXPECT_GT(Of(coordinator, "weft_job_duration_seconds_sum{kind=\"backward\"}"), 0);
  EXPECT_GT(Of(coordinator, "weft_running_seconds_total"), 0);
  EXPECT_EQ(Of(coordinator, "weft_step_wait_seconds"), 0) << "no run is running";
  EXPECT_EQ(Of(coordinator, "weft_rpc_server_handled_total{code=\"OK\",method=\"Submit\"}"), 1);
  EXPECT_GE(Of(coordinator, "weft_rpc_server_handling_seconds_count"), 1);
  EXPECT_GT(Of(coordinator, "weft_log_messages_total{level=\"info\"}"), 0);
  EXPECT_EQ(Total(coordinator, "weft_run_restarts_total"), 0);
  EXPECT_EQ(Of(coordinator, "weft_insecure"), 0);
  EXPECT_GT(Of(coordinator, "weft_store_free_bytes"), 0);
  double sent = 0, received = 0, written = 0;
  for (int w = 1; w <= 2; ++w) {
    const Series worker = Scrape(w);
    sent += Of(worker, "weft_transfer_process_bytes_total{direction=\"sent\"}");
    received += Of(worker, "weft_transfer_process_bytes_total{direction=\"received\"}");
    written += Of(worker, "weft_checkpoint_written_bytes_total");
    EXPECT_GT(Of(worker, "weft_checkpoint_write_seconds_total"), 0);
    EXPECT_EQ(Of(worker, "weft_checkpoint_write_failures_total"), 0);
    EXPECT_GT(Of(worker, "weft_log_messages_total{level=\"info\"}"), 0);
  }
  EXPECT_GT(sent, 0);
  EXPECT_EQ(sent, received);
  EXPECT_GT(written, 0);
}

TEST_F(MetricsOfDaemons, ConfigurationThatIsNotTaken_ShowsUntilOneIs) {
  ASSERT_TRUE(coordinator_.WaitFor("listening on ", 60));
  const double started = Of(Scrape(0), "weft_config_last_reload_success_timestamp_seconds");
  EXPECT_EQ(Of(Scrape(0), "weft_config_last_reload_successful"), 1);
  EXPECT_GT(started, 0);
  folder_.Write("coordinator.yaml", "leese: 30\n");
  coordinator_.Signal(SIGHUP);
  ASSERT_TRUE(coordinator_.WaitFor("the configuration is not taken", 60));
  EXPECT_TRUE(Eventually([&] { return Of(Scrape(0), "weft_config_last_reload_successful") == 0; }));
  EXPECT_EQ(Of(Scrape(0), "weft_config_last_reload_success_timestamp_seconds"), started);
  EXPECT_GE(Of(Scrape(0), "weft_log_messages_total{level=\"warning\"}"), 1);
  folder_.Write("coordinator.yaml", "lease: 40\n");
  coordinator_.Signal(SIGHUP);
  ASSERT_TRUE(coordinator_.WaitFor("reloaded: ", 60));
  EXPECT_TRUE(Eventually([&] { return Of(Scrape(0), "weft_config_last_reload_successful") == 1; }));
  EXPECT_GT(Of(Scrape(0), "weft_config_last_reload_success_timestamp_seconds"), started);
}

TEST_F(MetricsOfDaemons, CallThatIsRefused_IsCountedByItsCode) {
  ASSERT_TRUE(coordinator_.WaitFor("listening on ", 60));
  EXPECT_NE(Command::Run({"weft", "cancel", "7", "--coordinator", socket_}).code, 0);
  EXPECT_EQ(Of(Scrape(0), "weft_rpc_server_handled_total{code=\"NOT_FOUND\",method=\"Cancel\"}"), 1);
}

// The second copy of the state costs no bytes of its own where both processes are on one machine.
TEST(Metrics, CopiesOfAProcessOfTheSameMachine_AreReadInPlace) {
  TestFolder folder;
  const int port = FreePorts(3);
  ASSERT_NE(port, 0);
  const std::string file = RunFile(folder, kSteps, "redundancy: {peers: 1}\n");
  Command train({"weft", "train", file, "--processes", "2", "--out", folder / "out", "--metrics",
                 absl::StrCat("127.0.0.1:", port)});
  double copies = 0, in_place = 0;
  for (int i = 0; i < 600 && copies == 0; ++i) {
    const Series worker = Parse(Fetch(port + 1));
    const auto found = worker.find("weft_transfer_bytes_total{direction=\"received\",tensor=\"copy\"}");
    if (found == worker.end()) continue;
    copies = found->second;
    in_place = Of(worker, "weft_transfer_in_place_bytes_total");
  }
  train.Signal(SIGKILL);
  train.Wait(20);
  EXPECT_GT(copies, 0);
  EXPECT_GE(in_place, copies);
}

}  // namespace
}  // namespace weft::metrics_test
