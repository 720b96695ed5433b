#include "run/precision.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "run/file_section.h"
#include "run/unknown_name.h"

namespace weft {
namespace {

using Json = nlohmann::json;

Precision PrecisionOf(const std::string& name, absl::string_view what, absl::string_view path,
                      absl::Status& status) {
  if (name == "float32" || name == "fp32") return Precision::kFloat32;
  if (name == "tf32") return Precision::kTf32;
  if (name == "bf16") return Precision::kBFloat16;
  if (status.ok()) status = ErrorAt(path, UnknownName(what, name, {"float32", "tf32", "bf16"}));
  return Precision::kFloat32;
}

}  // namespace

absl::string_view PrecisionName(Precision precision) {
  switch (precision) {
    case Precision::kTf32:
      return "tf32";
    case Precision::kBFloat16:
      return "bf16";
    default:
      return "float32";
  }
}

absl::string_view KernelsName(Kernels kernels) { return kernels == Kernels::kAny ? "any" : "deterministic"; }

Precision ReadPrecision(const Json& value, absl::string_view path, absl::Status& status) {
  if (!status.ok() || value.is_null()) return Precision::kFloat32;
  if (value.is_string()) return PrecisionOf(value.get<std::string>(), "precision", path, status);
  if (!value.is_object()) {
    status = ErrorAt(path, absl::StrCat("must be float32, tf32 or bf16, or a section as {compute: bf16, "
                                        "weights: fp32}, not ",
                                        TypeName(value)));
    return Precision::kFloat32;
  }
  FileSection section(value, std::string(path), {"compute", "weights"}, status);
  std::string compute = "float32", weights = "float32";
  section.Read("compute", compute);
  section.Read("weights", weights);
  if (section.ok() && weights != "float32" && weights != "fp32") {
    section.Fail("weights", absl::StrCat("must be float32, not ", weights,
                                         ": weights, the sums of gradients and the optimizer's state are "
                                         "float32 in every precision, so that small updates are not lost"));
  }
  return PrecisionOf(compute, "precision", section.PathOf("compute"), status);
}

Kernels ReadKernels(const Json& value, absl::string_view path, absl::Status& status) {
  if (!status.ok() || value.is_null()) return Kernels::kDeterministic;
  if (!value.is_string()) {
    status = ErrorAt(path, absl::StrCat("must be deterministic or any, not ", TypeName(value)));
    return Kernels::kDeterministic;
  }
  const std::string name = value.get<std::string>();
  if (name == "any") return Kernels::kAny;
  if (name != "deterministic")
    status = ErrorAt(path, UnknownName("kind of kernels", name, {"deterministic", "any"}));
  return Kernels::kDeterministic;
}

}  // namespace weft
