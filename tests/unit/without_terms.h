// Completes a scheme for tests that have no run: a chain of stages, without clipping, without a budget.
//
// Production code has no such function, because there a scheme comes with the terms of its run.
#ifndef WEFT_TESTS_UNIT_WITHOUT_TERMS_H_
#define WEFT_TESTS_UNIT_WITHOUT_TERMS_H_

#include <utility>

#include "schedules/run_terms.h"

namespace weft {

inline RunSchedule WithoutTerms(Schedule scheme) { return {std::move(scheme), RunTerms()}; }

}  // namespace weft

#endif  // WEFT_TESTS_UNIT_WITHOUT_TERMS_H_
