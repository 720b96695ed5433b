# Run as a script while building: writes the version of the interface between worker and device libraries, a hash of the headers
# that it is made of. cmake -DVERSION=.. -DOUT=.. "-DHEADERS=a;b" -P weft_device_version.cmake
cmake_policy(VERSION 3.25)
set(text "")
foreach(header ${HEADERS})
  file(SHA256 ${header} hash)
  string(APPEND text ${hash})
endforeach()
string(SHA256 hash "${text}")
string(SUBSTRING ${hash} 0 12 hash)
file(CONFIGURE OUTPUT ${OUT} CONTENT "// Made by cmake/weft_device_version.cmake.
#pragma once
namespace weft {
inline constexpr char kDeviceVersionValue[] = \"@VERSION@-@hash@\";
}  // namespace weft
" @ONLY)
