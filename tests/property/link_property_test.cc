// Safety and liveness of the session's link over a channel that loses, doubles, delays, reorders and breaks,
// from seeds.
//
// Safety: what is delivered is a prefix of what was sent, in order, each once, at every instant. Liveness:
// once the channel is good, everything arrives. Determinism: the same seed gives the same history.
#include <gtest/gtest.h>

#include <map>

#include "proto/session/link.h"

namespace weft::link_property_test {
namespace {

// SplitMix64: the same numbers everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  uint64_t Below(uint64_t n) { return Next() % n; }
  bool Chance(uint64_t percent) { return Below(100) < percent; }

 private:
  uint64_t state_;
};

using IntLink = Link<int, int>;
constexpr int64_t kMs = 1'000'000;

struct End {
  explicit End(const LinkOptions& o) : link(1, o) {}
  IntLink link;
  int sent = 0, delivered = 0;
  std::multimap<int64_t, Packet<int>> inbound;  // by arrival
};

class Channel {
 public:
  explicit Channel(uint64_t seed) : random_(seed) {
    loss_ = random_.Below(31);
    doubling_ = random_.Below(51);
    delay_ = 1 + random_.Below(100);
    LinkOptions o;
    o.resend_ns = (1 + static_cast<int64_t>(random_.Below(300))) * kMs;
    o.held_limit = 8 + random_.Below(50);
    o.ack_every = 1 + static_cast<int>(random_.Below(20));
    ends_.emplace_back(o);
    ends_.emplace_back(o);
  }

  // Ends with everything delivered, or false.
  bool Run(int messages) {
    for (int round = 0; round < 20000; ++round) {
      now_ += static_cast<int64_t>(random_.Below(10)) * kMs;
      const bool calm = round > 10000;
      for (int e = 0; e < 2; ++e) {
        for (uint64_t i = random_.Below(4); i > 0 && ends_[e].sent < messages; --i) {
          EXPECT_TRUE(ends_[e].link.Send(ends_[e].sent++).ok());
        }
        Carry(e, calm);
      }
      if (!calm && random_.Chance(1)) Break();
      if (ends_[0].delivered == messages && ends_[1].delivered == messages) return true;
      if (::testing::Test::HasFailure()) return false;
    }
    return false;
  }

  uint64_t history() const { return history_; }

 private:
  void Carry(int e, bool calm) {
    End &from = ends_[e], &to = ends_[1 - e];
    while (auto packet = from.link.Take(now_, 1 + random_.Below(5))) {
      int copies = 1;
      if (!calm && random_.Chance(loss_)) copies = 0;
      if (!calm && random_.Chance(doubling_)) ++copies;
      for (; copies > 0; --copies)
        to.inbound.emplace(now_ + static_cast<int64_t>(random_.Below(delay_)) * kMs, *packet);
    }
    while (!to.inbound.empty() && to.inbound.begin()->first <= now_) {
      std::vector<int> delivered;
      const absl::Status s = to.link.Receive(now_, to.inbound.begin()->second, &delivered);
      EXPECT_TRUE(s.ok()) << s;
      to.inbound.erase(to.inbound.begin());
      for (int m : delivered) {
        EXPECT_EQ(m, to.delivered) << "out of order, lost or twice";
        ++to.delivered;
        history_ = history_ * 31 + static_cast<uint64_t>(m + now_);
      }
    }
  }

  // The connection breaks and is resumed: what is under way is lost, each side says what it received.
  void Break() {
    for (End& e : ends_) e.inbound.clear();
    EXPECT_TRUE(ends_[0].link.Resume(now_, ends_[1].link.received()).ok());
    EXPECT_TRUE(ends_[1].link.Resume(now_, ends_[0].link.received()).ok());
  }

  Random random_;
  uint64_t loss_, doubling_, delay_;
  std::vector<End> ends_;
  int64_t now_ = 0;
  uint64_t history_ = 0;
};

TEST(LinkProperty, FaultyChannel_DeliversEverythingOnceInOrder) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Channel channel(seed);
    EXPECT_TRUE(channel.Run(500)) << "seed " << seed;
    if (HasFailure()) break;
  }
}

TEST(LinkProperty, SameSeed_SameHistory) {
  Channel a(42), b(42), c(43);
  a.Run(300);
  b.Run(300);
  c.Run(300);
  EXPECT_EQ(a.history(), b.history());
  EXPECT_NE(a.history(), c.history());
}

}  // namespace
}  // namespace weft::link_property_test
