// Says when the coordinator is to hear that data links of a process are silent: when a silence begins, now
// and then while it lasts, since its time grows, and when it is over. Not thread-safe.
#ifndef WEFT_WORKER_SHELL_LOOP_SILENCE_REPORTS_H_
#define WEFT_WORKER_SHELL_LOOP_SILENCE_REPORTS_H_

#include <cstdint>
#include <optional>

namespace weft {

class SilenceReports {
 public:
  // `interval_ns`: time between two reports of one silence.
  explicit SilenceReports(int64_t interval_ns) : interval_ns_(interval_ns) {}

  // Returns true if the present state is to be reported now, and counts it as reported.
  bool IsDue(int64_t now, bool silent) {
    if (!silent && !reported_ns_.has_value()) return false;
    if (silent && reported_ns_.has_value() && now - *reported_ns_ < interval_ns_) return false;
    reported_ns_ = silent ? std::optional(now) : std::nullopt;
    return true;
  }
  // Returns true between the reports of a silence's beginning and of its end.
  bool reported() const { return reported_ns_.has_value(); }
  // Forgets the silence, at the end of a run.
  void Clear() { reported_ns_.reset(); }

 private:
  const int64_t interval_ns_;
  std::optional<int64_t> reported_ns_;  // time when a silence was reported; nothing while all is well
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_SILENCE_REPORTS_H_
