# One helper a kind of target, so that a folder's CMakeLists.txt reads as a list of its rooms and their dependencies.
#
#   weft_library(NAME [PURE] SRCS .. HDRS .. DEPS ..)   a static library
#   weft_binary(NAME SRCS .. DEPS ..)                   a program in bin/
#   weft_test_program(NAME [SRCS ..] DEPS .. [LABELS ..] [OPTIMIZED])
#                                                   a GoogleTest program. OPTIMIZED: as libraries are, which unit and process
#                                                   tests are not otherwise
#   weft_test(NAME IN PROGRAM [SRCS ..] [TIMEOUT s] [SHARDS n] [SERIAL])
#                                                   sources of that program (NAME.cc, if not given), and their entry of CTest: n entries
#                                                   of different cases
#   weft_test(NAME SRCS .. DEPS .. [LABELS ..] [OPTIMIZED] [..])
#                                                   the same, with a program of its own
#   weft_bench(NAME [TESTED] SRCS .. DEPS ..)       a program of benchmarks in bench/, which the target benchmarks builds. TESTED: a
#                                                   test runs it, so a build of everything has it, too
#   weft_command_test(NAME [MAY_SKIP] [TIMEOUT s] [LABELS ..] [ENVIRONMENT ..] [CONFIGURATIONS ..] COMMAND ..)
#                                                   a command, as a script of Python, registered with CTest. LABELS: if not given, the
#                                                   folder's name. MAY_SKIP: exit code 77 says that what it needs is not there
#
# PURE: no I/O, threads, clock or global randomness. weft_check_purity() makes configure fail when a pure library depends on
# one that is not pure, or when a pure source names a banned header.

option(WEFT_WERROR "Treat warnings as errors" ON)
# The tests are many programs of the same libraries: LLVM's linker takes 0.2 s for one, GNU's 0.7 s or more.
find_program(WEFT_TEST_LINKER ld.lld DOC "The linker for tests and benchmarks, if it is there")
mark_as_advanced(WEFT_TEST_LINKER)
set(WEFT_SANITIZE "" CACHE STRING "Sanitizers, as for -fsanitize=")

add_library(weft_flags INTERFACE)
set(WEFT_WARNINGS -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers)
if(WEFT_WERROR)
  list(APPEND WEFT_WARNINGS -Werror)
endif()
list(JOIN WEFT_WARNINGS "," WEFT_HOST_WARNINGS)  # as nvcc hands them on
target_compile_options(weft_flags INTERFACE "$<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:${WEFT_WARNINGS}>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${WEFT_HOST_WARNINGS}>"
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>
  # The entry of a device library is C in its name alone: both sides are C++ of one build. After -Wall, which has it.
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-return-type-c-linkage>)
target_include_directories(weft_flags INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/proto)
if(WEFT_SANITIZE)
  target_compile_options(weft_flags INTERFACE
    "$<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:-fsanitize=${WEFT_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all>")
  target_link_options(weft_flags INTERFACE -fsanitize=${WEFT_SANITIZE})
endif()

set(WEFT_PURE_THIRD_PARTY absl::status absl::statusor absl::strings absl::str_format absl::span absl::flat_hash_map
  absl::flat_hash_set absl::inlined_vector absl::hash absl::btree absl::cord weft_flags nlohmann_json::nlohmann_json
  muparser::muparser PkgConfig::libdeflate)
# Not <ctime> and <cstdio>: base formats times, and prints its last words before a crash.
string(JOIN "|" WEFT_PURE_BANNED
  "<(thread|mutex|shared_mutex|condition_variable|future|atomic|pthread.h)>" "absl/synchronization"
  "<chrono>" "absl/time/clock"
  "<(fstream|filesystem|fcntl.h|unistd.h|dirent.h|netdb.h)>" "<(sys|netinet|arpa)/"
  "<random>" "absl/random"
  "base/(mutex|monotonic_clock|host_memory|open_files|net|log|metrics)"
  "proto/wire/" "grpc" "torch/" "ATen/" "c10/" "uc[pst]/" "prometheus/")

function(weft_library name)
  cmake_parse_arguments(A "PURE" "" "SRCS;HDRS;DEPS" ${ARGN})
  add_library(${name} STATIC ${A_SRCS} ${A_HDRS})
  target_link_libraries(${name} PUBLIC weft_flags ${A_DEPS})
  set_property(GLOBAL APPEND PROPERTY WEFT_LIBRARIES ${name})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  weft_use_unity(${name})
  if(A_PURE)
    weft_use_precompiled(${name} weft_precompiled_pure)
    set_property(GLOBAL APPEND PROPERTY WEFT_PURE_LIBRARIES ${name})
    set_property(GLOBAL PROPERTY WEFT_DEPS_${name} "${A_DEPS}")
    set(files "")
    foreach(f ${A_SRCS} ${A_HDRS})
      list(APPEND files ${CMAKE_CURRENT_SOURCE_DIR}/${f})
    endforeach()
    set_property(GLOBAL PROPERTY WEFT_FILES_${name} "${files}")
  else()
    weft_use_precompiled(${name} weft_precompiled_shell)
  endif()
endfunction()

function(weft_check_purity)
  get_property(pure GLOBAL PROPERTY WEFT_PURE_LIBRARIES)
  foreach(lib ${pure})
    get_property(deps GLOBAL PROPERTY WEFT_DEPS_${lib})
    foreach(dep ${deps})
      if(NOT dep IN_LIST pure AND NOT dep IN_LIST WEFT_PURE_THIRD_PARTY)
        message(FATAL_ERROR "${lib} is PURE but depends on ${dep}, which is not")
      endif()
    endforeach()
    get_property(files GLOBAL PROPERTY WEFT_FILES_${lib})
    foreach(file ${files})
      file(STRINGS ${file} hits REGEX "^#include .*(${WEFT_PURE_BANNED})")
      if(hits)
        message(FATAL_ERROR "${lib} is PURE but ${file} has: ${hits}")
      endif()
    endforeach()
  endforeach()
endfunction()

function(weft_binary name)
  cmake_parse_arguments(A "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${A_SRCS})
  target_link_libraries(${name} PRIVATE weft_flags ${A_DEPS})
  weft_use_unity(${name})
endfunction()

function(weft_link_quickly name)
  if(WEFT_TEST_LINKER AND NOT WEFT_SANITIZE)
    target_link_options(${name} PRIVATE -fuse-ld=lld)
  endif()
endfunction()

function(weft_test_program name)
  cmake_parse_arguments(A "OPTIMIZED" "" "SRCS;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${A_SRCS})
  target_link_libraries(${name} PRIVATE weft_flags ${A_DEPS} weft_test_main GTest::gmock GTest::gtest)
  set_target_properties(${name} PROPERTIES WEFT_TEST_LABELS "${A_LABELS}")
  set(headers weft_precompiled_test)
  foreach(kind unit process)
    if(kind IN_LIST A_LABELS AND NOT A_OPTIMIZED)
      set(headers weft_precompiled_${kind}_test)
    endif()
  endforeach()
  weft_use_precompiled(${name} ${headers})
  target_compile_options(${name} PRIVATE $<TARGET_PROPERTY:WEFT_OPTIMIZATION>)
  weft_use_unity(${name})
  weft_link_quickly(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
endfunction()

function(weft_test name)
  cmake_parse_arguments(A "SERIAL;OPTIMIZED" "IN;TIMEOUT;SHARDS" "SRCS;DEPS;LABELS" ${ARGN})
  if(A_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "weft_test(${name}) takes no ${A_UNPARSED_ARGUMENTS}")
  endif()
  if(A_IN)
    if(NOT A_SRCS)
      set(A_SRCS ${name}.cc)
    endif()
    set(command $<TARGET_FILE:${A_IN}> ${A_SRCS})
    target_sources(${A_IN} PRIVATE ${A_SRCS})
    get_target_property(A_LABELS ${A_IN} WEFT_TEST_LABELS)
  else()
    set(command $<TARGET_FILE:${name}>)
    if(A_OPTIMIZED)
      set(optimized OPTIMIZED)
    endif()
    weft_test_program(${name} ${optimized} SRCS ${A_SRCS} DEPS ${A_DEPS} LABELS ${A_LABELS})
  endif()
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 300)
  endif()
  if(NOT A_SHARDS)
    set(A_SHARDS 1)
  endif()
  foreach(shard RANGE 1 ${A_SHARDS})
    set(entry ${name})
    if(shard GREATER 1)
      set(entry ${name}_${shard})
    endif()
    set(environment WEFT_BIN=${CMAKE_BINARY_DIR}/bin WEFT_SOURCE=${CMAKE_SOURCE_DIR} UCX_LOG_LEVEL=error)
    # Tests of processes start many workers, which take twice as long to start with UCX's hooks into mmap. `weft train`
    # leaves the hooks out as well.
    if("process" IN_LIST A_LABELS)
      list(APPEND environment UCX_MEM_MMAP_HOOK_MODE=none)
    endif()
    if(A_SHARDS GREATER 1)
      math(EXPR index "${shard} - 1")
      list(APPEND environment GTEST_TOTAL_SHARDS=${A_SHARDS} GTEST_SHARD_INDEX=${index})
    endif()
    weft_command_test(${entry} TIMEOUT ${A_TIMEOUT} LABELS ${A_LABELS} ENVIRONMENT ${environment} COMMAND ${command})
    if(A_SERIAL)
      set_tests_properties(${entry} PROPERTIES RUN_SERIAL ON)
    endif()
  endforeach()
endfunction()

function(weft_command_test name)
  cmake_parse_arguments(A "MAY_SKIP" "TIMEOUT" "LABELS;ENVIRONMENT;CONFIGURATIONS;COMMAND" ${ARGN})
  if(NOT A_LABELS)
    get_filename_component(A_LABELS ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  endif()
  weft_sanitizer_launcher(${name} launcher)
  add_test(NAME ${name} CONFIGURATIONS ${A_CONFIGURATIONS} COMMAND ${launcher} ${A_COMMAND})
  foreach(property LABELS TIMEOUT ENVIRONMENT)
    if(A_${property})
      set_property(TEST ${name} PROPERTY ${property} ${A_${property}})
    endif()
  endforeach()
  if(A_MAY_SKIP)
    set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
  endif()
  weft_cost_test(${name})
  weft_sanitize_test(${name})
endfunction()

function(weft_bench name)
  cmake_parse_arguments(A "TESTED" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${A_SRCS})
  add_dependencies(benchmarks ${name})
  if(NOT A_TESTED)
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
  target_link_libraries(${name} PRIVATE weft_flags ${A_DEPS} benchmark::benchmark)
  weft_use_precompiled(${name} weft_precompiled_shell)
  weft_link_quickly(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
endfunction()
