// Reads what systemd gives a daemon that one of its units starts: the words of its command line and its
// variables, from the unit, its drop-ins and its environment files.
//
// It knows of systemd's files what the units of Weft have: ExecStart with variables, Environment,
// EnvironmentFile, and the specifiers %i, %l, %n and %N.
#ifndef WEFT_CLIENT_FILES_UNIT_FILE_H_
#define WEFT_CLIENT_FILES_UNIT_FILE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace weft {

// A value, and the line of the file that gives it: "/etc/weft/coordinator.conf:4".
struct PlacedText {
  std::string text, place;
};

struct UnitProcess {
  std::string program;                          // path
  std::vector<PlacedText> arguments;            // behind the program
  std::map<std::string, PlacedText> variables;  // by name
};

// Reads the unit of that name, as weft-worker@0 or weft-coordinator.service, in systemd's folders, or at that
// path. NotFound: there is none; InvalidArgument: it starts no program, or a file cannot be read.
absl::StatusOr<UnitProcess> ReadUnit(const std::string& unit);

}  // namespace weft

#endif  // WEFT_CLIENT_FILES_UNIT_FILE_H_
