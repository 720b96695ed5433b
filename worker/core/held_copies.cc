#include "worker/core/held_copies.h"

namespace weft {

void HeldCopies::BeginRun(uint64_t run) {
  std::erase_if(steps_, [&](const auto& entry) { return std::get<0>(entry.first) != run; });
}

// Copies of an attempt before are those with which the present one begins, so both sum in the same way.
void HeldCopies::Note(const CopiesHeld& held, const Assign& assign) {
  Step& step = steps_[{held.run, held.epoch, held.step}];
  step.run_id = assign.run_id;
  step.reduction = assign.reduction_mode;
  step.parts.insert(held.parts.begin(), held.parts.end());
}

void HeldCopies::Drop(const DropCopies& drop) {
  std::erase_if(steps_, [&](const auto& entry) {
    const auto& [run, epoch, step] = entry.first;
    return run == drop.run && (epoch != drop.epoch || step < drop.step);
  });
}

void HeldCopies::Tell(WorkerEffects* out) const {
  for (const auto& [key, step] : steps_) {
    const auto& [run, epoch, number] = key;
    out->push_back(SendEffect{
        CopiesHeld{run, epoch, number, {step.parts.begin(), step.parts.end()}, step.run_id, step.reduction}});
  }
}

}  // namespace weft
