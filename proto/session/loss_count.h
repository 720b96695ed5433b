// Counts losses of a process in a row, and says when they are too many.
//
// A loss before which a step has ended that was not made at the loss before counts as the first; so a job
// that kills each process that runs it comes to an end, and a machine that fails now and then does not. The
// coordinator counts so before it begins a run again, and the client before it starts a process again.
//
// A value; pure.
#ifndef WEFT_PROTO_SESSION_LOSS_COUNT_H_
#define WEFT_PROTO_SESSION_LOSS_COUNT_H_

#include <algorithm>
#include <cstdint>

namespace weft {

class LossCount {
 public:
  // `allowed`: losses in a row, without a new step between them, that are borne.
  explicit LossCount(int32_t allowed) : allowed_(allowed) {}

  // Counts a loss behind so many steps done in all. Returns true if it is borne.
  bool Bear(int32_t steps_done) {
    losses_ = steps_done > furthest_ ? 1 : losses_ + 1;
    furthest_ = std::max(furthest_, steps_done);
    return losses_ <= allowed_;
  }

  // Goes on with the count of an earlier life.
  void Restore(int32_t losses, int32_t furthest) {
    losses_ = losses;
    furthest_ = furthest;
  }

  int32_t allowed() const { return allowed_; }
  // Returns the losses since the last new step; at most `allowed`, except when Bear said no.
  int32_t losses() const { return losses_; }
  int32_t furthest() const { return furthest_; }  // steps done at the last loss; -1 before one

 private:
  const int32_t allowed_;
  int32_t losses_ = 0;
  int32_t furthest_ = -1;  // steps done at the last loss
};

}  // namespace weft

#endif  // WEFT_PROTO_SESSION_LOSS_COUNT_H_
