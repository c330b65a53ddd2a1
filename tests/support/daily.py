"""Which cases of a wide grid every run of the tests has; --all has all.

A grid is one claim for many rules, nets or clusters, each case a cluster of its
own. Of these every run has one of each way in which workers wait for each other
and keep what they compute with; the others run by `scripts/test.sh --all`, to
be done before a release and after a change of what the grid is about.
"""

import pytest

_SMALL_NETS = 'cnn', 'dnn', 'mlp', 'softmax'
# The file and the function -> the ids of its cases in every run; () for none.
DAILY = {
  'api/training_test.py': {'test_the_code_of_the_page_runs': ('3',)},
  'benchmarks/goodput_test.py': {
    'test_a_run_with_a_kill_and_one_without_make_a_table': (),
  },
  'benchmarks/peers_test.py': {
    'test_scripts_and_a_rule_make_a_table': (),
    'test_a_signal_leaves_nobody_behind': ('classic',),
  },
  'benchmarks/revisions_test.py': {
    'test_it_runs_the_program_of_the_other_checkout': (),
  },
  'benchmarks/scale_test.py': {'test_what_ps_0_does_while_workers_wait': ()},
  'benchmarks/shaped_links_test.py': {
    'test_a_cluster_is_measured_on_links': (),
    'test_whatever_ends_it_leaves_no_task': (),
  },
  'exchange/copies/local_copies_test.py': {
    'test_the_first_pull_of_a_session_is_rounded_as_each_pull_is': (
      *('ad_psgd', 'async_sgd', 'bmuf', 'easgd', 'sync_sgd'),
    ),
  },
  'exchange/locked_center_test.py': {
    'test_what_a_push_sends_where': ('dynsgd', 'dc_asgd'),
  },
  'exchange/pull_ahead_test.py': {
    'test_a_gradient_is_of_the_center_a_step_before': (
      'distmnist.strategies.async_sgd',
    ),
  },
  'transport/nonfinite_test.py': {
    'test_no_rule_lets_it_into_the_center': (
      *('async_sgd', 'sync_sgd', 'easgd', 'dc_asgd', 'ad_psgd'),
    ),
  },
  'exchange/ring/buckets_test.py': {
    'test_one_that_leaves_gives_zeros_in_a_step_of_the_others': (
      *('False-0-float32', 'False-1-bfloat16'),
      *('True-0-bfloat16', 'True-1-float32'),
    ),
  },
  'exchange/rounds/round_takeover_test.py': {
    'test_a_chief_that_is_replaced_amid_an_update_begins_the_round_again': (
      *('2-2-one', '3-1-all'),
    ),
  },
  'exchange/rounds/state_means_test.py': {
    'test_it_is_the_average_of_the_mean_of_the_batches': (
      *('2-sync_sgd, by shard', '2-bmuf', '1-easgd, T = 3'),
    ),
    'test_one_that_begins_late_changes_nothing': (
      *('sync_sgd', 'easgd, T = 3'),
    ),
    'test_one_that_dies_is_forgotten': (
      *('False-sync_sgd', 'True-bmuf', 'True-sync_sgd, by shard'),
    ),
  },
  'exchange/rounds/units_model_test.py': {
    'test_whatever_dies_all_units_go_on_and_none_counts_twice': (
      *('1-2-3', '2-1-1'),
    ),
  },
  'exchange/rounds/shard_barrier_test.py': {
    'test_the_bits_are_those_of_the_barrier_of_a_step': ('2-adam', '1-lamb'),
    'test_more_small_units_than_may_be_ahead_are_updated': ('momentum',),
    'test_with_a_backup_worker_the_bits_are_the_same': ('1-9',),
  },
  'tables/key_table_test.py': {
    'test_each_ps_has_whole_buckets': ('1', '7'),
  },
  'tables/tables_apart_test.py': {
    'test_each_gradient_of_a_row_is_applied_once_under_each_rule': (
      *('easgd', 'sync_sgd', 'ad_psgd'),
    ),
    'test_so_it_is_where_the_rule_itself_would_refuse_tables_or_drop_a_push': (
      *('async_sgd---pull_ahead=1', 'sync_sgd---replicas_to_aggregate=1'),
    ),
  },
  'export_test.py': {
    'test_what_any_rule_and_cluster_has_trained_is_exported': (
      *('async_sgd-3-flags0', 'ring_allreduce-0-flags4'),
    ),
  },
  'house/adding_a_strategy_test.py': {
    'test_its_own_test_and_those_of_all_rules_pass': ('some',),
  },
  'house/packaging_test.py': {
    'test_a_notebook_trains_where_nothing_but_the_wheel_is': (),
  },
  'house/configs_test.py': {
    'test_a_small_net_learns_with_a_recipe': (
      *('dnn_vertical.flags', 'quickstart.flags'),
      *('strategies/easgd.flags', 'strategies/ring_allreduce.flags'),
    ),
  },
  'lifecycle/hung_disk_test.py': {
    'test_what_hangs_after_the_last_step_is_named_and_ends': ('1',),
  },
  'lifecycle/session_test.py': {
    'test_early_stopping_ends_all_workers': ('sync_sgd-10',),
    'test_a_signal_saves_and_the_next_start_resumes': ('rule1-15',),
    'test_half_the_bytes_cross_and_the_sockets_agree_with_the_plan': ('rule1',),
  },
  'lifecycle/suspended_ps_test.py': {
    'test_who_begins_beside_a_suspended_ps_says_so_and_ends': ('sync_sgd',),
  },
  'models/battery_test.py': {
    'test_a_model_is_cut_into_shards_and_says_nothing_of_devices': _SMALL_NETS,
    'test_evaluation_shares_the_variables_of_training': _SMALL_NETS,
    'test_logits_are_a_row_an_image_and_a_column_a_class': _SMALL_NETS,
    'test_the_seed_decides_the_first_weights': _SMALL_NETS,
  },
  'models/resnet50_test.py': {
    'test_a_few_steps_lower_the_loss_and_the_averages_follow': (),
    'test_a_run_on_a_ps_saves_the_averages_and_evaluates_them': (),
  },
  'models/vgg19_test.py': {'test_a_few_steps_lower_the_loss': ()},
  'nn/batch_norm_test.py': {
    'test_averages_stay_whole_and_cross_the_wire_as_one_message': (
      *('ad_psgd', 'async_sgd', 'easgd', 'sync_sgd'),
    ),
    'test_every_worker_moves_the_averages_of_the_center': (
      *('ad_psgd', 'async_sgd', 'easgd'),
    ),
  },
  'nn/trust_ratio_test.py': {
    'test_shards_change_nothing_also_where_the_wire_rounds': ('lars',),
  },
  'strategies/battery_test.py': {
    'test_a_step_moves_the_bytes_that_the_rule_declares': (
      *('ad_psgd-1', 'async_sgd-0', 'downpour-0', 'easgd-1', 'sagn-0'),
    ),
    'test_a_warmup_leaves_no_trace_and_the_pull_comes_after_it': (
      *('ad_psgd', 'dc_asgd', 'easgd'),
    ),
    # Of others that wait: test_several_steps_a_run_make_the_same_training.
    'test_two_workers_learn_the_toy_and_end': (
      *('ad_psgd', 'async_sgd', 'bmuf', 'easgd', 'sync_sgd'),
    ),
    'test_what_the_loss_does_not_reach_stays_and_rows_move': (
      *('ad_psgd', 'async_sgd', 'dc_asgd', 'easgd', 'ring_allreduce'),
      *('sagn', 'sync_sgd'),
    ),
    'test_several_steps_a_run_make_the_same_training': (
      *('ring_allreduce', 'ssp'),
    ),
    'test_steps_without_their_exchange_make_the_same_training': (
      *('ad_psgd', 'bmuf', 'downpour', 'easgd'),
    ),
  },
  'strategies/checkpoint_test.py': {
    'test_a_checkpoint_of_any_number_of_ps_loads_on_any_other': (
      *('agn', 'bmuf', 'dc_asgd', 'easgd', 'sync_sgd'),
    ),
  },
  'strategies/oracles_test.py': {
    'test_all_that_flags_add_agrees_with_the_oracle': (
      *('ad_psgd', 'async_sgd', 'bmuf', 'downpour', 'easgd', 'ssp'),
      'sync_sgd',
    ),
    'test_random_steps_agree_with_the_oracle': (
      *('ad_psgd-1', 'async_sgd-1', 'downpour-0', 'downpour-2', 'downpour-4'),
      *('easgd-0', 'easgd-1'),
    ),
    'test_two_steps_of_a_run_agree_with_the_oracle': (
      *('async_sgd', 'bmuf', 'dc_asgd', 'downpour', 'easgd', 'sync_sgd'),
    ),
  },
  'strategies/ring_allreduce_test.py': {
    'test_if_nobody_comes_back_the_others_end_and_the_next_start_resumes': (
      '0',
    ),
    'test_a_signal_stops_all_tasks_with_a_checkpoint': ('1', 'all'),
    'test_a_worker_that_never_starts_is_named': ('0',),
    'test_a_worker_that_was_started_differently_is_named': ('--model=mlp',),
  },
  'strategies/sparse_oracles_test.py': {
    'test_random_steps_of_some_rows_agree_with_the_oracle': (
      *('dc_asgd', 'ssp', 'sync_sgd'),
    ),
  },
  'strategies/sparse_tables_test.py': {
    'test_a_row_that_is_made_learns_as_one_that_was_always_there': (
      *('adam-0-1', 'ftrl-2-2', 'momentum-0-1'),
    ),
    'test_a_worker_that_is_never_stale_is_as_one_process': (
      *('distmnist.strategies.drop_stale-keys',),
    ),
    'test_lock_step_is_one_process_on_the_whole_batch': (
      'keys-ftrl-2-2-widths9',
    ),
  },
  'readers/memory_test.py': {
    'test_memory_is_that_of_a_window_not_of_the_file': (),
  },
  'cluster/server_test.py': {
    'test_tasks_meet_without_the_proxy_that_the_process_keeps': ('None',),
  },
  'lifecycle/restoring_test.py': {
    'test_a_table_grows_as_if_it_had_had_the_room_before': ('adam-33554432',),
  },
  'system/classic_scripts_test.py': {
    'test_a_port_learns_on_a_cluster': ('sigmoid',),
  },
  'system/plain_scripts_test.py': {
    'test_a_cluster_here_ends_with_its_script': ('15-143',),
  },
  'system/chaos_test.py': {
    'test_faults_in_every_role_cost_neither_the_run_nor_its_accuracy': (
      'dynsgd',
    ),
  },
  'system/clicks_test.py': {'test_dlrm_comes_near_the_best_auc': ()},
  'system/end_phases_test.py': {
    'test_what_is_killed_at_the_end_is_begun_again': (
      *('member0-evaluation', 'member1-report', 'member2-after the end'),
    ),
  },
  'system/every_image_once_test.py': {
    'test_short_lives_together_read_each_batch_once': ('drop_stale',),
    'test_each_batch_of_two_epochs_is_read_once': (
      *('async_sgd-2', 'sync_sgd-3', 'ring_allreduce-3'),
    ),
    'test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit': ('sync_sgd',),
  },
  'system/every_image_with_kills_test.py': {
    # The ring after kills has the bits of a run without: ring_losses_test.py.
    'test_each_image_is_read_once_an_epoch': (
      'sync_sgd by shards with a backup',
    ),
  },
  'system/examples_test.py': {
    'test_its_own_flags_are_swept_and_judged_by_its_own_metric': (),
    'test_nets_of_keras_are_learnt': (),
    'test_the_ranking_example_learns_with_ftrl_as_with_adagrad': (),
    'test_text_is_learnt_under_every_other_rule': (),
    'test_what_is_exported_serves_as_it_was_evaluated': (),
    'test_workers_in_lock_step_reach_the_loss_of_one_process': ('recommender',),
  },
  'system/fault_matrix_test.py': {
    # Tasks that are suspended: faults_test.py, suspended_ps_test.py.
    'test_a_run_goes_on_or_ends_well': (
      *('start disk full', 'last step fork refused'),
    ),
  },
  'system/faults_test.py': {
    'test_a_chief_that_was_killed_takes_over_what_lives_on_the_ps': ('sync',),
    'test_a_ps_that_was_killed_is_back_and_all_go_on_from_the_checkpoint': (
      'rule1-1',
    ),
    'test_a_full_disk_is_named_and_what_was_saved_is_kept': (
      'while it trains',
    ),
    'test_a_worker_notices_that_the_host_of_its_ps_has_vanished': (
      'async_sgd',
    ),
  },
  'system/formats_test.py': {
    'test_logs_of_criteo': (),
    'test_ratings_of_movielens': (),
  },
  'system/global_step_test.py': {
    'test_it_is_trained_judged_and_exported': ('cluster0-words0',),
  },
  'system/keras_test.py': {
    'test_workers_in_lock_step_compute_what_fit_does': ('text',),
    'test_each_rule_trains_it_and_it_can_be_evaluated': ('easgd',),
  },
  'system/kinds_test.py': {
    'test_each_rule_trains_all_kinds': ('async_sgd-1',),
    'test_workers_in_lock_step_train_as_one_process': ('sync_sgd-2',),
    'test_a_kind_trains_alone': ('while_loop-sagn-2',),
  },
  'system/launches_test.py': {
    'test_launches_in_a_row_end_at_once': (),
  },
  'system/old_runs_test.py': {
    'test_it_is_restored_and_goes_on': (
      *('async_sgd_touched_rows', 'bmuf', 'ring_allreduce', 'sync_sgd_tables'),
    ),
  },
  'system/new_rows_test.py': {
    'test_who_is_killed_leaves_each_key_its_row': ('ps-async_sgd',),
  },
  'system/reproduce_table_test.py': {
    'test_an_interrupted_run_is_ended_and_run_again': (),
    'test_two_rules_make_a_table_and_a_failure_a_marked_row': (),
  },
  'system/resume_memory_test.py': {
    'test_a_chief_that_resumes_takes_a_slice_more_than_one_that_begins': (
      '4000000',
    ),
  },
  'system/ring_losses_test.py': {
    'test_all_go_on_when_one_wakes_up_that_was_suspended_beyond_the_limit': (
      'worker 0',
    ),
    # Of one alone: test_in_the_end_all_have_the_bits_of_a_run_without_a_fault.
    'test_who_is_killed_comes_back_and_no_step_is_lost': ('two workers',),
  },
  'system/rules_test.py': {
    'test_workers_learn_end_cleanly_and_tell_what_they_did': (
      *('drop_stale', 'ring_allreduce', 'sync_sgd with backup'),
    ),
  },
  'system/shards_stop_test.py': {
    'test_a_run_that_is_stopped_ends_with_the_same_bits': (),
  },
  'system/steps_per_run_test.py': {
    'test_workers_learn_with_runs_of_their_own': ('dc_asgd-600',),
  },
  'system/store_test.py': {
    'test_the_commands_of_the_page_train_and_export_from_a_bucket': (),
  },
  'system/streams_test.py': {
    'test_a_stream_trains_as_the_arrays_do': ('--gradient_accumulation=3',),
    'test_the_example_learns_from_its_files': (),
    'test_each_example_is_read_once_an_epoch_through_a_kill': ('sync_sgd-2',),
    'test_the_nets_of_imagenet_take_jpegs_in_records': (),
  },
  'system/table_kills_test.py': {
    'test_a_kill_amid_a_save_breaks_nothing': (
      'async_sgd-3000-victims0-words0',
    ),
  },
  'system/repeating_test.py': {
    'test_one_worker_repeats_all_bits_under_every_rule': ('async_sgd',),
    'test_workers_in_lock_step_repeat_a_training': (
      *('ring_allreduce-3', 'sync_sgd-2', 'sync_sgd-3'),
    ),
  },
  'system/tutorial_test.py': {'test_notebooks_run': ('some',)},
  'system/vertical_test.py': {
    'test_the_split_net_is_the_whole_one': (*('adam-sync_sgd', 'sgd-dc_asgd'),),
  },
  'tf_internals_test.py': {
    'test_threads_that_draw_one_id_each_draw_no_id_twice': (),
  },
  'training/accumulation_test.py': {
    'test_slices_are_one_device_with_the_whole_batch': (
      *('easgd', 'sync_sgd'),
    ),
  },
  'training/averages_test.py': {
    'test_each_update_of_the_center_moves_them_once': (
      *('ring_allreduce', 'sagn'),
    ),
  },
  'training/last_save_test.py': {
    'test_an_evaluation_that_fails_costs_no_step': (
      *('words0-sparse', 'words1-nosparse'),
    ),
  },
  'training/own_loop_test.py': {
    'test_a_chief_whose_input_ends_waits_for_the_steps_of_the_others': (
      'async_sgd',
    ),
    'test_a_hook_that_ends_the_loop_of_one_worker_is_like_a_break': (
      *('ring_allreduce-0', 'sync_sgd --sync_barrier=shard-1'),
    ),
    'test_in_lock_step_all_end_with_the_first_that_leaves': (
      *('0-exit-sync_sgd-1', '1-data-ring_allreduce-0'),
    ),
    'test_the_example_learns_under_each_rule': ('easgd',),
    'test_what_a_worker_has_of_its_own_outlives_a_lost_ps': ('async_sgd',),
    'test_where_none_waits_all_end_with_the_chief': ('exit-async_sgd',),
  },
}


def split(items):
  """Returns (daily, others), lists, of pytest's items.

  Raises:
    pytest.UsageError: a case that is named above is not there.
  """
  daily, others, missing = [], [], {}
  for item in items:
    file, _, name = item.nodeid.partition('::')
    function, _, case = name.partition('[')
    wanted = DAILY.get(file.removeprefix('tests/'), {}).get(function)
    if wanted is None:
      daily.append(item)
      continue
    left = missing.setdefault((file, function), set(wanted))
    (daily if case[:-1] in wanted else others).append(item)
    left.discard(case[:-1])
  if lost := {key: cases for key, cases in missing.items() if cases}:
    raise pytest.UsageError(f'tests/support/daily.py: no such cases: {lost}')
  return daily, others
