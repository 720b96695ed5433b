#include "base/host_name.h"

#include <unistd.h>

namespace weft {

std::string HostName() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace weft
