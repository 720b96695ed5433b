// Makes the id that tells a run from every other one on any machine: 128 random bits.
#ifndef WEFT_RUN_RUN_ID_H_
#define WEFT_RUN_RUN_ID_H_

#include <string>

namespace weft {

// Returns 32 hexadecimal digits, from the system's source of randomness.
std::string NewRunId();

}  // namespace weft

#endif  // WEFT_RUN_RUN_ID_H_
