#include "client/diff/recorded_hashes.h"

#include <algorithm>
#include <bit>
#include <climits>
#include <utility>

namespace weft {
namespace {

void AppendCopies(const JobHashes& job, HashedValue value, ValueCopies* copies) {
  for (const ValueHash& h : job.hashes) {
    if (h.value == value && !h.received) copies->push_back({h.part, h.parts, h.hash, &job});
  }
}

ValueCopies Number(const JobHashes& job, std::optional<double> number) {
  if (!number.has_value()) return {};
  return {{0, 1, std::bit_cast<uint64_t>(*number), &job}};
}

const ValueCopy* FindPart(const ValueCopies& copies, int part, int parts) {
  for (const ValueCopy& copy : copies) {
    if (copy.part == part && copy.parts == parts) return &copy;
  }
  return nullptr;
}

// Returns the sums of all slices, for each number of slices of which all are there. If copies of one slice
// differ, the first counts.
std::vector<uint64_t> SumsOfSlices(const ValueCopies& copies) {
  std::map<int, std::map<int, uint64_t>> by_parts;
  for (const ValueCopy& copy : copies) {
    if (copy.parts > 1) by_parts[copy.parts].emplace(copy.part, copy.hash);
  }
  std::vector<uint64_t> sums;
  for (const auto& [parts, slices] : by_parts) {
    if (static_cast<int>(slices.size()) != parts) continue;
    uint64_t sum = 0;
    for (const auto& [part, hash] : slices) sum += hash;
    sums.push_back(sum);
  }
  return sums;
}

// Returns every hash of the whole value that the copies give.
std::vector<uint64_t> Wholes(const ValueCopies& copies) {
  std::vector<uint64_t> wholes = SumsOfSlices(copies);
  for (const ValueCopy& copy : copies) {
    if (copy.parts == 1) wholes.push_back(copy.hash);
  }
  return wholes;
}

bool AllEqualTo(const std::vector<uint64_t>& hashes, uint64_t hash) {
  return std::all_of(hashes.begin(), hashes.end(), [&](uint64_t h) { return h == hash; });
}

// Returns true if the job only took the copy over from another one, as it came.
bool IsTakenOver(const ValueCopy& copy) {
  const std::vector<ValueHash>& hashes = copy.job->hashes;
  return std::any_of(hashes.begin(), hashes.end(),
                     [&](const ValueHash& h) { return h.received && h.hash == copy.hash; });
}

// Returns slices, or copies, of both of the same place that differ: if possible those that were made wrong,
// not copies of such.
std::optional<std::pair<ValueCopy, ValueCopy>> DifferingSlices(const ValueCopies& a, const ValueCopies& b) {
  std::optional<std::pair<ValueCopy, ValueCopy>> found;
  for (const ValueCopy& copy : a) {
    for (const ValueCopy& other : b) {
      const bool same = other.part == copy.part && other.parts == copy.parts;
      if (!same || other.hash == copy.hash) continue;
      if (!IsTakenOver(copy) && !IsTakenOver(other)) return std::pair(copy, other);
      if (!found.has_value()) found = std::pair(copy, other);
    }
  }
  return found;
}

// Returns the copy that differs from what the other run has, or else stands for one of the slices.
ValueCopy OddCopy(const ValueCopies& copies, const std::vector<uint64_t>& others) {
  for (const ValueCopy& copy : copies) {
    const bool differs = std::find(others.begin(), others.end(), copy.hash) == others.end();
    if (copy.parts == 1 && differs) return copy;
  }
  ValueCopy some = copies.front();
  if (some.parts > 1) {
    some.part = ValueCopy::kSomePart;
    some.hash = Wholes(copies).front();
  }
  return some;
}

bool HaveCommonSlice(const ValueCopies& a, const ValueCopies& b) {
  return std::any_of(a.begin(), a.end(),
                     [&](const ValueCopy& copy) { return FindPart(b, copy.part, copy.parts) != nullptr; });
}

}  // namespace

void RecordedHashes::Add(JobHashes job) {
  const Job key = job.job;
  jobs_.insert_or_assign(key, std::move(job));
}

void RecordedHashes::ForgetFrom(int step) {
  jobs_.erase(jobs_.lower_bound(Job{step, INT_MIN, INT_MIN, INT_MIN, JobKind::kForward}), jobs_.end());
}

const JobHashes* RecordedHashes::Find(const Job& job) const {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? nullptr : &found->second;
}

ValueCopies RecordedHashes::OfForward(HashedValue value, int step, int stage, int microbatch) const {
  ValueCopies copies;
  const JobHashes* job = Find(Job::Compute(step, stage, microbatch, JobKind::kForward));
  if (job != nullptr) AppendCopies(*job, value, &copies);
  return copies;
}

ValueCopies RecordedHashes::OfBackward(HashedValue value, int step, int stage, int microbatch) const {
  ValueCopies copies;
  for (const JobKind kind : {JobKind::kBackward, JobKind::kBackwardInput, JobKind::kBackwardWeight}) {
    const JobHashes* job = Find(Job::Compute(step, stage, microbatch, kind));
    if (job != nullptr) AppendCopies(*job, value, &copies);
  }
  return copies;
}

ValueCopies RecordedHashes::OfHolders(HashedValue value, int step, int stage) const {
  ValueCopies copies;
  for (auto it = jobs_.lower_bound(Job{step, stage, -1, 0, JobKind::kForward});
       it != jobs_.end() && it->first.step == step && it->first.stage == stage && it->first.microbatch == -1;
       ++it) {
    AppendCopies(it->second, value, &copies);
  }
  return copies;
}

ValueCopies RecordedHashes::Loss(int step, int stage, int microbatch) const {
  const JobHashes* job = Find(Job::Compute(step, stage, microbatch, JobKind::kForward));
  return job == nullptr ? ValueCopies() : Number(*job, job->loss);
}

// The reduce that totals the norm is one of the first stage.
ValueCopies RecordedHashes::GradientNorm(int step) const {
  for (auto it = jobs_.lower_bound(Job{step, 0, -1, 0, JobKind::kForward});
       it != jobs_.end() && it->first.step == step && it->first.stage == 0 && it->first.microbatch == -1;
       ++it) {
    if (it->second.gradient_norm.has_value()) return Number(it->second, it->second.gradient_norm);
  }
  return {};
}

std::optional<ValueCopy> RecordedHashes::AsSent(const JobHashes& job, const ValueHash& received) const {
  const Job& reader = job.job;
  ValueCopies sent;
  switch (received.value) {
    case HashedValue::kActivation:
      sent = OfForward(received.value, reader.step, received.source, reader.microbatch);
      break;
    case HashedValue::kInputGradient:
      sent = OfBackward(received.value, reader.step, received.source, reader.microbatch);
      break;
    case HashedValue::kGradient:
    case HashedValue::kRunningSum:
      sent = OfBackward(received.value, reader.step, reader.stage, received.source);
      break;
    case HashedValue::kGradientSum:
      sent = OfHolders(received.value, reader.step, reader.stage);
      break;
    case HashedValue::kWeights:
      sent = OfHolders(received.value, received.source - 1, reader.stage);
      break;
    case HashedValue::kInitialWeights:
      break;
  }
  std::optional<ValueCopy> found;
  for (const ValueCopy& copy : sent) {
    if (copy.part != received.part || copy.parts != received.parts || copy.job == &job) continue;
    if (!found.has_value() || copy.hash == received.hash) found = copy;
  }
  return found;
}

std::optional<uint64_t> WholeOf(const ValueCopies& copies) {
  const std::vector<uint64_t> wholes = Wholes(copies);
  if (wholes.empty() || !AllEqualTo(wholes, wholes.front())) return std::nullopt;
  return wholes.front();
}

ValueComparison Compare(const ValueCopies& a, const ValueCopies& b) {
  using Result = ValueComparison::Result;
  if (a.empty() || b.empty()) return {};
  const std::vector<uint64_t> of_a = Wholes(a), of_b = Wholes(b);
  const auto slices = DifferingSlices(a, b);
  if (slices.has_value()) return {Result::kDiffers, slices->first, slices->second};
  if (of_a.empty() || of_b.empty())
    return {HaveCommonSlice(a, b) ? Result::kEqual : Result::kUnknown, {}, {}};
  if (AllEqualTo(of_a, of_a.front()) && AllEqualTo(of_b, of_a.front())) return {Result::kEqual, {}, {}};
  return {Result::kDiffers, OddCopy(a, of_b), OddCopy(b, of_a)};
}

}  // namespace weft
