#include "client/files/measured_network.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/plain_text.h"

namespace weft {
namespace {

// Neighbouring ranks of one machine.
struct Node {
  std::string name;
  int first = 0, ranks = 0;
};

std::vector<Node> NodesOf(const std::vector<std::string>& node_of_rank) {
  std::vector<Node> nodes;
  for (size_t r = 0; r < node_of_rank.size(); ++r) {
    if (nodes.empty() || nodes.back().name != node_of_rank[r])
      nodes.push_back({node_of_rank[r], static_cast<int>(r), 0});
    ++nodes.back().ranks;
  }
  return nodes;
}

// Returns "bandwidth: 1e+09" and "latency: 1e-05", as far as they are known.
std::vector<std::string> Figures(const MeasuredLink& link) {
  std::vector<std::string> figures;
  if (link.bandwidth > 0) figures.push_back(absl::StrFormat("bandwidth: %.6g", link.bandwidth));
  if (link.latency > 0) figures.push_back(absl::StrFormat("latency: %.6g", link.latency));
  return figures;
}

std::string NodeText(const std::vector<Node>& nodes) {
  std::string text;
  for (const Node& n : nodes) {
    absl::StrAppend(&text, "#   ", PlainText(n.name, 64), ": ",
                    n.ranks == 1 ? absl::StrCat("rank ", n.first)
                                 : absl::StrCat("ranks ", n.first, " to ", n.first + n.ranks - 1),
                    "\n");
  }
  return text;
}

}  // namespace

std::vector<RankBurst> BurstsOf(const std::vector<DrawnTransfer>& of_training) {
  std::map<std::pair<Rank, Rank>, std::vector<TimedTransfer>> directions;
  for (const DrawnTransfer& t : of_training) {
    if (t.job.stage < 0) continue;  // its ranks are not known
    directions[{t.from, t.to}].push_back({t.start, t.end, static_cast<int64_t>(t.bytes)});
  }
  std::vector<RankBurst> bursts;
  for (auto& [ranks, of_direction] : directions) {
    for (const Burst& burst : BurstsOf(std::move(of_direction)))
      bursts.push_back({ranks.first, ranks.second, burst});
  }
  return bursts;
}

std::vector<double> JoinNearSpeeds(const std::vector<double>& speeds) {
  std::vector<size_t> ranks(speeds.size());  // the slowest first
  std::iota(ranks.begin(), ranks.end(), 0);
  std::stable_sort(ranks.begin(), ranks.end(), [&](size_t a, size_t b) { return speeds[a] < speeds[b]; });
  std::vector<double> joined(speeds.size());
  for (size_t i = 0; i < ranks.size(); ++i) {
    const double speed = speeds[ranks[i]];
    const bool near = i > 0 && (1 - kSameSpeed) * speed < speeds[ranks[i - 1]];
    joined[ranks[i]] = near ? joined[ranks[i - 1]] : speed;
  }
  return joined;
}

MeasuredLink LinkOf(const std::vector<RankBurst>& bursts) {
  std::vector<Burst> all;
  all.reserve(bursts.size());
  for (const RankBurst& b : bursts) all.push_back(b.burst);
  return LinkOf(all);
}

std::vector<RankRing> RingsOf(int ranks, int layers) {
  constexpr int kAllPairs = 16;  // ranks
  std::vector<RankRing> rings;
  for (int shift = 1; shift <= ranks / 2;) {
    for (int first = 0; first < ranks; first += layers) rings.push_back({ranks, first, shift});
    const int next = ranks <= kAllPairs ? shift + 1 : 2 * shift;
    shift = shift < ranks / 2 ? std::min(next, ranks / 2) : next;
  }
  return rings;
}

MeasuredNetwork NetworkOf(std::vector<std::string> node_of_rank, const std::vector<RankBurst>& bursts) {
  MeasuredNetwork network;
  std::vector<Burst> inside, between;
  std::map<std::pair<Rank, Rank>, std::vector<Burst>> of_pair;
  for (const RankBurst& b : bursts) {
    const bool apart = !node_of_rank.empty() && node_of_rank[b.from] != node_of_rank[b.to];
    (apart ? between : inside).push_back(b.burst);
    of_pair[std::minmax(b.from, b.to)].push_back(b.burst);
  }
  network.inside = LinkOf(inside);
  network.between = LinkOf(between);
  for (const auto& [ranks, of_ranks] : of_pair)
    network.pairs.push_back({ranks.first, ranks.second, LinkOf(of_ranks)});
  network.node_of_rank = std::move(node_of_rank);
  return network;
}

std::string NetworkText(const std::string& source, const MeasuredNetwork& network) {
  const std::vector<Node> nodes = NodesOf(network.node_of_rank);
  std::string text = absl::StrCat("# measured by weft profile ", source, nodes.empty() ? "\n" : ", on\n");
  text += NodeText(nodes);
  for (const std::string& figure : Figures(network.inside)) absl::StrAppend(&text, figure, "\n");
  if (nodes.size() > 1) {
    const auto ranks = [](std::string* out, const Node& n) { absl::StrAppend(out, n.ranks); };
    absl::StrAppend(&text, "nodes: [", absl::StrJoin(nodes, ", ", ranks), "]\n");
    if (const auto figures = Figures(network.between); !figures.empty())
      absl::StrAppend(&text, "between: {", absl::StrJoin(figures, ", "), "}\n");
  }
  const auto three_digits = [](std::string* out, double speed) { absl::StrAppendFormat(out, "%.3f", speed); };
  absl::StrAppend(&text, "speeds: [", absl::StrJoin(network.speeds, ", ", three_digits), "]\n");
  if (network.node_of_rank.empty() || network.pairs.empty()) return text;
  absl::StrAppend(&text, "# the link of each two ranks that was measured\n");
  for (const MeasuredNetwork::Pair& p : network.pairs)
    absl::StrAppend(&text, "#   ", p.a, " and ", p.b, ": ", absl::StrJoin(Figures(p.link), ", "), "\n");
  return text;
}

}  // namespace weft
