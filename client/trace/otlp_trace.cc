#include "client/trace/otlp_trace.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/fnv1a.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int kInternalSpan = 1;  // SPAN_KIND_INTERNAL

// A job of the trace, whose members are told apart by their ranks.
using SpanKey = std::tuple<int, int, int, JobKind, Rank>;
SpanKey KeyOf(const Job& job, Rank rank) {
  return {job.step, job.stage, HasMicrobatch(job.kind) ? job.microbatch : -1, job.kind, rank};
}

// Identity of a transfer: the ranks, the tensor, and the job that reads it.
using TransferKey = std::tuple<Rank, TensorKind, SpanKey>;

struct Times {
  int64_t start = std::numeric_limits<int64_t>::max(), end = std::numeric_limits<int64_t>::min();
  void Cover(const Times& other) {
    start = std::min(start, other.start);
    end = std::max(end, other.end);
  }
};

struct SpanLink {
  uint64_t span;
  TensorKind tensor;
};

OrderedJson TextAttribute(absl::string_view key, absl::string_view value) {
  return {{"key", std::string(key)}, {"value", {{"stringValue", std::string(value)}}}};
}
// Numbers of 64 bits are texts in protobuf's JSON.
OrderedJson NumberAttribute(absl::string_view key, int64_t value) {
  return {{"key", std::string(key)}, {"value", {{"intValue", absl::StrCat(value)}}}};
}

OrderedJson JobAttributes(const Job& job, Rank rank) {
  OrderedJson attributes = {TextAttribute("weft.kind", JobKindName(job.kind)),
                            NumberAttribute("weft.step", job.step), NumberAttribute("weft.stage", job.stage),
                            NumberAttribute("weft.rank", rank)};
  if (HasMicrobatch(job.kind)) attributes.push_back(NumberAttribute("weft.microbatch", job.microbatch));
  return attributes;
}

std::string StageText(const Job& job) {
  return absl::StrCat(" s", job.stage, HasMicrobatch(job.kind) ? absl::StrCat(" b", job.microbatch) : "");
}

class OtlpWriter {
 public:
  OtlpWriter(const OtlpInput& input, const std::function<void(absl::string_view)>& put)
      : input_(input), put_(put) {
    const Fnv1a key = Fnv1a().Add(input.key);
    salt_ = key.hash();
    trace_ = absl::StrFormat("%016x%016x", std::max<uint64_t>(salt_, 1), Fnv1a(key).Add("trace").hash());
    job_times_.reserve(input.jobs.size());
    for (const DrawnJob& j : input.jobs) {
      job_times_.push_back(TimesOf(j.start, j.end));
      CoverStep(j.job.step, job_times_.back());
      span_of_job_[KeyOf(j.job, j.rank)] = job_times_.size() - 1;
      ranks_ = std::max(ranks_, j.rank + 1);
    }
    for (const DrawnTransfer& t : input.transfers) {
      transfer_times_.push_back(TimesOf(t.start, t.end));
      CoverStep(t.job.step, transfer_times_.back());
      transfers_of_[{t.from, t.tensor, KeyOf(t.job, t.to)}].push_back(transfer_times_.size() - 1);
      ranks_ = std::max(ranks_, t.to + 1);
    }
    job_links_.resize(job_times_.size());
    transfer_links_.resize(transfer_times_.size());
  }

  absl::Status LinkAll() {
    if (input_.graph == nullptr) return absl::OkStatus();
    for (size_t i = 0; i < input_.jobs.size(); ++i) {
      const DrawnJob& drawn = input_.jobs[i];
      if (absl::Status known = CheckKnown(drawn); !known.ok()) return known;
      LinkJob(drawn, i);
    }
    return absl::OkStatus();
  }

  OtlpCounts Write() {
    put_("{\"resourceSpans\":[");
    BeginResource("run");
    WriteRun();
    for (const auto& [step, times] : step_times_) WriteStep(step, times);
    put_("]}]}");
    std::vector<std::vector<size_t>> jobs(ranks_), transfers(ranks_);
    for (size_t i = 0; i < input_.jobs.size(); ++i) jobs[input_.jobs[i].rank].push_back(i);
    for (size_t i = 0; i < input_.transfers.size(); ++i) transfers[input_.transfers[i].to].push_back(i);
    for (Rank rank = 0; rank < ranks_; ++rank) {
      if (jobs[rank].empty() && transfers[rank].empty()) continue;
      put_(",");
      BeginResource(absl::StrCat("rank ", rank));
      for (const size_t i : jobs[rank]) WriteJob(i);
      for (const size_t i : transfers[rank]) WriteTransfer(i);
      put_("]}]}");
    }
    put_("]}\n");
    return counts_;
  }

 private:
  // The numbers of spans: the root is 0, then the steps, the jobs and the transfers.
  uint64_t StepSpan(int step) const {
    return 1 + static_cast<uint64_t>(std::distance(step_times_.begin(), step_times_.find(step)));
  }
  uint64_t JobSpan(size_t i) const { return 1 + step_times_.size() + i; }
  uint64_t TransferSpan(size_t i) const { return 1 + step_times_.size() + job_times_.size() + i; }

  // Returns the id of a span: its number, mixed one to one with the trace's (splitmix64), and never 0.
  std::string IdOf(uint64_t span) const {
    uint64_t x = (span + 1) * 0x9e3779b97f4a7c15ull + salt_;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    x ^= x >> 31;
    return absl::StrFormat("%016x", x == 0 ? salt_ : x);
  }

  Times TimesOf(double start, double end) const {
    const auto at = [&](double time) {
      return input_.begin_unix_ns + std::llround(time * input_.unit_seconds * 1e9);
    };
    return {at(start), at(end)};
  }
  void CoverStep(int step, const Times& times) {
    step_times_[step].Cover(times);
    run_times_.Cover(times);
  }

  absl::Status CheckKnown(const DrawnJob& drawn) const {
    const Job& job = drawn.job;
    const Schedule& schedule = input_.graph->schedule();
    const bool known =
        job.step >= 0 && job.step < input_.graph->steps() && job.stage >= 0 && job.stage < schedule.stages &&
        (!HasMicrobatch(job.kind) || (job.microbatch >= 0 && job.microbatch < schedule.microbatches &&
                                      input_.graph->IsComputeKindUsed(job.kind)));
    if (known) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("the schedule ", schedule.name, " has no ", Describe(job), " on rank ", drawn.rank));
  }

  // Returns the job as the graph knows it; nothing for a reduce or update of a rank that has none.
  std::optional<Job> InGraph(const DrawnJob& drawn) const {
    Job job = drawn.job;
    if (HasMicrobatch(job.kind)) {
      job.member = 0;
      return job;
    }
    const std::vector<Rank>& members = input_.graph->members(job.stage);
    const auto member = std::find(members.begin(), members.end(), drawn.rank);
    if (member == members.end()) return std::nullopt;
    job.microbatch = -1;
    job.member = static_cast<int>(member - members.begin());
    const bool has =
        job.kind == JobKind::kUpdate || input_.graph->protocol(job.stage).holder(job.member).reduces;
    return has ? std::optional(job) : std::nullopt;
  }

  // Links a job to its inputs. If several transfers have one key, the first goes with the first edge.
  void LinkJob(const DrawnJob& drawn, size_t i) {
    const std::optional<Job> job = InGraph(drawn);
    if (!job.has_value()) return;
    edges_.clear();
    input_.graph->Predecessors(*job, &edges_);
    std::map<TransferKey, size_t> taken;
    for (const Edge& edge : edges_) {
      if (edge.from.step < 0) continue;
      const Rank from = input_.graph->RankOf(edge.from);
      const auto producer = span_of_job_.find(KeyOf(edge.from, from));
      if (producer == span_of_job_.end()) continue;
      const TransferKey key = {from, edge.tensor, KeyOf(*job, drawn.rank)};
      const auto found = from == drawn.rank ? transfers_of_.end() : transfers_of_.find(key);
      size_t& next = taken[key];
      if (found != transfers_of_.end() && next < found->second.size()) {
        const size_t transfer = found->second[next++];
        AddLink({TransferSpan(transfer), edge.tensor}, &job_links_[i]);
        AddLink({JobSpan(producer->second), edge.tensor}, &transfer_links_[transfer]);
      } else {
        AddLink({JobSpan(producer->second), edge.tensor}, &job_links_[i]);
      }
    }
  }

  // Adds the link unless the same two spans have one: a tensor may come along several edges.
  static void AddLink(const SpanLink& link, std::vector<SpanLink>* links) {
    for (SpanLink& known : *links) {
      if (known.span != link.span) continue;
      if (known.tensor == TensorKind::kOrder) known.tensor = link.tensor;
      return;
    }
    links->push_back(link);
  }

  void BeginResource(const std::string& instance) {
    const OrderedJson resource = {
        {"attributes",
         {TextAttribute("service.name", "weft"), TextAttribute("service.instance.id", instance)}}};
    put_(absl::StrCat("{\"resource\":", resource.dump(),
                      ",\"scopeSpans\":[{\"scope\":{\"name\":\"weft.trace\"},\"spans\":["));
    first_span_ = true;
  }

  void PutSpan(uint64_t span, std::optional<uint64_t> parent, const std::string& name, const Times& times,
               OrderedJson attributes, const std::vector<SpanLink>& links) {
    OrderedJson json = {{"traceId", trace_}, {"spanId", IdOf(span)}};
    if (parent.has_value()) json["parentSpanId"] = IdOf(*parent);
    json["name"] = name;
    json["kind"] = kInternalSpan;
    json["startTimeUnixNano"] = absl::StrCat(times.start);
    json["endTimeUnixNano"] = absl::StrCat(times.end);
    json["attributes"] = std::move(attributes);
    for (const SpanLink& link : links) {
      json["links"].push_back(
          {{"traceId", trace_},
           {"spanId", IdOf(link.span)},
           {"attributes", OrderedJson::array({TextAttribute("weft.tensor", TensorKindName(link.tensor))})}});
    }
    counts_.links += static_cast<int64_t>(links.size());
    put_(absl::StrCat(std::exchange(first_span_, false) ? "" : ",",
                      json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace)));
  }

  void WriteRun() {
    PutSpan(0, std::nullopt, input_.title, run_times_,
            OrderedJson::array({NumberAttribute("weft.ranks", ranks_)}), {});
  }
  void WriteStep(int step, const Times& times) {
    ++counts_.steps;
    PutSpan(StepSpan(step), 0, absl::StrCat("step ", step), times,
            OrderedJson::array({NumberAttribute("weft.step", step)}), {});
  }
  void WriteJob(size_t i) {
    const DrawnJob& j = input_.jobs[i];
    ++counts_.jobs;
    PutSpan(JobSpan(i), StepSpan(j.job.step), absl::StrCat(JobKindName(j.job.kind), StageText(j.job)),
            job_times_[i], JobAttributes(j.job, j.rank), job_links_[i]);
  }
  void WriteTransfer(size_t i) {
    const DrawnTransfer& t = input_.transfers[i];
    ++counts_.transfers;
    OrderedJson attributes = {TextAttribute("weft.tensor", TensorKindName(t.tensor)),
                              NumberAttribute("weft.from_rank", t.from),
                              NumberAttribute("weft.to_rank", t.to), NumberAttribute("weft.step", t.job.step),
                              NumberAttribute("weft.stage", t.job.stage)};
    if (t.bytes > 0) attributes.push_back(NumberAttribute("weft.bytes", std::llround(t.bytes)));
    PutSpan(TransferSpan(i), StepSpan(t.job.step),
            absl::StrCat("transfer ", TensorKindName(t.tensor), StageText(t.job), " from rank ", t.from),
            transfer_times_[i], std::move(attributes), transfer_links_[i]);
  }

  const OtlpInput& input_;
  const std::function<void(absl::string_view)>& put_;
  uint64_t salt_ = 0;
  std::string trace_;
  Rank ranks_ = 0;
  Times run_times_;
  std::map<int, Times> step_times_;
  std::vector<Times> job_times_, transfer_times_;
  std::map<SpanKey, size_t> span_of_job_;
  std::map<TransferKey, std::vector<size_t>> transfers_of_;
  std::vector<std::vector<SpanLink>> job_links_, transfer_links_;
  Edges edges_;
  bool first_span_ = true;
  OtlpCounts counts_;
};

}  // namespace

absl::StatusOr<OtlpCounts> WriteOtlp(const OtlpInput& input,
                                     const std::function<void(absl::string_view)>& put) {
  OtlpWriter writer(input, put);
  if (const absl::Status linked = writer.LinkAll(); !linked.ok()) return linked;
  return writer.Write();
}

}  // namespace weft
