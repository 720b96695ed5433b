// Runs Weft once on a virtual clock: the real coordinator core, the real worker cores and the real session
// links, joined by a network that loses, doubles, delays and reorders, all in one thread and from one seed.
//
// The world plays every shell: it carries effects out, runs jobs for random times, and moves tensors by the
// state machines of the transports, over a network that delays and loses their messages. A tensor is a 64-bit
// number, and a job's outputs are a hash of the job and its inputs, so the final weights are equal to those
// of a plain loop over micro-batches exactly if every job ran once on the right inputs and every gradient was
// added once, in order.
//
// Checked after each event: a job starts once and after all its predecessors, on a rank that computes
// nothing or, as an overlapped pair, a forward alone; a job is counted done once; a version of the weights
// is held as long as a job that reads it has not ended, and dropped before more than the schedule needs are
// there. At the end: the run finished, all jobs done, weights as the plain loop's, which keeps old ones
// where the schedule reads them; a rank that saves a stage holds all versions that later steps would read.
// A snapshot of a step has every stage, of one rank or in slices of all members, with all versions that
// later steps read, each as the plain loop has it there; and every multiple of `snapshot_every` has one.
// With `redundancy`, copies are taken behind each step and sent to another process's memory; an attempt that
// begins with copies has those alone, each whole and as the plain loop has it, of the attempt that made them.
// A process that is killed loses all that it holds; the run begins again, and all of the above holds for it.
// If the coordinator is killed, each of its effects waits for its records in a store of the world's; what
// is not stored by then has never happened (a coordinator that was only stopped may still grant), and another
// one goes on with what is, and with what the processes say that live on. If processes only leave, no job
// is made twice, but before an attempt's first step, or where states migrate. Every multiple of
// `validate_every`, and the end, is validated or reported to have failed, one at a time. The trace is a hash
// of every event, equal for equal seeds.
#ifndef WEFT_TESTS_SIMULATION_WORLD_H_
#define WEFT_TESTS_SIMULATION_WORLD_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "schedules/job.h"

namespace weft {

// A job of the run that goes wrong each time that it starts, `times` times at most.
struct BadJob {
  // kDeadly: its process dies of it. kNonFinite: its process reports a number that is not finite. kNone:
  // there is no such job.
  enum class Kind { kNone, kDeadly, kNonFinite } kind = Kind::kNone;
  Job job;
  int times = INT32_MAX;
};

struct WorldOptions {
  uint64_t seed = 1;
  std::string family = "1f1b";
  std::map<std::string, std::string> parameters;
  std::string rule = "sync";
  // Each backward runs one rank further than its forward, as far as the family allows.
  bool remote_backward = false;
  bool chain = true;    // true for stages in a chain; else each reads any earlier ones
  bool budget = false;  // gives a budget of bytes, about what one micro-batch needs
  bool clips = false;   // gradients are clipped by their global norm
  int stages = 4, microbatches = 8, steps = 3, processes = 2;
  // First step: the run goes on there, with the plain loop's weights, and ends before step `steps`.
  int first_step = 0;
  // Probabilities of each packet between a worker and the coordinator.
  double loss = 0, duplication = 0;
  int64_t delay_ns = 1'000'000;         // delay, uniform from 0
  int64_t transfer_delay_ns = 300'000;  // delay of each message between two workers
  double transfer_loss = 0;             // probability of each such message to be lost
  int64_t least_job_ns = 0;             // shortest job
  int64_t job_ns = 1'000'000;           // the longest takes so much more
  int64_t report_ns = 500'000'000;      // time between two reports of a worker
  int snapshot_every = 0;               // steps; 0 for none but those of the run's begin and end
  bool redundancy = false;              // each process keeps what another one's ranks save, behind each step
  double failing_saves = 0;             // of a process's part of a snapshot
  int64_t save_ns = 100'000;            // longest time of writing a part
  int validate_every = 0;               // steps; 0: no validation
  double failing_validations = 0;
  int64_t validation_ns = 2'000'000;  // longest time of one
  int64_t stop_at_ns = 0;             // the run is told to stop with a checkpoint; 0: it is not
  int coordinator_kills = 0;          // times that the coordinator is killed; it has a store then
  double dies_with_coordinator = 0;   // probability of each process to be killed with it
  int kills = 0;                      // processes that are killed, each replaced a little later
  int64_t expand_ns = 5'000'000'000;  // CoreOptions::expand_ns
  int leaves = 0;                     // processes that ask to leave, each replaced a little later
  int drains = 0;                     // likewise, but the coordinator is told that they shall
  int spares = 0;                     // processes beyond those that the run takes
  int moves = 0;                      // orders of a rank to a process
  int64_t kill_within_ns = 0;         // of all of these
  BadJob bad_job;
  // Above 1, jobs are done by a device that is given so many of a rank ahead.
  int launch_ahead = 1;
};

struct WorldResult {
  std::string problem;  // empty if every check held
  uint64_t trace = 0;
  int64_t virtual_ns = 0;
  uint64_t events = 0, packets_lost = 0, packets_doubled = 0, pairs = 0;
  uint64_t transfers_lost = 0;                            // messages between workers
  uint64_t launched_behind = 0, launched_overlapped = 0;  // jobs launched before others were done
  std::map<int32_t, int> peak_versions;                   // of one stage's weights, by rank
  int snapshots = 0, snapshots_dropped = 0, validations = 0;
  int coordinator_kills = 0;
  int restarts = 0;            // times that the run began again
  std::string restart_reason;  // of the last
  int resumed = 0;             // of these, from a checkpoint that it had made, or from copies
  int from_copies = 0;         // of these, from copies in memory
  int jobs_again = 0;          // jobs that had started and were made again
  int steps_again = 0;         // most steps that an attempt made again
  int moved = 0;               // attempts that began with the ranks where they were ordered to
  bool stopped = false;        // by stop_at_ns, not by the end of its steps
  std::string failure;         // reason why the run failed, where it has a bad job
};

// Draws a family of the catalogue, sizes and faults from the seed.
WorldOptions DrawWorld(uint64_t seed);

WorldResult RunWorld(const WorldOptions& options);

}  // namespace weft

#endif  // WEFT_TESTS_SIMULATION_WORLD_H_
