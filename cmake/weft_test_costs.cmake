# The longest tests in seconds, two at a time on 2 cores with other load. CTest starts them first, so that none of them runs alone at the
# end; the rest of the order is that of the lists.
#
#   weft_cost_test(NAME)   after add_test
set(WEFT_TEST_COSTS
  device_conformance_test 415 device_conformance_test_2 364 bits 289 old_weights_test 260 chaos 200 device_precision_test 171 training_test 159
  transport_process_test 103 device_test 103 resume_test 102 migrating_test 74 output_test 60 data_network_test 44 peaks 41 budgets 20
  cyclic_tables 39 transport_conformance_test 38 simulated_test 36 weight_versions_test 34 faulted_runs 33 float32_tolerance_test 32
  precision_test 26 clipping_test 25 metrics_test 24 convergence 23 exported 23)

function(weft_cost_test name)
  list(FIND WEFT_TEST_COSTS ${name} index)
  if(NOT index EQUAL -1)
    math(EXPR index "${index} + 1")
    list(GET WEFT_TEST_COSTS ${index} seconds)
    set_tests_properties(${name} PROPERTIES COST ${seconds})
  endif()
endfunction()
