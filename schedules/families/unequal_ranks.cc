#include "schedules/families/unequal_ranks.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "schedules/families/tie_rule.h"

namespace weft {
namespace {

// Returns the length of the shortest beginning that the list repeats.
size_t RepeatedLength(const std::vector<Rank>& ranks) {
  for (size_t period = 1; period < ranks.size(); ++period) {
    bool repeats = true;
    for (size_t i = period; repeats && i < ranks.size(); ++i) repeats = ranks[i] == ranks[i - period];
    if (repeats) return period;
  }
  return ranks.size();
}

Candidate CustomOf(const std::string& compute, int ranks, const std::string& order) {
  return {"custom", {{"ranks", absl::StrCat(ranks)}, {"compute", compute}, {"order", order}}};
}

}  // namespace

std::vector<Rank> DealBySpeed(int parts, const std::vector<double>& speeds) {
  const int ranks = static_cast<int>(speeds.size());
  std::vector<int> dealt(ranks);
  std::vector<Rank> rank_of(parts);
  int without = ranks;  // ranks that have none yet
  for (int part = 0; part < parts; ++part) {
    Rank best = -1;
    for (Rank r = 0; r < ranks; ++r) {
      if (parts - part <= without && dealt[r] > 0) continue;  // what is left goes to those without
      if (best < 0 || (dealt[r] + 1) / speeds[r] < (dealt[best] + 1) / speeds[best] * (1 - 1e-9)) best = r;
    }
    without -= dealt[best] == 0 ? 1 : 0;
    ++dealt[best];
    rank_of[part] = best;
  }
  return rank_of;
}

std::vector<Rank> PlaceBySpeed(const std::vector<double>& work, const std::vector<double>& speeds) {
  const size_t parts = work.size(), ranks = speeds.size();
  constexpr double kNever = std::numeric_limits<double>::infinity();
  // The least time of the rank that takes longest, for the first so many parts on the first so many ranks;
  // and how many of them the last of these ranks has.
  std::vector<std::vector<double>> least(ranks + 1, std::vector<double>(parts + 1, kNever));
  std::vector<std::vector<size_t>> last(ranks + 1, std::vector<size_t>(parts + 1));
  least[0][0] = 0;
  for (size_t r = 1; r <= ranks; ++r) {
    for (size_t p = r; p <= parts; ++p) {
      double own = 0;
      for (size_t n = 1; n <= p; ++n) {
        own += work[p - n] / speeds[r - 1];
        const double time = std::max(least[r - 1][p - n], own);
        if (time >= least[r][p]) continue;
        least[r][p] = time;
        last[r][p] = n;
      }
    }
  }
  std::vector<Rank> rank_of(parts);
  size_t end = parts;
  for (size_t r = ranks; r > 0; --r) {
    const size_t begin = end - last[r][end];
    std::fill(rank_of.begin() + begin, rank_of.begin() + end, static_cast<Rank>(r - 1));
    end = begin;
  }
  return rank_of;
}

std::string RankFormula(const std::vector<Rank>& ranks, const std::string& variable) {
  const size_t period = RepeatedLength(ranks);
  const std::string place =
      period == ranks.size() || period == 1 ? variable : absl::StrCat(variable, " % ", period);
  std::string formula;
  for (size_t i = 0; i < period; ++i) {
    const bool ends = i + 1 < period && ranks[i + 1] != ranks[i];
    if (ends) absl::StrAppend(&formula, place, " < ", i + 1, " ? ", ranks[i], " : ");
  }
  return absl::StrCat(formula, ranks[period - 1]);
}

Candidate DealtCandidate(const std::vector<Rank>& rank_of_microbatch, int ranks) {
  return CustomOf(RankFormula(rank_of_microbatch, "b"), ranks, std::string(kOneForwardOneBackward));
}

Candidate PlacedCandidate(const std::vector<Rank>& rank_of_stage, int ranks, const std::string& order) {
  return CustomOf(RankFormula(rank_of_stage, "s"), ranks, order);
}

}  // namespace weft
