// Follows the joint operations of the devices with which jobs of this process begin
// (schedules/sync/joint_order.h): sums of all holders' gradients, and gathers of all holders' weights.
//
// A job that begins with one starts twice. First, when the rank's own input is there and the rank has begun
// the operation before, it gives that input to the device; between its two starts the rank goes on with other
// jobs. Then, when the operation is over and the job's other inputs are there, it does the rest. All members
// of a group must begin their operations in one order, so each operation waits for the one before it on its
// rank.
//
// A sum begins behind the backwards of its rank on the stage; a gather behind the update of the rank's slice
// and the job that makes room for the whole.
//
// Invariants:
//   1. An operation begins once, after the operation before it on its rank has begun.
//   2. A job that begins with no operation has no entry.
// Pure; one thread.
#ifndef WEFT_WORKER_CORE_JOINT_OPERATIONS_H_
#define WEFT_WORKER_CORE_JOINT_OPERATIONS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "proto/session/messages.h"
#include "schedules/graph/progress.h"
#include "schedules/schedule.h"
#include "worker/core/local_run.h"
#include "worker/core/worker_effects.h"

namespace weft {

// Makes the holders of the shape's schedule reduce jointly, if the assignment says so. Returns why this
// process cannot take part; "" if it can, or need not.
std::string UseJointOperations(const Assign& assign, LocalRun::Shape* shape);

class JointOperations {
 public:
  // Refers to `run`.
  explicit JointOperations(const LocalRun& run) : run_(run) {}

  // Returns the groups of the ranks of this process.
  std::vector<PrepareEffect::Group> Groups() const;

  // Returns true if the job's next start begins its operation.
  bool IsNext(const Job& job) { return run_.graph().IsJoint(job) && !OperationOf(job).begun; }
  // The next require a job that begins with an operation.
  bool HasBegun(const Job& job) { return OperationOf(job).begun; }
  // Returns true if the operation waits for nothing.
  bool CanBegin(const Job& job) { return OperationOf(job).missing == 0; }
  // Notes that an input of the operation is there.
  void InputArrived(const Job& job) { --OperationOf(job).missing; }
  // Notes that the job starts, and returns which round of it: the first start begins the operation.
  JobRound Start(const Job& job);
  // Notes that the device has been given the operation. Returns the job whose operation the rank begins next,
  // which waits for one input less; nothing at the end of the run.
  std::optional<Job> NoteBegun(const Job& job);
  // Returns true if the job waits for nothing but a gather of its weights, which has begun. `missing`: number
  // of the job's inputs that are not there, the operation's end among them.
  bool AwaitsGather(const Job& job, int missing) const;
  // Forgets a job that has ended.
  void Forget(const Job& job) { operations_.erase(run_.IdOf(job)); }

 private:
  struct Operation {
    int missing = -1;  // inputs that it waits for before it begins; -1: not counted yet
    bool begun = false;
  };
  Operation& OperationOf(const Job& job);

  const LocalRun& run_;
  absl::flat_hash_map<JobId, Operation> operations_;
};

}  // namespace weft

#endif  // WEFT_WORKER_CORE_JOINT_OPERATIONS_H_
