#include "client/trace/otlp_trace.h"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "schedules/families/families.h"
#include "schedules/simulator/simulate.h"
#include "tests/unit/without_terms.h"

namespace weft::otlp_trace_test {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

struct Exported {
  OtlpCounts counts;
  std::map<std::string, Json> spans;           // by id
  std::map<std::string, std::string> of_name;  // ids by name and step
};

int64_t Nanos(const Json& span, const char* key) { return std::stoll(span[key].get<std::string>()); }

std::string Attribute(const Json& span, const std::string& key) {
  for (const Json& a : span["attributes"]) {
    if (a["key"] == key) return a["value"].begin()->get<std::string>();
  }
  return "";
}

class OtlpTrace : public ::testing::Test {
 protected:
  void Simulate(const std::string& name, int stages, int microbatches, int steps) {
    auto schedule = MakeSchedule(name, {}, stages, microbatches);
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    graph_.emplace(WithoutTerms(*schedule), steps);
    SimulationOptions options;
    options.steps = steps;
    options.latency = 0.25;
    options.record_jobs = options.record_waits = true;
    const auto result = weft::Simulate(*graph_, options);
    ASSERT_TRUE(result.ok()) << result.status();
    input_ = {};
    for (const SimulatedJob& j : result->jobs) input_.jobs.push_back({j.job, j.rank, j.start, j.end});
    for (const TransferInterval& t : result->transfers)
      input_.transfers.push_back({t.from, t.to, t.tensor, t.consumer, t.start, t.end, t.bytes});
    input_.title = name;
    input_.key = "a key";
    input_.begin_unix_ns = 1'700'000'000'000'000'000;
    input_.graph = &*graph_;
  }

  Exported Export() {
    std::string text;
    const auto counts = WriteOtlp(input_, [&](absl::string_view piece) { absl::StrAppend(&text, piece); });
    EXPECT_TRUE(counts.ok()) << counts.status();
    if (!counts.ok()) return {};
    EXPECT_EQ(text.find('\n'), text.size() - 1) << "one line";
    Exported exported{*counts, {}, {}};
    const Json json = Json::parse(text);
    for (const Json& resource : json["resourceSpans"]) {
      for (const Json& scope : resource["scopeSpans"]) {
        for (const Json& span : scope["spans"]) {
          EXPECT_TRUE(exported.spans.emplace(span["spanId"], span).second) << "ids are unique";
          exported
              .of_name[absl::StrCat(span["name"].get<std::string>(), " of ", Attribute(span, "weft.step"))] =
              span["spanId"];
        }
      }
    }
    return exported;
  }

  std::optional<Graph> graph_;
  OtlpInput input_;
};

TEST_F(OtlpTrace, JobsAndTransfers_AreSpansWithinTheirStepAndRun) {
  Simulate("1f1b", 3, 4, 2);
  const Exported exported = Export();
  EXPECT_EQ(exported.counts.jobs, static_cast<int64_t>(input_.jobs.size()));
  EXPECT_EQ(exported.counts.transfers, static_cast<int64_t>(input_.transfers.size()));
  EXPECT_GT(exported.counts.transfers, 0);
  EXPECT_EQ(exported.counts.steps, 2);
  EXPECT_EQ(exported.spans.size(), input_.jobs.size() + input_.transfers.size() + 3);
  int roots = 0;
  for (const auto& [id, span] : exported.spans) {
    EXPECT_EQ(id.size(), 16u);
    EXPECT_EQ(span["traceId"].get<std::string>().size(), 32u);
    EXPECT_LE(Nanos(span, "startTimeUnixNano"), Nanos(span, "endTimeUnixNano"));
    if (!span.contains("parentSpanId")) {
      ++roots;
      continue;
    }
    const Json& parent = exported.spans.at(span["parentSpanId"]);
    EXPECT_GE(Nanos(span, "startTimeUnixNano"), Nanos(parent, "startTimeUnixNano"));
    EXPECT_LE(Nanos(span, "endTimeUnixNano"), Nanos(parent, "endTimeUnixNano"));
  }
  EXPECT_EQ(roots, 1);
}

// Returns a job's kind, stage, micro-batch, step and rank.
std::string Label(const Job& job, Rank rank) {
  return absl::StrCat(JobKindName(job.kind), " s", job.stage, " b",
                      HasMicrobatch(job.kind) ? absl::StrCat(job.microbatch) : "", " t", job.step, " r",
                      rank);
}
std::string Label(const Json& span) {
  return absl::StrCat(Attribute(span, "weft.kind"), " s", Attribute(span, "weft.stage"), " b",
                      Attribute(span, "weft.microbatch"), " t", Attribute(span, "weft.step"), " r",
                      Attribute(span, "weft.rank"));
}

// Returns the jobs to which the span's links lead, through transfers.
std::set<std::string> ProducersOf(const Exported& exported, const Json& span) {
  std::set<std::string> producers;
  if (!span.contains("links")) return producers;
  for (const Json& link : span["links"]) {
    EXPECT_EQ(link["traceId"], span["traceId"]);
    const Json& linked = exported.spans.at(link["spanId"]);
    if (!Attribute(linked, "weft.kind").empty()) {
      producers.insert(Label(linked));
    } else {
      EXPECT_LE(Nanos(linked, "endTimeUnixNano"), Nanos(span, "endTimeUnixNano"));
      producers.merge(ProducersOf(exported, linked));
    }
  }
  return producers;
}

TEST_F(OtlpTrace, Links_AreTheEdgesOfTheJobGraph) {
  for (const char* name : {"1f1b", "ddp", "zb_h1", "fsdp", "dualpipe_v", "pipedream_2bw"}) {
    SCOPED_TRACE(name);
    Simulate(name, 4, 4, 2);
    const Exported exported = Export();
    std::map<std::string, std::set<std::string>> found, expected;
    for (const auto& [id, span] : exported.spans) {
      if (!Attribute(span, "weft.kind").empty()) found[Label(span)] = ProducersOf(exported, span);
    }
    for (const DrawnJob& drawn : input_.jobs) {
      std::set<std::string>& of_job = expected[Label(drawn.job, drawn.rank)];
      Edges edges;
      graph_->Predecessors(drawn.job, &edges);
      for (const Edge& e : edges) {
        if (e.from.step >= 0) of_job.insert(Label(e.from, graph_->RankOf(e.from)));
      }
    }
    EXPECT_EQ(found, expected);
    EXPECT_GT(exported.counts.links, exported.counts.jobs);
  }
}

TEST_F(OtlpTrace, Ids_FollowFromTheKeyAlone) {
  Simulate("gpipe", 2, 2, 1);
  const Exported first = Export(), again = Export();
  EXPECT_EQ(first.of_name, again.of_name);
  input_.key = "another";
  EXPECT_NE(Export().of_name, first.of_name);
}

TEST_F(OtlpTrace, Times_AreOfTheWallClock) {
  Simulate("gpipe", 2, 2, 1);
  input_.unit_seconds = 1e-3;
  const Exported exported = Export();
  const Json& first = exported.spans.at(exported.of_name.at("forward s0 b1 of 0"));
  EXPECT_EQ(first["startTimeUnixNano"], "1700000000001000000");
  EXPECT_EQ(first["endTimeUnixNano"], "1700000000002000000");
}

TEST_F(OtlpTrace, WithoutAGraph_SpansHaveNoLinks) {
  Simulate("gpipe", 2, 2, 1);
  input_.graph = nullptr;
  EXPECT_EQ(Export().counts.links, 0);
}

TEST_F(OtlpTrace, JobThatTheScheduleLacks_IsRefused) {
  Simulate("gpipe", 2, 2, 1);
  input_.jobs.push_back({Job::Compute(0, 7, 0, JobKind::kForward), 0, 0, 1});
  std::string text;
  const auto counts = WriteOtlp(input_, [&](absl::string_view piece) { absl::StrAppend(&text, piece); });
  EXPECT_TRUE(absl::IsInvalidArgument(counts.status()));
  EXPECT_THAT(std::string(counts.status().message()), HasSubstr("stage 7"));
  EXPECT_EQ(text, "");
}

}  // namespace
}  // namespace weft::otlp_trace_test
