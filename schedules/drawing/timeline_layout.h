// Lays out a timeline, its content and places: jobs, idle times and transfers in the order of drawing, and
// the measures of the picture. Private to the drawing.
#ifndef WEFT_SCHEDULES_DRAWING_TIMELINE_LAYOUT_H_
#define WEFT_SCHEDULES_DRAWING_TIMELINE_LAYOUT_H_

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/types/span.h"
#include "schedules/drawing/drawing.h"
#include "schedules/drawing/svg_palette.h"

namespace weft {

class TimelineLayout {
 public:
  // All lengths are in pixels of the picture's own coordinates.
  static constexpr double kTop = 62;     // title, subtitle
  static constexpr double kLeft = 132;   // labels of the ranks
  static constexpr double kRight = 90;   // how busy each rank was, the unit of time
  static constexpr double kPlot = 1100;  // the time axis
  static constexpr double kAxis = 40;    // below the rows
  static constexpr double kHair = 0.35;  // narrower boxes of one kind are drawn as one

  // Refers to `options`.
  TimelineLayout(absl::Span<const DrawnJob> jobs, const DrawingOptions& options);

  const DrawingOptions& options() const { return options_; }
  // Return what is drawn, by rank, then start; transfers by the rank that receives.
  const std::vector<DrawnJob>& jobs() const { return jobs_; }
  const std::vector<DrawnJob>& planned() const { return planned_; }
  const std::vector<DrawnIdle>& idle() const { return idle_; }  // what is hatched
  const std::vector<DrawnTransfer>& transfers() const { return transfers_; }
  const std::set<std::string>& causes() const { return causes_; }
  // Returns the legend's name for the rows' bare ground; "" where none is seen.
  std::string bare() const;
  bool Uses(JobKind kind) const { return used_[static_cast<int>(kind)]; }
  bool Carries(int cargo) const { return carried_[cargo]; }
  const std::map<Rank, std::set<int>>& stages_of() const { return stages_of_; }  // that a rank computes
  const std::map<int, double>& first_start() const { return first_start_; }      // of each step
  // Returns true if some rank computes more than one stage.
  bool stages_move() const { return stages_move_; }
  // Returns true if steps have one micro-batch: then the step tells which backward goes with which forward.
  bool ByStep() const { return !several_microbatches_ && first_start_.size() > 1; }

  // Returns true for jobs that are drawn. A sum of gradients is drawn also where it takes no time: what ranks
  // do together must be seen.
  static bool Shows(const DrawnJob& j) { return j.end > j.start || j.job.kind == JobKind::kReduce; }

  double begin() const { return begin_; }
  double end() const { return end_; }
  double X(double time) const { return kLeft + (time - begin_) / (end_ - begin_) * kPlot; }
  double Y(Rank rank) const { return top_ + row_ * rank + plan_; }
  double PlanY(Rank rank) const { return top_ + row_ * rank; }
  double PlanHeight() const { return plan_ - 2; }
  double Bottom() const { return top_ + row_ * options_.ranks; }
  double top() const { return top_; }
  double row() const { return row_; }      // heights: of a row,
  double lane() const { return lane_; }    // in it of what arrives,
  double strip() const { return strip_; }  // and of the steps,
  double plan() const { return plan_; }    // and, above it, of what was planned
  double BoxHeight() const { return row_ - lane_ - strip_ - plan_ - (row_ >= 12 ? 3 : 1); }
  double FontSize() const { return std::min(11.0, BoxHeight() - 2); }
  bool Labels(Rank rank) const { return row_ >= 12 || rank % 8 == 0; }

 private:
  using JobKey = std::tuple<int, int, int, JobKind>;
  static JobKey KeyOf(const Job& job) { return {job.step, job.stage, job.microbatch, job.kind}; }

  void TakeIdle();
  bool AnyGap() const;
  void MoveToReader(DrawnTransfer* t);
  void TakeTransfers();
  void SetHeights();

  std::vector<DrawnJob> jobs_, planned_;
  const DrawingOptions& options_;
  std::vector<DrawnIdle> idle_;
  std::vector<DrawnTransfer> transfers_;
  std::set<std::string> causes_;
  std::array<bool, kCargo.size()> carried_{};
  std::map<Rank, std::set<int>> stages_of_;
  std::map<int, double> first_start_;
  std::map<JobKey, double> start_of_;  // of each job, where it is needed
  double begin_ = 0, end_ = 0;
  double row_ = 0, lane_ = 0, strip_ = 0, plan_ = 0;
  double top_ = 0;
  std::array<bool, kJobKinds> used_{};
  bool stages_move_ = false;
  bool several_microbatches_ = false;  // in a step
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_DRAWING_TIMELINE_LAYOUT_H_
