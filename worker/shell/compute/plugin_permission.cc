#include "worker/shell/compute/plugin_permission.h"

#include <utility>

namespace weft {
namespace {

PluginPermission& Allowed() {
  static auto* const allowed = new PluginPermission;
  return *allowed;
}

}  // namespace

void AllowPlugins(PluginPermission permission) { Allowed() = std::move(permission); }

bool MayLoadPlugin(const std::string& sha256) { return Allowed().any || Allowed().hashes.count(sha256) != 0; }

std::string PythonOfPlugins() { return Allowed().python; }

}  // namespace weft
