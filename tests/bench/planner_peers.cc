// Solves the same problems by the planner's search and by Cbc, a solver of integer programs, and compares
// answers and times of the processor: the least memory of the fullest rank for a pattern whose period is 5 %
// above its bound.
//
//   planner_peers [--small] [--seconds S] [--least-ratio R] [--cbc PROGRAM]
//
// Cbc gets the shift program, the better of the known ones: a start for each task, and a whole number for
// each pair of tasks that share a resource. Ends with 1 where the answers differ, or Cbc was not R times as
// slow; with 77 where there is no Cbc. `--small` leaves out what takes Cbc long.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/monotonic_clock.h"
#include "planner/smallest_peak.h"
#include "tests/bench/random_chain.h"

namespace weft {
namespace {

constexpr int kDiffer = 1, kNotChecked = 77;

struct Options {
  bool small = false;
  double seconds = 60, least_ratio = 0;
  std::string cbc = "/usr/bin/cbc";
};

// The program for a problem and a period, as text in the LP format.
class ShiftProgram {
 public:
  ShiftProgram(const PatternProblem& problem, int64_t period) : problem_(problem), period_(period) {
    const int n = static_cast<int>(problem.tasks.size());
    for (int task = 1; task < n; ++task) {
      if (!problem.FollowsPrevious(task)) continue;
      const PatternTask& before = problem.tasks[task - 1];
      AddRow(absl::StrCat(Start(task), " - ", Start(task - 1)), before.duration + before.lag);
    }
    for (int u = 0; u < n; ++u) {
      for (int v = u + 1; v < n; ++v) {
        if (Share(u, v)) AddPair(u, v);
      }
    }
    AddMemory();
  }

  std::string Text() const {
    std::string text = absl::StrCat("Minimize\n obj: memory\nSubject To\n", rows_, "Bounds\n s0 = 0\n");
    for (const auto& [pair, name] : shifts_) absl::StrAppend(&text, " -1000 <= ", name, " <= 1000\n");
    text += "Generals\n";
    for (const auto& [pair, name] : shifts_) absl::StrAppend(&text, " ", name, "\n");
    return text + "End\n";
  }

 private:
  static std::string Start(int task) { return absl::StrCat("s", task); }

  bool Share(int u, int v) const {
    for (const int resource : problem_.tasks[u].resources) {
      const std::vector<int>& others = problem_.tasks[v].resources;
      if (std::find(others.begin(), others.end(), resource) != others.end()) return true;
    }
    return false;
  }

  void AddRow(const std::string& terms, int64_t least) {
    absl::StrAppend(&rows_, " r", number_++, ": ", terms, " >= ", least, "\n");
  }

  void AddPair(int u, int v) {
    const std::string k = absl::StrCat("k", u, "_", v);
    shifts_[{u, v}] = k;
    AddRow(absl::StrCat(Start(v), " - ", Start(u), " - ", period_, " ", k), problem_.tasks[u].duration);
    AddRow(absl::StrCat(Start(u), " - ", Start(v), " + ", period_, " ", k),
           problem_.tasks[v].duration - period_);
  }

  // Adds `bytes` times the windows that v runs behind u to the row's terms and its right side.
  void AddBehind(int u, int v, int64_t bytes, std::map<std::string, int64_t>* terms, int64_t* right) const {
    if (u == v) return;
    if (u < v) {
      (*terms)[shifts_.at({u, v})] -= bytes;
    } else {
      (*terms)[shifts_.at({v, u})] += bytes;
      *right -= bytes;
    }
  }

  // The memory of each rank where a hold begins.
  void AddMemory() {
    for (const PatternHold& begun : problem_.holds) {
      std::map<std::string, int64_t> terms;
      int64_t right = problem_.resident[begun.rank];
      for (const PatternHold& hold : problem_.holds) {
        if (hold.rank != begun.rank) continue;
        right += hold.bytes;
        AddBehind(hold.first, begun.first, hold.bytes, &terms, &right);
        AddBehind(begun.first, hold.last, hold.bytes, &terms, &right);
      }
      std::string text = "memory";
      for (const auto& [name, factor] : terms) {
        if (factor != 0) absl::StrAppend(&text, factor < 0 ? " - " : " + ", std::abs(factor), " ", name);
      }
      AddRow(text, right);
    }
  }

  const PatternProblem& problem_;
  const int64_t period_;
  std::map<std::pair<int, int>, std::string> shifts_;
  std::string rows_;
  int number_ = 0;
};

struct Answer {
  int64_t memory = 0;
  double seconds = 0;
  bool proven = false;
};

// Return times of the processor, which other programs do not lengthen.
double OwnSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

double ChildrenSeconds() {
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Answer BySearch(const PatternProblem& problem, int64_t period, double seconds) {
  const int64_t end = MonotonicNow() + static_cast<int64_t>(seconds * 1e9);
  const double begin = OwnSeconds();
  SearchLimits limits;
  limits.stop = [end] { return MonotonicNow() > end; };
  const SmallestPeak found = FindSmallestPeak(problem, period, limits);
  Answer answer;
  answer.memory = found.bytes;
  answer.proven = found.proven();
  answer.seconds = OwnSeconds() - begin;
  return answer;
}

std::string ReadAll(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::optional<Answer> ByCbc(const PatternProblem& problem, int64_t period, const Options& options,
                            const std::filesystem::path& folder) {
  const auto program = folder / "shifts.lp", solution = folder / "solution.txt";
  std::ofstream(program) << ShiftProgram(problem, period).Text();
  std::filesystem::remove(solution);
  const std::string command =
      absl::StrFormat("'%s' '%s' sec %g ratio 0 allow 0.5 threads 0 solve solu '%s' > '%s'", options.cbc,
                      program.string(), options.seconds, solution.string(), (folder / "log.txt").string());
  const double begin = ChildrenSeconds();
  if (std::system(command.c_str()) != 0) return std::nullopt;
  Answer answer;
  answer.seconds = ChildrenSeconds() - begin;
  const std::string text = ReadAll(solution);
  answer.proven = absl::StartsWith(text, "Optimal");
  const size_t at = text.find("objective value");
  double value = 0;
  if (at != std::string::npos) value = std::atof(text.c_str() + at + 15);
  answer.memory = std::llround(value);
  return answer;
}

struct Instance {
  int ranks, stages;
  bool folded, small;
};
constexpr Instance kInstances[] = {{4, 2, true, true},  {4, 3, true, true},   {4, 3, false, true},
                                   {8, 2, true, false}, {8, 2, false, false}, {4, 4, false, false},
                                   {8, 3, false, false}};

// Returns the exit code; prints a row of the table.
int Compare(const Instance& instance, const Options& options, const std::filesystem::path& folder) {
  const PlacedChain random = RandomChain(instance.ranks, instance.stages, instance.folded);
  const PatternProblem problem = PlaceChain(random.chain, random.placement, 1).problem;
  const int64_t period = LoadBound(problem) * 105 / 100;
  Answer ours = BySearch(problem, period, options.seconds);
  for (int again = 0; again < 4 && ours.seconds < 1; ++again)  // the caches are cold at first
    ours.seconds = std::min(ours.seconds, BySearch(problem, period, options.seconds).seconds);
  const auto cbc = ByCbc(problem, period, options, folder);
  if (!cbc.has_value()) {
    std::fprintf(stderr, "%s did not run\n", options.cbc.c_str());
    return kDiffer;
  }
  const double ratio = cbc->seconds / ours.seconds;
  const auto text = [](const Answer& a) { return absl::StrCat(a.memory, a.proven ? "" : " (not proven)"); };
  std::printf("| %dx%d %s | %zu | %s | %.5f | %s | %.2f | %.0f |\n", instance.ranks, instance.stages,
              instance.folded ? "V" : "R", problem.tasks.size(), text(ours).c_str(), ours.seconds,
              text(*cbc).c_str(), cbc->seconds, ratio);
  std::fflush(stdout);
  const bool differ = !ours.proven || (cbc->proven && cbc->memory != ours.memory) ||
                      (!cbc->proven && cbc->memory > 0 && cbc->memory < ours.memory);
  return differ || ratio < options.least_ratio ? kDiffer : 0;
}

int Run(const Options& options) {
  if (access(options.cbc.c_str(), X_OK) != 0) {
    std::printf("NOT CHECKED: there is no %s here (Debian: coinor-cbc)\n", options.cbc.c_str());
    return kNotChecked;
  }
  const auto folder = std::filesystem::temp_directory_path() / absl::StrCat("planner_peers.", getpid());
  std::filesystem::create_directories(folder);
  std::printf(
      "| instance | operations | memory | s | Cbc: memory | s | ratio |\n"
      "| --- | --- | --- | --- | --- | --- | --- |\n");
  int code = 0;
  for (const Instance& instance : kInstances) {
    if (options.small && !instance.small) continue;
    code = std::max(code, Compare(instance, options, folder));
  }
  std::filesystem::remove_all(folder);
  return code;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  weft::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    if (flag == "--small") {
      options.small = true;
      continue;
    }
    ++i;
    if (flag == "--cbc") {
      options.cbc = value;
    } else if (!absl::SimpleAtod(value, flag == "--seconds" ? &options.seconds : &options.least_ratio)) {
      std::fprintf(stderr, "usage: %s [--small] [--seconds S] [--least-ratio R] [--cbc PROGRAM]\n", argv[0]);
      return 2;
    }
  }
  return weft::Run(options);
}
