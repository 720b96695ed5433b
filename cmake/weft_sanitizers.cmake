# Surroundings of the tests of a sanitized build (WEFT_SANITIZE): options and suppressions, time for slower programs, and a
# launcher that finds the reports of every process that a test started. weft_test and weft_command_test use both; in other
# builds they do nothing.
#
#   weft_sanitizer_launcher(NAME OUT)   what goes before the program in add_test's COMMAND
#   weft_sanitize_test(NAME)            after the test's other properties

# Sanitized programs run several times slower. Time-outs guard against hangs only, so they grow: CTest's here, those within the tests
# through the environment (tests/process/command.h).
set(WEFT_SANITIZED_TIME_FACTOR 4)

function(weft_sanitizer_launcher name out)
  set(${out} "" PARENT_SCOPE)
  if(WEFT_SANITIZE)
    set(${out} ${CMAKE_SOURCE_DIR}/tests/sanitizers/run_test.sh ${CMAKE_BINARY_DIR}/tests/reports/${name} PARENT_SCOPE)
  endif()
endfunction()

function(weft_sanitize_test name)
  if(NOT WEFT_SANITIZE)
    return()
  endif()
  get_test_property(${name} TIMEOUT timeout)
  if(timeout)
    math(EXPR timeout "${timeout} * ${WEFT_SANITIZED_TIME_FACTOR}")
    set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout})
  endif()
  set(log log_path=${CMAKE_BINARY_DIR}/tests/reports/${name}/report)
  set(folder ${CMAKE_SOURCE_DIR}/tests/sanitizers)
  # A program goes on after a race, so that one run shows all of them. The longer history keeps the stack of
  # the other side, without which no suppression matches.
  set(tsan suppressions=${folder}/tsan.supp:history_size=5:second_deadlock_stack=1:${log})
  set(asan detect_leaks=1:detect_stack_use_after_return=1:check_initialization_order=1:strict_string_checks=1:${log})
  # The runtime of UBSan knows no log_path beside that of ASan: its report is on standard error, and the process aborts.
  # UCX's hooks patch the same functions of the C library as the sanitizers do, and the process dies.
  set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT UCX_MEM_MMAP_HOOK_MODE=none
    TSAN_OPTIONS=${tsan} ASAN_OPTIONS=${asan} UBSAN_OPTIONS=print_stacktrace=1:abort_on_error=1
    LSAN_OPTIONS=suppressions=${folder}/lsan.supp:print_suppressions=0
    WEFT_TEST_TIME_FACTOR=${WEFT_SANITIZED_TIME_FACTOR})
endfunction()
