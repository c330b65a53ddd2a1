"""The last lines of a run."""

import pytest

from distmnist.logdir import report, report_text
from tests.support.reports import compose


def test_the_last_lines_of_a_run():
  assert report_text.format_lines(compose()) == [
    'test accuracy       0.9124',
    'total time          12.3 s (training 5.1 s)',
    'final loss          0.2500',
    'images/s            12,346',
    'work                8 steps, 80 images',
    'traffic             8 pushes, 4.0 MB pushed, 2.0 MB pulled',
    'sockets             6.0 MB sent, 8.0 MB received by the workers',
    'staleness           mean 1.38, max 4',
    'worker 0            5 local steps, 200.00 ms/step',
    'worker 1            3 local steps, 450.00 ms/step',
  ]


def test_the_last_lines_of_a_run_with_all_that_may_be_said():
  found = compose(
    max_staleness=0,
    best_step=40,
    judged_by='+accuracy',
    validation_metrics={'accuracy': 0.9},
    workers_not_heard_of=[2],
  )
  lines = report_text.format_lines(found)
  assert lines[:3] == [
    'best step           40, by validation accuracy',
    'validation accuracy 0.9000',
    'test accuracy       0.9124',
  ]
  assert lines[-3:] == [
    'worker 0            5 local steps, 200.00 ms/step, 2 gradients dropped',
    'worker 1            3 local steps, 450.00 ms/step, 3 gradients dropped',
    'worker 2            sent no final report',
  ]


@pytest.mark.parametrize(
  'global_step, more', [(52, ', 2 more until all workers ended'), (50, '')]
)
def test_the_steps_after_the_best_are_explained(global_step, more):
  found = compose(
    best_step=40,
    early_stop_step=50,
    judged_by='-loss',
    global_step=global_step,
  )
  assert report_text.format_lines(found)[0] == (
    'best step           40, by validation loss; early stopping at step 50'
    + more
  )


def test_what_is_not_known_is_not_said():
  found = compose(final_loss=None) | {'examples_per_sec': None}
  found |= {'staleness_mean': None, 'workers': []}
  assert report_text.format_lines(found) == [
    'test accuracy       0.9124',
    'total time          12.3 s (training 5.1 s)',
    'work                8 steps, 80 images',
    'traffic             8 pushes, 4.0 MB pushed, 2.0 MB pulled',
    'sockets             6.0 MB sent, 8.0 MB received by the workers',
  ]


def test_what_the_system_does_not_count_is_not_said():
  found = report_text.format_lines(compose() | {'bytes_sent': 0})
  assert not [line for line in found if line.startswith('sockets')]


def test_the_growth_of_tables_is_told():
  tables = {
    'user': {'rows': 1234, 'capacity': 5000, 'keys_without_row': 0},
    'ad': {'rows': 900, 'capacity': 100, 'keys_without_row': 1500},
    'word': {
      'rows': 9,
      'capacity': 2,
      'keys_without_row': 0,
      'rows_reused': 1200,
    },
  }
  found = report_text.format_lines(compose(tables=tables))
  assert [line for line in found if line.startswith('table')] == [
    'table user          1,234 rows, room for 5,000',
    'table ad            900 rows, room for 100; 1,500 times a key found none '
    'left',
    'table word          9 rows, room for 2; 1,200 times a key took that of '
    'another',
  ]


def test_recoveries_are_told_where_there_were_any():
  found = report_text.format_lines(
    compose() | {'recoveries': 2, 'steps_lost': 31}
  )
  assert 'recoveries          2, 31 global steps lost' in found
  assert not [
    line for line in report_text.format_lines(compose()) if 'reco' in line
  ]


def test_where_the_counting_began_is_told_if_it_was_not_at_0():
  found = compose(lives=[report.WorkerStats(0, sessions=[[500, 510]])])
  assert found['first_step'] == 500
  assert (
    'counted             from global step 500 on'
    in report_text.format_lines(found)
  )
  assert compose()['first_step'] is None


def test_what_is_known_of_a_killed_life_is_the_least_that_it_did():
  killed = report.WorkerStats(0, 7, 70, life='a', sessions=[[0, 12]])
  last = report.WorkerStats(
    0, 5, 50, life='b', sessions=[[8, 13]], has_ended=True
  )
  found = compose(lives=[killed, last])
  assert not found['is_complete'] and found['steps_lost'] == 4
  lines = report_text.format_lines(found)
  work = '8 global steps, at least 12 local steps, 120 images'
  assert f'work                {work}' in lines
  assert 'recoveries          0, at least 4 global steps lost' in lines
  assert sum(line.startswith('missing ') for line in lines) == 1
  killed.has_ended = True
  assert compose(lives=[killed, last])['is_complete']
  # Nobody has taken its place.
  last.has_ended = False
  assert not compose(lives=[killed, last])['is_complete']
