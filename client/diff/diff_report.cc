#include "client/diff/diff_report.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "schedules/drawing/drawing.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

std::string Place(const JobHashes& job) {
  return job.rank < 0 ? "the reference" : absl::StrCat("rank ", job.rank, ", process ", job.process);
}

std::string HashText(uint64_t hash) { return absl::StrFormat("%016x", hash); }

std::string ResultText(const RunDiff::Result& result) {
  const ValueCopy& copy = result.a.parts > 1 ? result.a : result.b;
  std::string name(DiffedResultName(result.result));
  if (copy.parts == 1) return name;
  if (copy.part == ValueCopy::kSomePart) return absl::StrCat(name, " (one of ", copy.parts, " slices)");
  return absl::StrCat(name, " (part ", copy.part, " of ", copy.parts, ")");
}

// Returns the line of one run about a result that differs.
std::string RunText(const std::string& name, const ValueCopy& copy) {
  const std::string place = copy.part == ValueCopy::kSomePart
                                ? absl::StrCat("in ", copy.parts, " slices, on as many ranks")
                                : Place(*copy.job);
  return absl::StrFormat("  %s  %s: %s, %s\n", HashText(copy.hash), name, JobKindName(copy.job->job.kind),
                         place);
}

// Returns the job as both runs know it: reduces and updates have a member, which may not be the same.
std::string JobText(const Job& job) {
  if (HasMicrobatch(job.kind)) return Describe(job);
  return absl::StrFormat("%s (step %d, stage %d)", JobKindName(job.kind), job.step, job.stage);
}

std::string TransferText(const RunDiff::Transfer& transfer, const DiffNames& names) {
  const bool in_b = transfer.in_b;
  return absl::StrFormat(
      "In %s, the %s that %s received is not what %s sent (%s): the transfer changed it, or the memory of "
      "one "
      "of the two did. Look at the link and the memory of these machines.",
      in_b ? names.b : names.a, HashedValueName(transfer.received.value), Place(*transfer.receiver),
      Place(*transfer.sent.job), JobText(transfer.sent.job->job));
}

std::string Meaning(DiffedResult result) {
  switch (result) {
    case DiffedResult::kInitialWeights:
      return "The runs begin with different weights: they went on from different checkpoints, or made their "
             "initial weights differently.";
    case DiffedResult::kActivation:
    case DiffedResult::kLoss:
    case DiffedResult::kInputGradient:
    case DiffedResult::kGradient:
      return "Its inputs and the weights that it is to read are equal in both runs, so its computation "
             "differs: another version of the weights, other data, a kernel, or memory that changed since.";
    case DiffedResult::kRunningSum:
      return "The micro-batch's gradient and the sum before it are equal in both runs, so the addition or "
             "the transfer of the sum differs.";
    case DiffedResult::kGradientSum:
      return "The gradients of all micro-batches are equal in both runs, so their summing differs: one is "
             "missing or counted twice, slices are exchanged, or the order is another.";
    case DiffedResult::kGradientNorm:
      return "The gradient sums of all stages are equal in both runs, so the computation of their norm "
             "differs.";
    case DiffedResult::kWeights:
      return "The gradient sum and the weights before it are equal in both runs, so the update differs: the "
             "optimizer's state, its rate, the clipping, or how the version came to this rank.";
  }
  return "";
}

// Without a rank where nothing tells which of several it is.
Json JobJson(const ValueCopy& copy) {
  const JobHashes& job = *copy.job;
  Json json = {{"kind", JobKindName(job.job.kind)}};
  if (copy.part == ValueCopy::kSomePart) return json;
  json["rank"] = job.rank;
  json["process"] = job.process;
  if (!HasMicrobatch(job.job.kind)) json["member"] = job.job.member;
  return json;
}

Json RootJson(const RunDiff::Root& root, const DiffNames& names) {
  const Job& job = root.a().job;
  Json json = {{"step", job.step}, {"stage", job.stage}};
  if (HasMicrobatch(job.kind)) json["microbatch"] = job.microbatch;
  json["kind"] = JobKindName(job.kind);
  json["a"] = JobJson(root.results.front().a);
  json["b"] = JobJson(root.results.front().b);
  for (const RunDiff::Result& r : root.results) {
    Json result = {{"result", DiffedResultName(r.result)}};
    const ValueCopy& slice = r.a.parts > 1 ? r.a : r.b;
    if (slice.parts > 1) result["parts"] = slice.parts;
    if (slice.parts > 1 && slice.part != ValueCopy::kSomePart) result["part"] = slice.part;
    result["a"] = HashText(r.a.hash);
    result["b"] = HashText(r.b.hash);
    json["differs"].push_back(result);
  }
  for (const RunDiff::Transfer& t : root.transfers) {
    json["changed_in_transfer"].push_back({{"run", t.in_b ? "b" : "a"},
                                           {"value", HashedValueName(t.received.value)},
                                           {"sent_by", t.sent.job->rank},
                                           {"received_by", t.receiver->rank}});
  }
  json["meaning"] = MeaningOf(root, names);
  return json;
}

std::string RootText(const RunDiff::Root& root, const DiffNames& names) {
  std::vector<std::string> results;
  for (const RunDiff::Result& r : root.results) results.push_back(ResultText(r));
  const RunDiff::Result& first = root.results.front();
  return absl::StrCat("The first job whose results differ: ", JobText(root.a().job), "\nIts ",
                      absl::StrJoin(results, " and its "), results.size() == 1 ? " differs:\n" : " differ:\n",
                      RunText(names.a, first.a), RunText(names.b, first.b));
}

}  // namespace

std::string MeaningOf(const RunDiff::Root& root, const DiffNames& names) {
  if (!root.transfers.empty()) return TransferText(root.transfers.front(), names);
  const std::string meaning = Meaning(root.results.front().result);
  return root.arrived_whole ? absl::StrCat(meaning, " What it received arrived as it was sent.") : meaning;
}

std::string DiffText(const RunDiff& diff, const DiffNames& names, int width) {
  const std::string compared =
      absl::StrCat(diff.values, diff.values == 1 ? " value" : " values", " of steps ", diff.first_step,
                   " to ", diff.first_step + diff.steps - 1);
  if (diff.equal()) return absl::StrCat("equal: ", compared, " have the same hashes in both runs\n");
  std::string text = RootText(diff.roots.front(), names);
  absl::StrAppend(&text, WrapText(MeaningOf(diff.roots.front(), names), width), "\n");
  if (diff.roots.size() > 1) {
    absl::StrAppend(&text, diff.roots.size() - 1,
                    diff.roots.size() == 2 ? " more job differs" : " more jobs differ",
                    " that does not follow from it, first: ", JobText(diff.roots[1].a().job), "\n");
  }
  absl::StrAppend(&text, diff.following, diff.following == 1 ? " result follows" : " results follow",
                  " from that. Compared: ", compared, ".\n");
  return text;
}

Json DiffJson(const RunDiff& diff, const DiffNames& names) {
  Json json = {{"equal", diff.equal()},         {"a", names.a},        {"b", names.b},
               {"first_step", diff.first_step}, {"steps", diff.steps}, {"values", diff.values},
               {"following", diff.following}};
  if (!diff.equal()) {
    json["first"] = RootJson(diff.roots.front(), names);
    json["further"] = Json::array();
    for (size_t i = 1; i < diff.roots.size() && i <= 100; ++i)
      json["further"].push_back(RootJson(diff.roots[i], names));
  }
  return json;
}

}  // namespace weft
