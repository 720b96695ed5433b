# The longest tests in seconds, in a whole run on 2 cores. CTest starts them first, so that none of them runs alone at the end; the rest
# of the order is that of the lists.
#
#   weft_cost_test(NAME)   after add_test
set(WEFT_TEST_COSTS
  device_conformance_test 168 bits 167 device_conformance_test_2 158 old_weights_test 136 transport_conformance_test 135
  transport_process_test 126 data_network_test 117 recovery_test 110 device_precision_test 103 device_test 101 alerts 97 image 95
  exported 84 chaos 67 coordinator_restart_test 64 predicted_bytes_test 58 training_test 56 exported_device 55 coordinator_standby_test 54
  package 47 resume_test 44 security_test 44 move_test 40 shared_workers_test 37 migrating_test 33 zombie_workers 33 replan_test 32
  upgrade 31 wheel 27 slurm 22 status_page 23 budgets 21 bundle 20 simulated_test 20 output_test 19 durable_steps_test 19
  flight_recorder_test 18 clipping_test 18 unifying_table 17 cyclic_tables 17 peaks 16 kubeflow 15)

function(weft_cost_test name)
  list(FIND WEFT_TEST_COSTS ${name} index)
  if(NOT index EQUAL -1)
    math(EXPR index "${index} + 1")
    list(GET WEFT_TEST_COSTS ${index} seconds)
    set_tests_properties(${name} PROPERTIES COST ${seconds})
  endif()
endfunction()
