// Defines the colours of a timeline: of kinds of jobs by the shade of their stage, of causes of idleness,
// and of what ranks receive. Private to the drawing.
#ifndef WEFT_SCHEDULES_DRAWING_SVG_PALETTE_H_
#define WEFT_SCHEDULES_DRAWING_SVG_PALETTE_H_

#include <array>
#include <string>

#include "absl/strings/string_view.h"
#include "schedules/job.h"

namespace weft {

inline constexpr int kTints = 6;  // shades that tell the stages of one kind apart
inline constexpr char kGround[] = "#f1efea";
// Colours of even and of odd steps.
inline constexpr std::array<const char*, 2> kStepColours = {"#d5cfc0", "#7a7364"};

std::string ColourOfKind(JobKind kind, int tint);
// Returns the colour of texts on it.
const char* TextColourOfKind(JobKind kind);

// Idle time is the bare ground where what it waits for is not computed yet, and hatched in a colour for every
// other cause.
inline constexpr char kBareCause[] = "dependency";
const char* ColourOfCause(const std::string& cause);

// A class of tensors that ranks receive, and its colour. Notices that only order jobs are not drawn.
struct Cargo {
  absl::string_view name;
  const char* colour;
  bool always;  // also where it takes no time
};
inline constexpr std::array<Cargo, 4> kCargo = {{{"activations", "#5f93bd", false},
                                                 {"weights", "#4c8a35", true},
                                                 {"gradients of weights", "#d08a17", true},
                                                 {"state", "#7d5ba6", true}}};
inline constexpr int kNoCargo = -1;
// Returns the class's number in kCargo, or kNoCargo.
int CargoOf(TensorKind tensor);

}  // namespace weft

#endif  // WEFT_SCHEDULES_DRAWING_SVG_PALETTE_H_
