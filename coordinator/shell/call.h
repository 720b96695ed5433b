// Declares a gRPC call on the loop's completion queue: the tag of each operation in flight names its call.
//
// The loop owns every call and destroys it when it says that it is over. All methods run on the loop's
// thread.
#ifndef WEFT_COORDINATOR_SHELL_CALL_H_
#define WEFT_COORDINATOR_SHELL_CALL_H_

namespace weft {

class Call {
 public:
  virtual ~Call() = default;

  // The tag of one kind of operation; at most one of each kind is in flight.
  struct Operation {
    Call* call;
    int kind;
  };

  // Handles the end of an operation. Returns false when the call is over and nothing of it is in flight: the
  // loop destroys it.
  virtual bool OnDone(int kind, bool ok) = 0;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_CALL_H_
