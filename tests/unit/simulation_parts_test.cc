// The parts of the simulator that order events, ranks and ready jobs.
#include <algorithm>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "schedules/dispatch/min_heap.h"
#include "schedules/families/families.h"
#include "schedules/simulator/event_queue.h"
#include "schedules/simulator/rank_set.h"
#include "schedules/simulator/simulated_jobs.h"
#include "tests/unit/without_terms.h"

namespace weft::simulation_parts_test {
namespace {

TEST(RankSet, AnyRanks_ComeOutAscendingOnce) {
  for (const int ranks : {1, 64, 65, 4096, 8192}) {
    RankSet set(ranks);
    EXPECT_TRUE(set.empty());
    std::vector<Rank> put = {0, ranks - 1, ranks / 2, ranks / 3, 0};
    for (const Rank rank : put) set.Add(rank);
    std::sort(put.begin(), put.end());
    put.erase(std::unique(put.begin(), put.end()), put.end());
    for (const Rank rank : put) {
      ASSERT_FALSE(set.empty());
      EXPECT_EQ(set.TakeFirst(), rank);
    }
    EXPECT_TRUE(set.empty());
  }
}

TEST(RankSet, Swapped_HoldsTheOthersRanks) {
  RankSet set(100), other(100);
  set.Add(70);
  set.swap(other);
  EXPECT_TRUE(set.empty());
  EXPECT_EQ(other.TakeFirst(), 70);
  EXPECT_TRUE(other.empty());
}

TEST(EventQueue, EndsAndArrivals_ComeByTimeWithWhatTheyWere) {
  EventQueue events;
  for (int i = 0; i < 100; ++i) {
    const double time = i * 37 % 100;
    if (i % 3 == 0) {
      events.AddArrival(time, MakeJobId(i, 1), time - 0.5);
    } else {
      events.AddEnd(time, MakeJobId(i, 1));
    }
  }
  for (int time = 0; time < 100; ++time) {
    ASSERT_FALSE(events.empty());
    EXPECT_EQ(events.time(), time);
    const EventQueue::Event event = events.Take();
    EXPECT_EQ(StepOf(event.job) * 37 % 100, time);
    EXPECT_EQ(event.arrival, StepOf(event.job) % 3 == 0);
    EXPECT_EQ(event.sent, event.arrival ? time - 0.5 : 0);
  }
  EXPECT_TRUE(events.empty());
}

// The standard heap of a vector says how equal entries come: recorded jobs that start together are in it.
TEST(MinHeap, EqualEntries_ComeAsFromTheStandardHeap) {
  struct Entry {
    int key, number;
    bool IsBefore(const Entry& o) const { return key < o.key; }
    bool operator<(const Entry& o) const { return key > o.key; }
  };
  std::mt19937_64 rng(7);
  MinHeap<Entry> heap;
  std::vector<Entry> standard;
  for (int i = 0; i < 10'000; ++i) {
    if (standard.empty() || rng() % 2 == 0) {
      const Entry entry{static_cast<int>(rng() % 5), i};
      heap.Add(entry);
      standard.push_back(entry);
      std::push_heap(standard.begin(), standard.end());
    } else {
      std::pop_heap(standard.begin(), standard.end());
      EXPECT_EQ(heap.top().number, standard.back().number);
      EXPECT_EQ(heap.Take().number, standard.back().number);
      standard.pop_back();
    }
  }
}

// The table of every step has the priorities that the graph gives.
void ExpectPrioritiesOfTheGraph(const Graph& graph, int steps) {
  const StepTables tables(graph);
  const SimulationOptions options;
  const JobCosts costs(graph, options);
  SimulatedJobs jobs(graph, costs, options, tables.edges, tables.jobs);
  for (int step = 0; step < steps; ++step) {
    jobs.Open(step);
    for (int i = 0; i < tables.jobs.size(); ++i) {
      const Job job = tables.jobs.JobOf(MakeJobId(step, i));
      EXPECT_EQ(jobs.PriorityOf(step, jobs.At(step).jobs[i]), graph.PriorityOf(job))
          << graph.schedule().name << " " << Describe(job);
    }
  }
}

TEST(SimulatedJobs, FamiliesAndOrders_HaveThePrioritiesOfTheGraph) {
  for (const char* family : {"1f1b", "zb_h1", "gpipe"}) {
    Schedule schedule = *MakeSchedule(family, {}, 4, 8);
    if (schedule.order.empty()) {  // ranks that change from step to step, and priorities with them
      schedule.period = 2;
      schedule.compute = [](const Job& j) { return (j.stage + j.step % 2) % 4; };
      schedule.priority = [priority = schedule.priority, compute = schedule.compute](const Job& j) {
        return priority(j) * 4 + compute(j);
      };
    }
    ExpectPrioritiesOfTheGraph(Graph(WithoutTerms(schedule)), 7);
  }
}

TEST(SimulatedJobs, MigratingStates_HaveThePrioritiesOfTheGraph) {
  Schedule schedule = *MakeSchedule("fsdp", {{"residency", "migrating"}}, 4, 4);
  ASSERT_TRUE(ApplyRule("cdp_v2", "fsdp", &schedule).ok());
  ExpectPrioritiesOfTheGraph(Graph(WithoutTerms(schedule), 7), 7);
}

}  // namespace
}  // namespace weft::simulation_parts_test
