# The longest tests in seconds, in a whole run on 2 cores. CTest starts them first, so that none of them runs alone at the end; the rest
# of the order is that of the lists.
#
#   weft_cost_test(NAME)   after add_test
set(WEFT_TEST_COSTS
  device_conformance_test 186 image 175 device_conformance_test_2 164 data_network_test 119 alerts 108 recovery_test 104 device_test 90
  device_precision_test 88 shared_workers_test 68 coordinator_restart_test 60 chaos 59 training_test 54 migrating_test 51 security_test 51
  bits 48 move_test 47 coordinator_standby_test 46 wheel 44 old_weights_test 43 package 43 transport_conformance_test 43 resume_test 43
  predicted_bytes_test 43 transport_process_test 42 replan_test 38 exported 37 zombie_workers 33 upgrade 32 output_test 26 slurm 26
  exported_device 25 bundle 25 run_simulation_test 22 simulated_test 22 store_test 20 peaks 19 durable_steps_test 19 kubeflow 18
  status_page 18)

function(weft_cost_test name)
  list(FIND WEFT_TEST_COSTS ${name} index)
  if(NOT index EQUAL -1)
    math(EXPR index "${index} + 1")
    list(GET WEFT_TEST_COSTS ${index} seconds)
    set_tests_properties(${name} PROPERTIES COST ${seconds})
  endif()
endfunction()
