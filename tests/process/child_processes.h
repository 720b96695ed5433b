// Finds the processes of a training, for tests that end them.
#ifndef WEFT_TESTS_PROCESS_CHILD_PROCESSES_H_
#define WEFT_TESTS_PROCESS_CHILD_PROCESSES_H_

#include <signal.h>
#include <sys/types.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace weft {

// Returns the processes that `parent` has started, as the worker processes of a training.
inline std::vector<pid_t> Children(pid_t parent) {
  std::vector<pid_t> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream stat(entry.path() / "stat");
    std::string line;
    std::getline(stat, line);
    // The program's name, in brackets, may hold anything; the state and the parent follow it.
    std::istringstream rest(line.substr(line.rfind(')') == std::string::npos ? 0 : line.rfind(')') + 1));
    char state = 0;
    pid_t its_parent = 0;
    if (rest >> state >> its_parent && its_parent == parent && state != 'Z')
      children.push_back(std::stoi(name));
  }
  return children;
}

// Returns the training's worker process of the number; 0 if it has none.
inline pid_t WorkerProcess(pid_t training, int number) {
  for (const pid_t child : Children(training)) {
    std::ifstream file("/proc/" + std::to_string(child) + "/cmdline");
    std::string before;
    for (std::string word; std::getline(file, word, '\0'); before = word) {
      if (before == "--process" && word == std::to_string(number)) return child;
    }
  }
  return 0;
}

inline bool Exists(pid_t pid) { return kill(pid, 0) == 0; }

}  // namespace weft

#endif  // WEFT_TESTS_PROCESS_CHILD_PROCESSES_H_
