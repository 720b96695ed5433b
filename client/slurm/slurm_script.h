// Writes the batch script by which Slurm trains a run: a coordinator on the first node, a worker for each
// task, mutual TLS between them, and a job that Slurm may end and begin again. Pure.
#ifndef WEFT_CLIENT_SLURM_SLURM_SCRIPT_H_
#define WEFT_CLIENT_SLURM_SLURM_SCRIPT_H_

#include <string>
#include <vector>

namespace weft {

struct SlurmJob {
  std::string name;           // of the run
  std::string run_file, out;  // absolute
  int nodes = 1, tasks_per_node = 1;
  bool gpus = false;                // true: each task gets one, and computes on it
  int grace_seconds = 180;          // time before Slurm's limit in which a checkpoint is saved
  std::vector<std::string> sbatch;  // further options of sbatch, as "--time=12:00:00"
};

// Requires names without line ends.
std::string SlurmScript(const SlurmJob& job);

// Returns the text as one word of a shell.
std::string ShellWord(const std::string& text);

}  // namespace weft

#endif  // WEFT_CLIENT_SLURM_SLURM_SCRIPT_H_
