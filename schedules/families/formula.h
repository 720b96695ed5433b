// Parses and evaluates one formula of a custom schedule: a whole-number expression over named variables, as
// `(R*b) % W + s % R`.
//
// Numbers are exact: every value and every result on the way is a whole number below 2^53 in size, and
// anything else is an error. The operators are + - * / % == != < <= > >= && || ! and c ? a : b, the functions
// min, max and abs. / and % take values from 0 up, where all languages agree on them; of c ? a : b only the
// chosen side is evaluated, of && and || both are.
//
// This is the one adapter of the parser library (muParser); its exceptions stop here. Pure. Not thread-safe:
// evaluate on one thread, keep tables (families/custom.cc does). Failure: InvalidArgument that names the
// column, counted from 1.
#ifndef WEFT_SCHEDULES_FAMILIES_FORMULA_H_
#define WEFT_SCHEDULES_FAMILIES_FORMULA_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft {

class Formula {
 public:
  // Parses a formula. `variables`: the names that it may use, in the order in which Evaluate gets their
  // values.
  static absl::StatusOr<Formula> Parse(const std::string& text, const std::vector<std::string>& variables,
                                       const std::map<std::string, int64_t>& constants);
  Formula(Formula&&) noexcept;
  Formula& operator=(Formula&&) noexcept;
  ~Formula();

  // Returns true if its value can depend on the variable.
  bool Uses(absl::string_view variable) const;

  // Computes the value. InvalidArgument for a division by zero, an operand of / or % below zero, a result of
  // 2^53 or more.
  absl::StatusOr<int64_t> Evaluate(absl::Span<const int64_t> values) const;

  // Returns true if the name stands in the text.
  static bool Names(absl::string_view text, absl::string_view name);

  // Returns true for letters, digits and underscores, not beginning with a digit, at most 32, and no word of
  // the language.
  static bool IsName(absl::string_view text);

 private:
  struct Expression;
  explicit Formula(std::unique_ptr<Expression> expression);

  std::unique_ptr<Expression> expression_;
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_FAMILIES_FORMULA_H_
