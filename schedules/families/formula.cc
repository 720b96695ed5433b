#include "schedules/families/formula.h"

#include <muParserBase.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "schedules/nearest.h"

namespace weft {
namespace {

constexpr double kTooLarge = 9007199254740992;  // 2^53: doubles hold every whole number below it
constexpr size_t kMaxFormulaLength = 1000;
constexpr const char* kFunctions[] = {"min", "max", "abs"};

// An exception of the operators; caught where the library was called.
struct NoNumber : std::runtime_error {
  using std::runtime_error::runtime_error;
};

double Exact(double value) {
  if (std::abs(value) < kTooLarge) return value;
  throw NoNumber("an intermediate value is 2^53 or larger, so it is not exact");
}

double Add(double a, double b) { return Exact(a + b); }
double Subtract(double a, double b) { return Exact(a - b); }
double Multiply(double a, double b) { return Exact(a * b); }

void CheckDivision(double a, double b, const char* sign) {
  if (b == 0) throw NoNumber(absl::StrFormat("%.0f %s 0: a division by zero", a, sign));
  if (a < 0 || b < 0) {
    throw NoNumber(
        absl::StrFormat("%.0f %s %.0f: / and %% take values from 0 up, because languages differ for negative "
                        "values; add a multiple first, as in (s - b + B*W) %% W",
                        a, sign, b));
  }
}
double Divide(double a, double b) {
  CheckDivision(a, b, "/");
  const int64_t quotient = static_cast<int64_t>(a) / static_cast<int64_t>(b);
  return static_cast<double>(quotient);
}
double Remainder(double a, double b) {
  CheckDivision(a, b, "%");
  return static_cast<double>(static_cast<int64_t>(a) % static_cast<int64_t>(b));
}

double Equal(double a, double b) { return a == b; }
double Unequal(double a, double b) { return a != b; }
double Less(double a, double b) { return a < b; }
double LessOrEqual(double a, double b) { return a <= b; }
double Greater(double a, double b) { return a > b; }
double GreaterOrEqual(double a, double b) { return a >= b; }
double And(double a, double b) { return a != 0 && b != 0; }
double Or(double a, double b) { return a != 0 || b != 0; }
double Not(double a) { return a == 0; }
double Negate(double a) { return -a; }
double Plus(double a) { return a; }
double Absolute(double a) { return std::abs(a); }
double Smallest(const double* values, int n) { return *std::min_element(values, values + n); }
double Largest(const double* values, int n) { return *std::max_element(values, values + n); }

bool IsNameCharacter(char c) { return absl::ascii_isalnum(c) || c == '_'; }

// Reads a literal: digits that no letter or point follows.
int ReadNumber(const char* text, int* position, double* value) {
  int length = 0;
  while (absl::ascii_isdigit(text[length])) ++length;
  if (length == 0 || text[length] == '.' || IsNameCharacter(text[length])) return 0;
  if (!absl::SimpleAtod(absl::string_view(text, length), value)) return 0;
  if (*value >= kTooLarge) throw NoNumber("a number is 2^53 or larger, so it is not exact");
  *position += length;
  return 1;
}

class Parser : public mu::ParserBase {
 public:
  Parser() {
    EnableBuiltInOprt(false);  // they work on fractions
    AddValIdent(ReadNumber);
    InitCharSets();
    InitFun();
    InitConst();
    InitOprt();
  }

 private:
  void InitCharSets() override {
    DefineNameChars("0123456789_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ");
    DefineOprtChars("+-*/%=!<>&|");
    DefineInfixOprtChars("+-!");
  }
  void InitFun() override {
    DefineFun("min", Smallest, false);
    DefineFun("max", Largest, false);
    DefineFun("abs", Absolute, false);
  }
  void InitConst() override {}
  void InitOprt() override {
    DefineInfixOprt("-", Negate, mu::prINFIX, false);
    DefineInfixOprt("+", Plus, mu::prINFIX, false);
    DefineInfixOprt("!", Not, mu::prINFIX, false);
    DefineOprt("+", Add, mu::prADD_SUB);
    DefineOprt("-", Subtract, mu::prADD_SUB);
    DefineOprt("*", Multiply, mu::prMUL_DIV);
    DefineOprt("/", Divide, mu::prMUL_DIV);
    DefineOprt("%", Remainder, mu::prMUL_DIV);
    DefineOprt("==", Equal, mu::prCMP);
    DefineOprt("!=", Unequal, mu::prCMP);
    DefineOprt("<", Less, mu::prCMP);
    DefineOprt("<=", LessOrEqual, mu::prCMP);
    DefineOprt(">", Greater, mu::prCMP);
    DefineOprt(">=", GreaterOrEqual, mu::prCMP);
    DefineOprt("&&", And, mu::prLAND);
    DefineOprt("||", Or, mu::prLOR);
  }
};

// Checks for a character or word that is not in the language, and names its column.
absl::Status CheckWords(const std::string& text, const std::vector<std::string>& known) {
  constexpr absl::string_view kSigns = "+-*/%=!<>&|?:(), \t\r\n";
  for (size_t i = 0; i < text.size();) {
    size_t end = i;
    while (end < text.size() && IsNameCharacter(text[end])) ++end;
    const std::string word = text.substr(i, std::min<size_t>(40, std::max<size_t>(1, end - i)));
    const auto refuse = [&](absl::string_view message) {
      return absl::InvalidArgumentError(absl::StrCat("column ", i + 1, ": ", message));
    };
    if (end == i) {
      if (kSigns.find(text[i]) == absl::string_view::npos) {
        return refuse(
            absl::StrCat("\"", absl::CHexEscape(word), "\" is not a whole number, a name or an operator"));
      }
      ++i;
      continue;
    }
    if (absl::ascii_isdigit(text[i])) {
      if (!std::all_of(text.begin() + i, text.begin() + end, absl::ascii_isdigit)) {
        return refuse(absl::StrCat("\"", word, "\" is not a whole number"));
      }
    } else if (std::find(known.begin(), known.end(), text.substr(i, end - i)) == known.end()) {
      const std::string near = DidYouMean(word, known);
      return refuse(absl::StrCat("there is no \"", word, "\"", near,
                                 near.empty() ? "; there are " : " There are ", absl::StrJoin(known, ", ")));
    }
    i = end;
  }
  return absl::OkStatus();
}

std::string Say(const mu::ParserError& error) {
  std::string token = error.GetToken().substr(0, 40);
  switch (error.GetCode()) {
    case mu::ecUNEXPECTED_EOF:
    case mu::ecUNEXPECTED_VAL:
    case mu::ecUNEXPECTED_VAR:
    case mu::ecUNEXPECTED_OPERATOR:
    case mu::ecUNEXPECTED_FUN:
    case mu::ecUNEXPECTED_PARENS:
    case mu::ecUNEXPECTED_CONDITIONAL:
      return token.empty() ? "the formula ends too early"
                           : absl::StrCat("did not expect \"", token, "\" here");
    case mu::ecMISSING_PARENS:
      return "a closing parenthesis is missing";
    case mu::ecMISSING_ELSE_CLAUSE:
      return "a ? has no :";
    case mu::ecMISPLACED_COLON:
      return "a : has no ?";
    case mu::ecTOO_MANY_PARAMS:
    case mu::ecTOO_FEW_PARAMS:
      return absl::StrCat("wrong number of values for ", token);
    case mu::ecUNASSIGNABLE_TOKEN:
    case mu::ecINVALID_CHARACTERS_FOUND:
      return absl::StrCat("\"", token, "\" is not a whole number, a name or an operator");
    default:
      return absl::StrCat("cannot read \"", token, "\"");
  }
}

// Returns the whole-number column of a library's position, which is -1 for "at the end".
int Column(int position, size_t length) {
  const int end = static_cast<int>(length) + 1;
  return position < 0 || position >= end ? end : position + 1;
}

}  // namespace

struct Formula::Expression {
  mutable Parser parser;
  std::string text;
  std::vector<std::string> variables;
  mutable std::vector<double> values;  // bound to the parser; never resized
  std::vector<bool> used;
};

Formula::Formula(std::unique_ptr<Expression> expression) : expression_(std::move(expression)) {}
Formula::Formula(Formula&&) noexcept = default;
Formula& Formula::operator=(Formula&&) noexcept = default;
Formula::~Formula() = default;

bool Formula::IsName(absl::string_view text) {
  if (text.empty() || text.size() > 32 || absl::ascii_isdigit(text[0])) return false;
  return std::all_of(text.begin(), text.end(), IsNameCharacter) &&
         std::find(std::begin(kFunctions), std::end(kFunctions), text) == std::end(kFunctions);
}

bool Formula::Names(absl::string_view text, absl::string_view name) {
  for (size_t i = 0; i < text.size();) {
    size_t end = i;
    while (end < text.size() && IsNameCharacter(text[end])) ++end;
    if (text.substr(i, end - i) == name) return true;
    i = std::max(end, i + 1);
  }
  return false;
}

absl::StatusOr<Formula> Formula::Parse(const std::string& text, const std::vector<std::string>& variables,
                                       const std::map<std::string, int64_t>& constants) {
  if (text.size() > kMaxFormulaLength) {
    return absl::InvalidArgumentError(
        absl::StrFormat("is %d characters long; at most %d are read", text.size(), kMaxFormulaLength));
  }
  std::vector<std::string> known = variables;
  for (const auto& [name, value] : constants) known.push_back(name);
  known.insert(known.end(), std::begin(kFunctions), std::end(kFunctions));
  if (absl::Status s = CheckWords(text, known); !s.ok()) return s;
  auto expression = std::make_unique<Expression>();
  expression->text = text;
  expression->variables = variables;
  expression->values.assign(variables.size(), 1);
  expression->used.assign(variables.size(), false);
  try {
    Parser& parser = expression->parser;
    for (size_t i = 0; i < variables.size(); ++i) parser.DefineVar(variables[i], &expression->values[i]);
    for (const auto& [constant, value] : constants) parser.DefineConst(constant, static_cast<double>(value));
    parser.SetExpr(text);
    for (const auto& [variable, place] : parser.GetUsedVar()) {
      const auto it = std::find(variables.begin(), variables.end(), variable);
      if (it != variables.end()) expression->used[it - variables.begin()] = true;
    }
    parser.Eval();  // its first call compiles
    if (parser.GetNumResults() != 1) return absl::InvalidArgumentError("is several formulas; give one");
  } catch (const mu::ParserError& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("column ", Column(error.GetPos(), text.size()), ": ", Say(error)));
  } catch (const NoNumber&) {
    // The first values may be outside the formula's purpose; Evaluate reports errors with the real ones.
  }
  return Formula(std::move(expression));
}

bool Formula::Uses(absl::string_view variable) const {
  const auto& names = expression_->variables;
  const auto it = std::find(names.begin(), names.end(), variable);
  return it != names.end() && expression_->used[it - names.begin()];
}

absl::StatusOr<int64_t> Formula::Evaluate(absl::Span<const int64_t> values) const {
  for (size_t i = 0; i < values.size(); ++i) expression_->values[i] = static_cast<double>(values[i]);
  try {
    return static_cast<int64_t>(expression_->parser.Eval());
  } catch (const mu::ParserError& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("column ", Column(error.GetPos(), expression_->text.size()), ": ", Say(error)));
  } catch (const NoNumber& problem) {
    return absl::InvalidArgumentError(problem.what());
  }
}

}  // namespace weft
