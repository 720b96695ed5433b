// Holds what one run recorded of its jobs, and finds a value there, whichever jobs computed it.
//
// Runs of the same training compute the same values by different jobs: a backward may be split in two, a sum
// may come from a reduce or within an update, in one piece or in slices on several ranks, and every replica
// makes its own copy of the weights. Here a value is found with all its copies and slices. Pure; one thread.
#ifndef WEFT_CLIENT_DIFF_RECORDED_HASHES_H_
#define WEFT_CLIENT_DIFF_RECORDED_HASHES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "proto/session/job_hashes.h"

namespace weft {

// A copy of a value, or a slice of one, and the job that made it.
struct ValueCopy {
  // One of the slices, and nothing tells which; the hash is that of the whole.
  static constexpr int kSomePart = -1;

  int32_t part = 0, parts = 1;
  uint64_t hash = 0;
  const JobHashes* job = nullptr;
};
using ValueCopies = std::vector<ValueCopy>;

class RecordedHashes {
 public:
  // Adds a job. One that is added again, as after a restart, replaces the former.
  void Add(JobHashes job);
  // Forgets the jobs of this step and later ones, which are made again.
  void ForgetFrom(int step);

  bool empty() const { return jobs_.empty(); }
  size_t size() const { return jobs_.size(); }
  // Return the first and the last step of which there are jobs. Require that there are some.
  int first_step() const { return jobs_.begin()->first.step; }
  int last_step() const { return jobs_.rbegin()->first.step; }

  const JobHashes* Find(const Job& job) const;

  // Return the copies of a value. A loss and a norm have their bits as the hash.
  ValueCopies OfForward(HashedValue value, int step, int stage, int microbatch) const;
  ValueCopies OfBackward(HashedValue value, int step, int stage, int microbatch) const;
  // Returns those made by reduces and updates of the stage.
  ValueCopies OfHolders(HashedValue value, int step, int stage) const;
  ValueCopies Loss(int step, int stage, int microbatch) const;
  ValueCopies GradientNorm(int step) const;

  // Returns the value that `job` received as `received` says, as its maker recorded it; nothing if that is
  // not recorded. If several ranks made a copy, returns one with an equal hash, if there is one.
  std::optional<ValueCopy> AsSent(const JobHashes& job, const ValueHash& received) const;

 private:
  // The jobs of reduce and update of a stage and step are neighbours, as their micro-batch is -1.
  std::map<Job, JobHashes> jobs_;
};

// Returns the hash of the whole value; nothing if slices are missing, or copies differ.
std::optional<uint64_t> WholeOf(const ValueCopies& copies);

// The comparison of a value of two runs.
struct ValueComparison {
  enum class Result : uint8_t { kUnknown, kEqual, kDiffers } result = Result::kUnknown;
  // The copy or slice of a value that differs, in each run.
  ValueCopy a, b;
};
ValueComparison Compare(const ValueCopies& a, const ValueCopies& b);

}  // namespace weft

#endif  // WEFT_CLIENT_DIFF_RECORDED_HASHES_H_
