"""invariants: what does not fit in a report is named, and nothing else."""

import collections
import json

import pytest

from distmnist.logdir import invariants, report


def make_life(worker, **fields):
  fields = {
    'local_steps': 50,
    'examples': 500,
    'batch_size': 10,
    'pushes': 50,
    'staleness': collections.Counter({0: 49, 3: 1}),
    'sessions': [[0, 98]],
    'life': f'life_{worker}',
    'has_ended': True,
    **fields,
  }
  return report.WorkerStats(worker, **fields)


def make_report(lives, max_staleness=0, **outcome):
  """Returns a report of 49 updates of two pushes each, as a file has it."""
  outcome = {
    'global_step': 49,
    'pushes_per_update': 2,
    'workers_not_heard_of': [],
    **outcome,
  }
  found = report.compose({}, outcome, lives, max_staleness)
  return json.loads(json.dumps(found))


def check(lives, *args, **outcome):
  return invariants.check_invariants(make_report(lives, *args, **outcome))


def test_a_report_that_fits():
  assert check([make_life(0), make_life(1)]) == []


@pytest.mark.parametrize('name', ['examples', 'pushes', 'bytes_sent'])
def test_sums_that_are_no_sums(name):
  found = make_report([make_life(0), make_life(1)])
  found[name] += 1
  found['workers'][1][name] += 5
  first, second = invariants.check_invariants(found)[:2]
  assert first.startswith(f'{name}: ')
  assert second.startswith(f'{name} of worker 1: ')


def test_images_that_no_step_has_read():
  assert check([make_life(0), make_life(1, examples=510)]) == [
    'examples of worker 1, life life_1: 510, expected 500'
  ]


def test_a_push_is_accepted_or_dropped():
  lost = collections.Counter({0: 49})
  assert check([make_life(0), make_life(1, staleness=lost)]) == [
    'pushes with a staleness of worker 1, life life_1: 49, expected 50',
    'pushes that were not dropped: 99, expected 98',
  ]
  # A rule that knows of no staleness.
  unknown = make_life(0, staleness=collections.Counter())
  assert check([unknown], pushes_per_update=1, global_step=50) == []


def test_no_more_pushes_are_zeros_than_there_were():
  assert check([make_life(0), make_life(1, nonfinite_pushes=51)]) == [
    'pushes that were not finite of worker 1, life life_1: 51, expected at '
    'most 50'
  ]


def test_an_update_takes_in_so_many_pushes():
  lives = [make_life(0), make_life(1)]
  assert check(lives, global_step=50) == [
    'pushes that were not dropped: 98, expected 100'
  ]
  # Of a run that began with a checkpoint of step 100.
  lives = [make_life(i, sessions=[[100, 149]]) for i in range(2)]
  assert check(lives, global_step=149) == []


@pytest.mark.parametrize(
  'lives, outcome',
  [
    ([make_life(0, sessions=[[0, 9], [5, 50]]), make_life(1)], {}),
    ([make_life(0, sessions=[[0, 9], [9, 50]]), make_life(1)], {}),
    ([make_life(0), make_life(1, life='a'), make_life(1, life='b')], {}),
    ([make_life(0), make_life(1, has_ended=False)], {}),
    ([make_life(0)], {'workers_not_heard_of': [1]}),
    ([make_life(0), make_life(1)], {'pushes_per_update': 3}),
  ],
  ids=[
    *('recovery', 'cut off', 'two lives', 'killed', 'not heard of'),
    'several a worker',
  ],
)
def test_what_was_disturbed_may_have_pushed_in_vain(lives, outcome):
  assert check(lives, **outcome, global_step=60) == []
