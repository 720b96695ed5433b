# The longest tests in seconds, in a whole run on 2 cores. CTest starts them first, so that none of them runs alone at the end; the rest
# of the order is that of the lists.
#
#   weft_cost_test(NAME)   after add_test
set(WEFT_TEST_COSTS
  data_network_test 138 device_conformance_test 110 device_conformance_test_2 110 recovery_test 99 image 91 chaos 79 device_test 75
  shared_workers_test 67 coordinator_restart_test 65 device_precision_test 61 alerts 54 security_test 49 old_weights_test 47
  move_test 46 coordinator_standby_test 46 transport_conformance_test 44 training_test 42 package 42 transport_process_test 42 bits 41
  exported 39 predicted_bytes_test 36 replan_test 33 zombie_workers 33 output_test 33 upgrade 32 wheel 28 resume_test 27
  exported_device 27 slurm 26 migrating_test 25 run_simulation_test 23 kubeflow 22 status_page 21 bundle 20 simulated_test 20
  durable_steps_test 20 store_test 19 budgets 18 peaks 15)

function(weft_cost_test name)
  list(FIND WEFT_TEST_COSTS ${name} index)
  if(NOT index EQUAL -1)
    math(EXPR index "${index} + 1")
    list(GET WEFT_TEST_COSTS ${index} seconds)
    set_tests_properties(${name} PROPERTIES COST ${seconds})
  endif()
endfunction()
