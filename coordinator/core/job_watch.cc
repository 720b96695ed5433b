#include "coordinator/core/job_watch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace weft {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
// A job is slow behind this time, and so many times the mean of so many jobs.
constexpr int64_t kSlowAfter = 5 * kSecond, kSlowTimes = 4, kSlowCount = 3;
constexpr size_t kMostNamed = 4;

std::string Tenths(int64_t ns) { return absl::StrFormat("%.1f s", 1e-9 * static_cast<double>(ns)); }

// Returns the largest 1, 2, 4, 8, .. seconds that have passed.
int64_t Doubled(int64_t ns) {
  int64_t seconds = 1;
  while (2 * seconds * kSecond <= ns) seconds *= 2;
  return seconds;
}

}  // namespace

JobWatch::Like JobWatch::LikeOf(const Job& job) const {
  if (static_cast<size_t>(job.stage) >= likes_.size()) return {};
  return likes_[job.stage][static_cast<int>(job.kind)];
}

int64_t JobWatch::LimitOf(const Job& job) const {
  const Like like = LikeOf(job);
  const int64_t own = like.count == 0
                          ? timeout_.first_ns
                          : static_cast<int64_t>(timeout_.times * static_cast<double>(like.longest_ns));
  return std::max(timeout_.at_least_ns, own);
}

bool JobWatch::IsSlow(const Job& job, int64_t took) const {
  const Like like = LikeOf(job);
  return like.count >= kSlowCount && took >= std::max(kSlowAfter, kSlowTimes * like.mean_ns);
}

// Returns ", where such jobs take 1.1 s and at most 1.4 s (claimed 20.3 s and ready 0.1 s before it
// started)".
std::string JobWatch::Evidence(const Job& job, int64_t started_ns, const JobTimes& times) const {
  const Like like = LikeOf(job);
  std::string text = like.count == 0 ? ", the first of its kind and stage"
                                     : absl::StrCat(", where such jobs take ", Tenths(like.mean_ns),
                                                    " and at most ", Tenths(like.longest_ns));
  const JobTimes::Times at = times.Of(job);
  std::vector<std::string> parts;
  const auto add = [&](const char* what, int64_t time) {
    if (time > 0) parts.push_back(absl::StrCat(what, " ", Tenths(std::max<int64_t>(0, started_ns - time))));
  };
  add("claimed", at.claimed_ns);
  add("ready", at.ready_ns);
  if (!parts.empty()) absl::StrAppend(&text, " (", absl::StrJoin(parts, " and "), " before it started)");
  return text;
}

std::optional<std::string> JobWatch::Ended(int64_t now, Rank rank, const Completion& done,
                                           const JobTimes& times) {
  const int64_t took = std::max<int64_t>(0, done.end_ns - done.start_ns);
  std::optional<std::string> said;
  if (IsSlow(done.job, took)) {
    said = absl::StrCat(Describe(done.job), " of rank ", rank, " took ", Tenths(took),
                        Evidence(done.job, now - took, times));
    slow_.erase(rank);
  }
  if (static_cast<size_t>(done.job.stage) >= likes_.size()) likes_.resize(done.job.stage + 1);
  Like& like = likes_[done.job.stage][static_cast<int>(done.job.kind)];
  ++like.count;
  like.mean_ns += (took - like.mean_ns) / like.count;
  like.longest_ns = std::max(like.longest_ns, took);
  return said;
}

JobWatch::Verdict JobWatch::Judge(int64_t now, const std::vector<RunningJob>& running,
                                  const JobTimes& times) {
  Verdict verdict;
  std::vector<std::string> named;
  for (const RunningJob& r : running) {
    const int64_t limit = LimitOf(r.job);
    if (r.age_ns > limit && !verdict.stuck.has_value()) {
      verdict.stuck = r.job;
      verdict.reason = absl::StrCat(Describe(r.job), " of rank ", r.rank, " has run for ", Tenths(r.age_ns),
                                    " and may take ", Tenths(limit), Evidence(r.job, now - r.age_ns, times));
    }
    if (!IsSlow(r.job, r.age_ns)) continue;
    Slow& slow = slow_[r.rank];
    if (slow.job != r.job || slow.started_ns == 0) slow = {r.job, now - r.age_ns};
    if (named.size() == kMostNamed) continue;
    named.push_back(absl::StrCat(Describe(r.job), " of rank ", r.rank, " has run for more than ",
                                 Doubled(r.age_ns), " s", Evidence(r.job, slow.started_ns, times)));
  }
  verdict.slow = absl::StrJoin(named, "; ");
  return verdict;
}

}  // namespace weft
