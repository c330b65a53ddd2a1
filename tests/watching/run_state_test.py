"""What a table shows of each task, from its lines."""

import os

import pytest

from distmnist.common import owner_file
from distmnist.watching import run_state

DEAD = {**owner_file.describe_self(), 'pid': os.getpid(), 'start': 'long ago'}


def line(task, kind, time, life='a', **fields):
  return {'task': task, 'kind': kind, 'time': time, 'life': life, **fields}


def start(task, time=0.0, life='a', **fields):
  return line(task, 'start', time, life, **{'host': 'h', 'pid': 1, **fields})


def sample(task, time, life='a', **fields):
  return line(task, 'sample', time, life, **fields)


TRAINING = {
  'state': 'training',
  'step': 40,
  'last_step': 100,
  'examples': 1000,
  'unit': 'images',
  'examples_per_sec': 500.0,
  'staleness': {'0': 1, '2': 1},
  'staleness_mean': 1.0,
  'received_bytes': 10,
  'sent_bytes': 20,
  'received_bytes_per_sec': 5.0,
  'sent_bytes_per_sec': 6.0,
  'rss_bytes': 7,
}


def make_row(lines, now=3.0, task='worker 0'):
  rows = run_state.RunState().take(lines).make_rows(now)
  return {row.task: row for row in rows}[task]


def test_a_live_task_has_the_rates_of_its_last_sample():
  state = run_state.RunState().take(
    [start('worker 0', attempt=3), sample('worker 0', 2.0, **TRAINING)]
  )
  [row] = state.make_rows(now=3.0)
  assert row == run_state.Row(
    'worker 0', 'training', 40, 500.0, 1.0, 5.0, 6.0, 7, 2, True
  )
  assert (state.unit, state.step, state.last_step) == ('images', 40, 100)


def test_the_seconds_left_are_those_of_the_fastest_live_worker():
  lines = [start('worker 0'), start('worker 1')]
  for i, (time, step) in enumerate([(2.0, 10), (12.0, 30), (22.0, 50)]):
    for task, pace in ('worker 0', 1.0), ('worker 1', 0.5):
      more = TRAINING | {'step': int(step * pace)}
      lines.append(sample(task, time, **more))
    left = run_state.RunState().take(lines).find_secs_left(now=time + 1)
    # 2 steps a second.
    assert left == [None, 35.0, 25.0][i]
  lines.append(line('worker 0', 'end', 23.0, ok=True, text='stopped'))
  state = run_state.RunState().take(lines)
  assert state.find_secs_left(now=23.0) == 75.0
  # Nobody knows what a worker does that says nothing.
  assert state.find_secs_left(now=900.0) is None


def test_one_that_has_ended_has_those_of_its_life():
  more = TRAINING | {'examples': 5000, 'received_bytes': 90, 'sent_bytes': 20}
  row = make_row(
    [
      start('worker 0'),
      sample('worker 0', 2.0, **TRAINING),
      sample('worker 0', 6.0, **more | {'staleness': {'0': 3, '2': 1}}),
      line('worker 0', 'end', 6.0, ok=True, text=''),
    ],
    now=1e6,
  )
  assert (row.state, row.is_live) == ('ended', False)
  assert (row.examples_per_sec, row.received_per_sec) == (1000.0, 20.0)
  assert row.staleness == 0.5


@pytest.mark.parametrize(
  ('end', 'state'),
  [
    ({'ok': True, 'text': 'stopped'}, 'stopped'),
    ({'ok': False, 'text': 'no room'}, 'failed'),
  ],
)
def test_an_end_says_how(end, state):
  lines = [start('ps 0'), line('ps 0', 'end', 1.0, **end)]
  assert make_row(lines, task='ps 0').state == state


def test_one_that_says_nothing_any_more_is_silent_or_gone():
  lines = [start('worker 0'), sample('worker 0', 2.0, **TRAINING)]
  assert make_row(lines, now=16.0).state == 'training'
  row = make_row(lines, now=202.0)
  assert (row.state, row.is_live) == ('silent 3 min', False)
  lines = [start('worker 0', process=DEAD), *lines[1:]]
  assert make_row(lines).state == 'gone'


def test_who_samples_seldom_is_not_silent():
  lines = [start('worker 0', every_secs=60.0)]
  lines += [sample('worker 0', 0.0, **TRAINING)]
  assert make_row(lines, now=180.0).state == 'training'
  assert make_row(lines, now=250.0).is_silent


def test_a_task_whose_clock_is_wrong_is_as_alive_as_its_file():
  state = run_state.RunState().take(
    [start('worker 0'), sample('worker 0', 0.0, **TRAINING)]
  )
  state.written = {'worker 0': 100.0}
  assert state.make_rows(now=102.0)[0].state == 'training'
  assert state.make_rows(now=120.0)[0].state == 'silent 20 s'
  state.written = {'worker 0': -900.0}  # A clock that is ahead.
  assert state.make_rows(now=0.0)[0].is_silent


def test_the_clock_of_the_file_server_makes_nobody_silent():
  state = run_state.RunState().take(
    [
      *(start('worker 0', host='a'), start('worker 1', host='b')),
      *(sample('worker 0', 0.0, **TRAINING), sample('ps 0', 0.0)),
      sample('worker 1', 0.0, **TRAINING),
    ]
  )
  # It is an hour behind. Measured, and as those of most hosts have it.
  state.written = dict.fromkeys(['worker 0', 'worker 1'], -3600.0)
  for state.clock_ahead in 3600.0, None:
    rows = {row.task: row for row in state.make_rows(now=2.0)}
    assert rows['worker 0'].state == rows['worker 1'].state == 'training'
    rows = {row.task: row for row in state.make_rows(now=60.0)}
    assert rows['worker 0'].state == rows['worker 1'].state == 'silent 60 s'
  state.clock_ahead = 0.0
  assert state.make_rows(now=2.0)[1].is_silent


def test_a_new_life_begins_anew_and_the_old_one_has_no_say():
  row = make_row(
    [
      start('worker 0'),
      sample('worker 0', 1.0, **TRAINING),
      start('worker 0', 2.0, life='b', attempt=2),
      sample('worker 0', 2.5, **TRAINING),
    ]
  )
  assert (row.state, row.step, row.restarts) == ('starting', None, 1)


@pytest.mark.parametrize(
  ('code', 'state'), [(-9, 'killed'), (1, 'failed'), (130, 'stopped')]
)
def test_the_launcher_knows_how_a_task_without_an_end_went(code, state):
  launched = start('launcher', tasks=['ps 0', 'worker 0'], launcher='local')
  event = {'about': 'worker 0', 'kind': 'event', 'life': 'x'}
  ended = {'task': 'launcher', 'time': 2.0, 'event': 'ended', 'code': code}
  lines = [launched, start('worker 0'), event | ended]
  assert make_row(lines).state == state
  again = {'task': 'launcher', 'time': 2.5, 'event': 'started', 'attempt': 2}
  found = make_row([*lines, event | again])
  assert (found.state, found.restarts) == ('starting', 1)


def test_the_tasks_are_those_that_the_launcher_has_started():
  state = run_state.RunState().take(
    [
      start('worker 10'),
      start('worker 3'),
      start('launcher', 1.0, tasks=['worker 2', 'ps 0', 'worker 10']),
    ]
  )
  assert state.find_names() == ['ps 0', 'worker 2', 'worker 10']
  assert state.make_rows(2.0)[0].state == 'starting'
  state.take([line('launcher', 'end', 3.0, ok=False, code=1, text='')])
  assert state.make_rows(4.0)[0].state == 'never seen'


def test_a_task_is_of_its_launch_whatever_its_clock_says():
  state = run_state.RunState().take(
    [
      start('worker 0', 1.0, launch='l'),
      sample('worker 0', 2.0, **TRAINING),
      start('launcher', 300.0, tasks=['worker 0'], launch='l'),
    ]
  )
  assert state.make_rows(3.0)[0].step == 40
  # Of the launch before: its clock is ahead.
  state.take([start('launcher', 400.0, tasks=['worker 0'], launch='m')])
  late = line('worker 0', 'end', 500.0, ok=True, text='')
  assert state.take([late]).make_rows(500.0)[0].state == 'starting'


def test_a_task_that_is_restarted_is_starting_and_not_gone():
  event = {'about': 'worker 0', 'kind': 'event', 'life': 'x'}
  again = {'task': 'launcher', 'time': 2.0, 'event': 'started', 'attempt': 2}
  lines = [
    start('launcher', tasks=['worker 0'], launcher='local'),
    start('worker 0', process=DEAD, attempt=1),
    sample('worker 0', 1.0, **TRAINING),
    event | again,
  ]
  found = make_row(lines)
  assert (found.state, found.restarts) == ('starting', 1)
  # Its line may have come first: the launcher looks now and then.
  new = start('worker 0', 1.5, 'b', attempt=2)
  lines[3:] = [new, sample('worker 0', 1.6, 'b', **TRAINING), event | again]
  assert make_row(lines).state == 'training'


def test_tasks_started_by_hand_are_seen_beside_a_launch_and_after_it():
  state = run_state.RunState().take(
    [
      start('launcher', tasks=['worker 0'], launcher='local', launch='l'),
      start('worker 0', 1.0, launch='l'),
      start('evaluator 0', 2.0, 'e'),
    ]
  )
  assert state.find_names() == ['worker 0', 'evaluator 0']
  state.take([line('launcher', 'end', 3.0, ok=True, code=0, text='')])
  state.take([start('evaluator 0', 4.0, 'f')])
  assert state.launcher
  state.take([start('worker 1', 5.0, 'g'), start('worker 0', 6.0, 'h')])
  assert state.find_names() == ['worker 0', 'worker 1']
  assert not state.launcher and not state.launcher_end


def test_tasks_that_the_launcher_has_left_to_a_queue_are_not_over():
  left = line('launcher', 'event', 2.0, event='left')
  state = run_state.RunState().take(
    [start('launcher', 1.0, tasks=['worker 0']), left]
  )
  (row,) = state.make_rows(3.0)
  assert (row.state, row.is_live) == ('not seen yet', False)
  state.take([start('worker 0', 4.0)])
  assert state.make_rows(5.0)[0].is_live
  state.take([start('launcher', 6.0, tasks=['worker 0'])])
  assert state.make_rows(7.0)[0].state == 'starting'


def test_the_last_evaluation_of_each_split_is_kept():
  lines = [
    line('evaluator 0', 'evaluation', t, split='test', step=t, metrics={})
    for t in (1, 2)
  ]
  state = run_state.RunState().take([start('evaluator 0'), *lines])
  assert state.evaluations['test']['step'] == 2


@pytest.fixture
def task():
  found = run_state.TaskState()
  found.begin({'time': 0.0, 'every_secs': 2.0})
  for time, examples, staleness in ((2.0, 0, {}), (4.0, 100, {'0': 3, '4': 1})):
    found.take_sample(
      {
        'time': time,
        'state': 'training',
        'examples': examples,
        'examples_per_sec': 7.0,
        'received_bytes': 10 * examples,
        'staleness': staleness,
        'staleness_mean': 0.5,
      }
    )
  return found


def sample_again(task):
  task.take_sample(
    {
      'time': 14.0,
      'state': 'ending',
      'examples': 600,
      'received_bytes': 1500,
      'staleness': {'0': 3, '4': 1},
    }
  )


def test_a_task_that_lives_has_the_rates_of_its_last_sample(task):
  assert task.find_rates(is_live=True) == (7.0, 0.5, None, None)
  sample_again(task)
  assert task.find_rates(is_live=True) == (None, None, None, None)


def test_one_that_has_ended_has_those_since_it_began_to_work(task):
  sample_again(task)
  assert task.find_rates(is_live=False) == (50.0, 1.0, 50.0, None)


def test_another_life_begins_with_nothing(task):
  task.begin({'time': 20.0, 'attempt': 2})
  assert task.find_rates(is_live=False) == (None, None, None, None)
  assert (task.attempt, task.every_secs, task.last) == (2, 0.0, None)
