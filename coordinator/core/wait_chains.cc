#include "coordinator/core/wait_chains.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/seconds.h"

namespace weft {
namespace {

// The time for which a job that has all its inputs may be on its way to a report that names it.
constexpr int64_t kStartsNs = 2'000'000'000;

class WaitChains {
 public:
  WaitChains(const WaitFacts& facts, RunWaits* waits) : f_(facts), waits_(*waits) {}

  void Follow() {
    for (Rank rank = 0; rank < f_.members.ranks(); ++rank) waits_.ranks.push_back(WaitOf(rank));
    for (RankWait& wait : waits_.ranks) {
      if (Works(wait) || wait.does == "done") continue;
      const Link& first = ChainFrom(wait.rank);
      wait.root = first.root;
      wait.chain = RanksBehind(first);
    }
  }

 private:
  static constexpr int32_t kUnderWay = -1;

  // A place of a chain: a rank, and its job that the place before waits for.
  struct Place {
    Rank rank = 0;
    std::optional<Job> wanted = {};
    friend auto operator<=>(const Place&, const Place&) = default;
  };
  // Facts known of a place: its root, and the place behind it.
  struct Link {
    Rank rank = 0;
    int32_t root = kUnderWay;    // index; kUnderWay for a place of the present chain
    const Link* next = nullptr;  // null where the chain ends, or comes back to one of its places
  };
  struct Missing {
    std::optional<MissingInput> first;
    int32_t count = 0;
  };

  const RunMember& MemberOf(Rank rank) const { return f_.members.MemberOf(rank); }
  const MemberSilence& SilenceOf(Rank rank) const {
    return f_.silences[&MemberOf(rank) - f_.members.all().data()];
  }
  bool IsReached(Rank rank) const { return !SilenceOf(rank).silent && SilenceOf(rank).broken.empty(); }
  // Returns true if the job, which may come from a report, is one that the rank has in hand.
  bool Holds(Rank rank, const Job& job) const { return f_.queue.IsInHand(rank, job); }

  // Returns the job that the idle rank starts next: the first that it has in hand, or else is granted next.
  std::optional<Job> NextOf(Rank rank) const {
    const std::vector<Job> first = f_.queue.InHand(rank, 1);
    return first.empty() ? f_.queue.NextOf(rank) : first.front();
  }

  // Returns the inputs of the job that are not made: first one of a process that is not reached, if there is
  // one. Inputs that a collective waits for by itself come last.
  Missing MissingOf(const Job& job) const {
    Edges edges;
    f_.graph.Predecessors(job, &edges);
    Missing missing;
    int best = 0;
    for (const Edge& edge : edges) {
      if (edge.from.step < f_.graph.first_step() || edge.from.step >= f_.graph.steps() ||
          f_.queue.IsDone(edge.from))
        continue;
      const Rank rank = f_.graph.RankOf(edge.from);
      const int rating = (edge.joined ? 1 : 3) + (IsReached(rank) ? 0 : 1);
      ++missing.count;
      if (rating <= best) continue;
      best = rating;
      missing.first = MissingInput{edge.tensor, edge.from, rank};
    }
    return missing;
  }

  int64_t IdleFor(Rank rank) const {
    return f_.now - std::max(f_.running_since_ns, f_.seen.Of(rank).ended_ns);
  }

  RankWait WaitOf(Rank rank) const {
    RankWait wait{rank, MemberOf(rank).process};
    const MemberSilence& silence = SilenceOf(rank);
    const RankWatch::Seen& seen = f_.seen.Of(rank);
    const int64_t since_report = f_.now - seen.reported_ns;
    if (!IsReached(rank)) {
      wait.does = silence.broken.empty() ? "silent" : "broken";
      wait.for_ns = silence.for_ns;
    } else if (seen.running.has_value() && Holds(rank, seen.running->job)) {
      wait.does = "computes";
      wait.job = seen.running->job;
      wait.for_ns = seen.running->age_ns + since_report;
    } else if (seen.joint.has_value() && Holds(rank, seen.joint->job)) {
      wait.does = "collective";
      wait.job = seen.joint->job;
      wait.for_ns = seen.joint->age_ns + since_report;
    } else {
      wait.job = NextOf(rank);
      wait.does = wait.job.has_value() ? "waits" : "done";
      wait.for_ns = IdleFor(rank);
    }
    if (!wait.job.has_value() || wait.does == "computes") return wait;
    const Missing missing = MissingOf(*wait.job);
    wait.missing = missing.first;
    wait.further = std::max(0, missing.count - 1);
    if (wait.does == "waits" && missing.count == 0 && Begins(rank, *wait.job)) {
      wait.does = "begins";
      wait.for_ns = ReadyFor(rank, *wait.job);
    }
    return wait;
  }
  static bool Works(const RankWait& wait) { return wait.does == "computes" || wait.does == "begins"; }

  // Return, for a job whose inputs are all made, for how long it could have been begun, whether its rank may
  // be about to, and the rank of a tensor whose process is not reached, so that it may not have been sent.
  int64_t ReadyFor(Rank rank, const Job& job) const {
    return f_.now - std::max({f_.running_since_ns, f_.times.Of(job).ready_ns, f_.seen.Of(rank).ended_ns});
  }
  bool Begins(Rank rank, const Job& job) const {
    return Holds(rank, job) && ReadyFor(rank, job) < kStartsNs && MemberOf(rank).stalled.empty() &&
           !UnreachedMaker(job).has_value();
  }
  std::optional<Rank> UnreachedMaker(const Job& job) const {
    Edges edges;
    f_.graph.Predecessors(job, &edges);
    for (const Edge& edge : edges) {
      if (edge.from.step < f_.graph.first_step()) continue;
      if (edge.tensor == TensorKind::kOrder || edge.joined) continue;  // nothing is sent for it
      if (const Rank from = f_.graph.RankOf(edge.from); !IsReached(from)) return from;
    }
    return std::nullopt;
  }

  // Follows the chain from the rank until it ends, or comes to a place whose root is known. Returns its first
  // place.
  const Link& ChainFrom(Rank rank) {
    std::vector<Link*> passed;
    int32_t root = kUnderWay;
    for (std::optional<Place> at = Place{rank}; at.has_value();) {
      const auto [known, is_new] = links_.try_emplace(*at, Link{at->rank});
      Link& link = known->second;
      const bool closes_circle = !is_new && link.root == kUnderWay;
      if (!passed.empty() && !closes_circle) passed.back()->next = &link;
      if (!is_new) {
        root = closes_circle ? Add(CircleRoot(*at)) : link.root;
        break;
      }
      passed.push_back(&link);
      const RankWait& wait = waits_.ranks[at->rank];
      const bool ends = !IsReached(at->rank) || Works(wait);
      const std::optional<Place> next = ends ? std::nullopt : NextPlace(*at, wait);
      if (!next.has_value()) root = Add(RootHere(*at, wait));
      at = next;
    }
    for (Link* const link : passed) link->root = root;
    return links_.at(Place{rank});
  }

  static std::vector<Rank> RanksBehind(const Link& first) {
    std::vector<Rank> ranks;
    for (const Link* link = first.next; link != nullptr && ranks.size() < kMostOfChain; link = link->next) {
      const bool is_there = std::find(ranks.begin(), ranks.end(), link->rank) != ranks.end();
      if (link->rank != first.rank && !is_there) ranks.push_back(link->rank);
    }
    return ranks;
  }

  WaitRoot CircleRoot(const Place& at) const {
    return RootWith("unknown", at.rank, at.wanted, 0,
                    absl::StrCat("rank ", at.rank, " waits for itself: a fault of Weft"));
  }

  // Returns the job at the place: the wanted one if its rank has it in hand, else the rank's own next.
  std::optional<Job> JobAt(const Place& at, const RankWait& wait) const {
    return at.wanted.has_value() && Holds(at.rank, *at.wanted) ? at.wanted : wait.job;
  }

  // Returns where the chain goes on; nothing where it ends.
  std::optional<Place> NextPlace(const Place& at, const RankWait& wait) {
    if (at.wanted.has_value() && !f_.queue.IsDone(*at.wanted)) {
      if (const auto missing = MissingOf(*at.wanted).first) return Place{missing->rank, missing->maker};
    }
    // The end of the wanted job may be reported later than the collective behind it.
    if (wait.missing.has_value() && wait.missing->maker != at.wanted)
      return Place{wait.missing->rank, wait.missing->maker};
    if (wait.does == "collective" && f_.graph.IsJoint(*wait.job)) {
      const Rank member = AwaitedMember(at.rank, *wait.job);
      return member == at.rank ? std::nullopt : std::optional(Place{member});
    }
    const std::optional<Job> job = JobAt(at, wait);
    if (!job.has_value() || !Holds(at.rank, *job)) return std::nullopt;
    const std::optional<Rank> maker = UnreachedMaker(*job);
    return maker.has_value() ? std::optional(Place{*maker}) : std::nullopt;
  }

  static bool IsSameCollective(const Job& a, const Job& b) {
    return a.kind == b.kind && a.step == b.step && a.stage == b.stage;
  }

  // Returns the member for which the rank waits in the collective of the job: the first that has not begun
  // it; where all have, the first that is still in it.
  Rank AwaitedMember(Rank rank, const Job& job) {
    const auto [known, is_new] = awaited_member_.try_emplace(Job{job.step, job.stage, -1, 0, job.kind}, rank);
    if (!is_new) return known->second;
    const JointOrder& order = f_.graph.joint_order();
    const std::vector<Rank>& group = order.groups()[order.GroupOf(job.stage)];
    std::optional<Rank> in_it;
    for (size_t m = 0; m < group.size(); ++m) {
      const Rank member = group[m];
      const Job own = HasMicrobatch(job.kind)
                          ? Job::Compute(job.step, job.stage, order.MicrobatchOf(member), job.kind)
                          : Job::Reduce(job.step, job.stage, static_cast<int>(m));
      if (!HasBegun(waits_.ranks[member], own)) return known->second = member;
      const bool names_it =
          waits_.ranks[member].does == "collective" && IsSameCollective(*waits_.ranks[member].job, own);
      if (names_it && !in_it.has_value()) in_it = member;
    }
    return known->second = in_it.value_or(rank);
  }

  // Returns true if a member of a collective has begun it: it is in it, computes behind it, or has ended it.
  // `own`: the member's job of that collective.
  bool HasBegun(const RankWait& member, const Job& own) const {
    if (f_.queue.IsDone(own)) return true;
    if (member.does != "collective" && member.does != "computes") return false;
    if (IsSameCollective(*member.job, own)) return true;
    if (member.does == "computes" || !f_.graph.IsJoint(*member.job)) return false;
    // A device begins its collectives in order, so one that is in a later collective has ended this one.
    std::optional<Job> before = f_.graph.joint_order().Before(*member.job);
    while (before.has_value() && before->step >= own.step && *before != own)
      before = f_.graph.joint_order().Before(*before);
    return before == own;
  }

  WaitRoot RootWith(absl::string_view kind, Rank rank, std::optional<Job> job, int64_t for_ns,
                    std::string sentence) const {
    return {std::string(kind), rank, MemberOf(rank).process, job, for_ns, std::move(sentence)};
  }

  WaitRoot UnreachedRoot(Rank rank) const {
    const MemberSilence& silence = SilenceOf(rank);
    WaitRoot root{silence.broken.empty() ? "silent" : "broken", -1, MemberOf(rank).process};
    root.for_ns = silence.for_ns;
    root.sentence = absl::StrCat(MemberOf(rank).label, " has said nothing for ", Seconds(silence.for_ns),
                                 silence.broken.empty() ? "" : "; its session is broken: ", silence.broken);
    return root;
  }

  // Returns the root at a rank where a chain ends.
  WaitRoot RootHere(const Place& at, const RankWait& wait) const {
    if (!IsReached(at.rank)) return UnreachedRoot(at.rank);
    const std::string rank = absl::StrCat("rank ", at.rank);
    if (wait.does == "computes") {
      return RootWith("job", at.rank, wait.job, wait.for_ns,
                      absl::StrCat(rank, " has computed ", JobName(*wait.job), " for ", Seconds(wait.for_ns),
                                   ", on ", MemberOf(at.rank).label));
    }
    if (wait.does == "begins") {
      return RootWith("job", at.rank, wait.job, wait.for_ns,
                      absl::StrCat(rank, " begins ", JobName(*wait.job), " on ", MemberOf(at.rank).label));
    }
    const std::optional<Job> job = JobAt(at, wait);
    if (!job.has_value()) return RootWith("unknown", at.rank, job, 0, absl::StrCat(rank, " has no job left"));
    if (wait.does == "collective" && IsSameCollective(*job, *wait.job)) {
      return RootWith("collective", at.rank, job, wait.for_ns,
                      absl::StrCat("all members have begun the collective of ", JobName(*job), "; ", rank,
                                   " has been in it for ", Seconds(wait.for_ns)));
    }
    return Holds(at.rank, *job) ? RootOfReady(at.rank, *job) : RootOfUngranted(at.rank, *job);
  }

  WaitRoot RootOfUngranted(Rank rank, const Job& job) const {
    const int64_t since = IdleFor(rank);
    if (job.step >= f_.queue.hold()) {
      return RootWith("checkpoint", rank, job, since,
                      absl::StrCat(JobName(job), " is held back from rank ", rank,
                                   f_.holds.empty() ? "" : " for ", f_.holds));
    }
    return RootWith("credit", rank, job, since,
                    absl::StrCat(MemberOf(rank).label, " asks for no more jobs of rank ", rank,
                                 "; the next would be ", JobName(job)));
  }

  // The rank has the job in hand, and all of its inputs are made.
  WaitRoot RootOfReady(Rank rank, const Job& job) const {
    if (const std::optional<Rank> maker = UnreachedMaker(job)) return UnreachedRoot(*maker);
    const int64_t since = ReadyFor(rank, job);
    const std::string what = absl::StrCat("rank ", rank, " has waited for ", Seconds(since), " to start ",
                                          JobName(job), ", whose inputs are all made");
    if (const std::string& stalled = MemberOf(rank).stalled; !stalled.empty())
      return RootWith("link", rank, job, since,
                      absl::StrCat(what, "; ", MemberOf(rank).label, ": ", stalled));
    const std::string& cause = f_.seen.Of(rank).idle_cause;
    const auto held_by = [&](absl::string_view kind, absl::string_view why) {
      return RootWith(kind, rank, job, since, absl::StrCat(what, "; ", why));
    };
    // A rank that waits for inputs, though all are made, waits for one that is on its way.
    if (cause == "dependency" || cause == "transfer" || cause == "reduce")
      return held_by("transfer", "one of them is on its way");
    if (cause == "limit") return held_by(cause, "the limit of activations does not let it");
    if (cause == "memory") return held_by(cause, "the memory budget does not let it");
    return RootWith("unknown", rank, job, since, what);
  }

  // Adds the root unless it is there. Returns its index.
  int32_t Add(WaitRoot root) {
    const auto same = [&](const WaitRoot& r) {
      return r.kind == root.kind && r.rank == root.rank && r.process == root.process && r.job == root.job;
    };
    const auto found = std::find_if(waits_.roots.begin(), waits_.roots.end(), same);
    const auto index = static_cast<int32_t>(found - waits_.roots.begin());
    if (found == waits_.roots.end()) waits_.roots.push_back(std::move(root));
    return index;
  }

  const WaitFacts& f_;
  RunWaits& waits_;
  std::map<Place, Link> links_;
  std::map<Job, Rank> awaited_member_;  // of each collective, which its kind, step and stage name
};

}  // namespace

void AddWaits(const WaitFacts& facts, RunWaits* waits) {
  waits->still_ns = facts.now - std::max(facts.running_since_ns, facts.seen.last_end_ns());
  WaitChains(facts, waits).Follow();
}

}  // namespace weft
