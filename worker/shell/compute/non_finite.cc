#include "worker/shell/compute/non_finite.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/shell/compute/elementwise.h"

namespace weft {
namespace {

constexpr char kAdvice[] =
    "; use a lower learning rate, a longer warm-up or train.clip_norm, and look at the data "
    "(train.non_finite: skip or continue goes on in spite of it)";

std::string NumberText(double value) {
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : value < 0 ? "-inf" : "finite";
}

// Returns "block0.mlp.weight has nan": the first element of the range that is not finite, by its parameter.
std::string FirstNonFinite(const StageLayout& layout, int64_t begin, int64_t n, const float* x) {
  const float* const found = std::find_if(x, x + n, [](float value) { return !std::isfinite(value); });
  const int64_t at = begin + (found - x);
  for (const ParameterSlot& slot : layout.slots) {
    if (at < slot.offset || at >= slot.offset + slot.parameter.elements()) continue;
    return absl::StrCat(NameInModel(slot.layer_name, slot.parameter), " has ", NumberText(double{*found}));
  }
  return "what lies between the parameters";
}

constexpr absl::string_view kNonFinite = "weft/non_finite";

absl::Status NonFiniteError(absl::string_view message) {
  absl::Status status = absl::OutOfRangeError(message);
  status.SetPayload(kNonFinite, absl::Cord());
  return status;
}

}  // namespace

absl::Status CheckLoss(const RunSpec& run, double loss) {
  if (run.train.non_finite != NonFinite::kStop || std::isfinite(loss)) return absl::OkStatus();
  return NonFiniteError(absl::StrCat("the loss is ", NumberText(loss), kAdvice));
}

bool IsNonFinite(const absl::Status& status) { return status.GetPayload(kNonFinite).has_value(); }

absl::Status CheckExamined(const RunSpec& run, const StageLayout& layout, int step,
                           const std::vector<FlatPiece>& pieces) {
  if (run.examined_step != step || run.train.non_finite != NonFinite::kStop) return absl::OkStatus();
  for (const FlatPiece& piece : pieces) {
    if (piece.data == nullptr || piece.type != DataType::kFloat32) continue;
    const auto* const values = static_cast<const float*>(piece.data);
    if (AllFinite(values, piece.n)) continue;
    return NonFiniteError(absl::StrCat("the gradient of stage ", layout.stage, " is not finite: ",
                                       FirstNonFinite(layout, piece.offset, piece.n, values), kAdvice));
  }
  return absl::OkStatus();
}

absl::Status NonFiniteGradient(const StageLayout& layout, int64_t begin, int64_t n, const float* gradient) {
  return NonFiniteError(absl::StrCat("the gradient of stage ", layout.stage,
                                     ", summed over the micro-batches, is not finite: ",
                                     FirstNonFinite(layout, begin, n, gradient), kAdvice));
}

absl::Status CheckUpdated(const RunSpec& run, const StageLayout& layout, int64_t begin, int64_t n,
                          const float* weights, const float* gradient) {
  if (run.train.non_finite == NonFinite::kContinue || AllFinite(weights, n)) return absl::OkStatus();
  if (!AllFinite(gradient, n)) return NonFiniteGradient(layout, begin, n, gradient);
  return NonFiniteError(absl::StrCat(
      "the update made weights of stage ", layout.stage,
      " that are not finite, of a gradient that is: ", FirstNonFinite(layout, begin, n, weights), kAdvice));
}

absl::Status CheckFigures(const RunSpec& run, const Job& job, std::optional<double> loss,
                          std::optional<double> norm) {
  absl::Status status;
  if (loss.has_value()) status = CheckLoss(run, *loss);
  const bool updates = job.kind == JobKind::kUpdate;
  const bool bears =
      updates ? run.train.non_finite == NonFinite::kContinue : run.train.non_finite != NonFinite::kStop;
  if (status.ok() && norm.has_value() && !bears && !std::isfinite(*norm)) {
    status = NonFiniteError(
        absl::StrCat(updates ? "the weights that it made of stage " : "the summed gradients of stage ",
                     job.stage, " have a value that is infinite or not a number", kAdvice));
  }
  if (status.ok()) return status;
  return NonFiniteError(absl::StrCat(Describe(job), ": ", status.message()));
}

}  // namespace weft
