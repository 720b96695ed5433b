// Manages the folder in which one run leaves its results (docs/guide/outputs.md): keeps it from other runs,
// and never empties it for a run that then fails.
//
// One process at a time owns the folder, by a lock on the file `.weft.lock` in it, which the kernel releases
// when the process ends in whatever way. A folder that holds the work of a former run, that is steps or a
// checkpoint beyond the initial weights, is refused unless the caller says what becomes of it. A run that is
// to replace a former one writes into `replacement/`, and its results take the places of the former ones when
// it has ended with a checkpoint of its own: first `replacement` is renamed, which decides, then the former
// results are moved to `former/`, then the new ones to their places, then `former` is removed. The next
// process that opens the folder after a crash carries that on from where it stopped. So at each moment one of
// the two is there whole. docs/decisions/0011-results-never-lost.md has the reasons.
//
// Files that are not of a run, as a user's notes, stay. Threads: one at a time. Failure: InvalidArgument for
// a folder that cannot be used, ResourceExhausted for one that another process owns, each with what to do.
#ifndef WEFT_COORDINATOR_RECORD_OUTPUT_FOLDER_H_
#define WEFT_COORDINATOR_RECORD_OUTPUT_FOLDER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace weft {

// The treatment of the work of a former run in the folder.
enum class FormerWork {
  kRefuse,
  kReplace,
  kContinue,       // the run goes on from the newest there is; of a killed replacement, if that has any
  kContinueNamed,  // the run goes on from a checkpoint of the folder that it names
};

// A run, as in `run.json`.
struct RunRecord {
  std::string name, file;            // name of the run; the run file, "" if not known
  std::string run_id;                // identity of the run, by which Reopen knows it; "" for none
  std::string state = "running";     // or finished, stopped, failed
  std::string reason;                // reason why it was stopped or failed
  int first_step = 0, end_step = 0;  // steps that it was to make: from the first up to, not with, the end
  int steps_done = 0;                // steps of the run file that are in its weights
  std::string spec;  // JSON of the run file, with the schedule that it follows; "" if not known
};

class OutputFolder {
 public:
  // Opens the folder. `path` is absolute; `shown` is the same as the user wrote it. Makes the folder if it is
  // not there, takes the lock, and completes what a crash interrupted. Changes nothing else before Begin. A
  // killed replacement stays where it is; kContinueNamed is refused for it if it has a checkpoint.
  static absl::StatusOr<std::unique_ptr<OutputFolder>> Open(const std::string& path, const std::string& shown,
                                                            FormerWork former);
  // Opens the folder of a run whose process ended without ending it, to go on with it: takes the lock, and
  // leaves everything as it is, but for run.json, which tells of this process where steps were made since it
  // was written. `live` is where it wrote, and `record` the run with its identity. NotFound if the folder is
  // gone, FailedPrecondition if it holds another run by now, AlreadyExists if the run was ended in it,
  // Unavailable for a cause that may pass; else as Open. `takes_over`: a process that has the lock although
  // it coordinates the run no more, as one that was stopped, loses it, and StillThere tells it so.
  static absl::StatusOr<std::unique_ptr<OutputFolder>> Reopen(const std::string& path,
                                                              const std::string& live,
                                                              const RunRecord& record,
                                                              bool takes_over = false);
  // Fails as Open would for another process that owns the folder, or else for the work of a former run.
  // Touches nothing: for a caller with much to do before Open.
  static absl::Status CheckFree(const std::string& path, const std::string& shown, FormerWork former);

  // Releases the lock. A folder that Open made and in which no run began goes too.
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  // Returns the killed replacement from which a run of kContinue goes on, a path; "" if there is none with a
  // checkpoint.
  std::string KilledReplacement() const;
  // Puts the killed replacement in the place of the former run, which is removed, and changes the path of
  // `checkpoint`, which is of the replacement. For a run that can go on from it.
  absl::Status PlaceReplacement(std::string* checkpoint);
  // Begins the run: removes what was there unless the run continues it, and writes run.json. The run may
  // write into `live()` from now on.
  absl::Status Begin(const RunRecord& record);
  // Ends a run that is not to be made after all, as if it had not begun: run.json is again that of the run
  // which it was to continue. Unavailable or Aborted as StillThere and End.
  absl::Status TakeBack(RunRecord record);
  // Notes in run.json, as long as the run goes on, the address of its own coordinator, which can be asked
  // about it.
  absl::Status TellCoordinator(const std::string& address);
  // Returns the folder into which the run writes: this folder, or its sub-folder `replacement`.
  const std::string& live() const { return live_; }
  const std::string& path() const { return path_; }
  const std::string& shown() const { return shown_; }
  bool replaces() const { return live_ != path_; }
  bool continues() const { return former_ == FormerWork::kContinue || former_ == FormerWork::kContinueNamed; }

  // Keeps room on the disk for the summary, for a run that has its workers, in case the disk is full at the
  // end. A run that waits keeps none.
  void KeepReserve();
  // Gives that room back.
  void ReleaseReserve();
  // Checks the folder: Unavailable if it was removed since Open, Aborted if it is another run's now.
  absl::Status StillThere() const;

  // Ends the run, which has written all its files. Puts them in the places of the former ones if it replaces
  // them and has finished, or has a checkpoint of its own; removes them if it has neither made a step nor a
  // checkpoint. Returns a sentence about what the folder holds now, if that is not simply the run;
  // Unavailable if the folder cannot be changed: then both runs are still there, and the next Open carries
  // on.
  absl::StatusOr<std::string> End(const RunRecord& record);

 private:
  OutputFolder(std::string path, std::string shown) : path_(std::move(path)), shown_(std::move(shown)) {}
  absl::Status Lock();
  absl::Status WriteRecord(const RunRecord& record) const;

  const std::string path_, shown_;
  std::string live_;
  std::vector<std::string> made_;  // folders, outermost first
  int lock_ = -1;
  bool has_work_ = false;  // true if a former run left work
  bool begun_ = false;
  FormerWork former_ = FormerWork::kRefuse;
  std::string started_;
  std::string run_id_;
  RunRecord begun_record_;
  std::string former_json_;  // content of run.json before a run that continues
  std::string coordinator_;
};

// Returns the treatment for a run: one that goes on from `resume`, which is the folder or inside of it,
// continues the work there, and that of its `replacement` where it names this or no checkpoint; one that goes
// on from elsewhere may not replace it unasked.
FormerWork FormerWorkFor(const std::string& resume, const std::string& folder, bool overwrite);

// Returns the run as run.json in `folder` has it; the default where that cannot be read.
RunRecord ReadRecord(const std::string& folder);

// Returns where a run's results are that wrote into `live`: there, or in `path` if they have taken the places
// of the former ones.
std::string PlaceOfResults(const std::string& path, const std::string& live);

// Describes the run in `folder` for a person: "the run tiny, finished 2026-11-22 14:31:05 after 150 of 150
// steps, with checkpoint (step 150) and checkpoint-0". Empty if it holds neither steps nor a checkpoint
// beyond the initial weights.
std::string DescribeWork(const std::string& folder);

// Returns true if a process owns the folder, so that its files are still being written.
bool OutputInUse(const std::string& folder);

}  // namespace weft

#endif  // WEFT_COORDINATOR_RECORD_OUTPUT_FOLDER_H_
