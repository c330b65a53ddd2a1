"""A run over time: curves, lives, what broke, who waited."""

from distmnist.watching import run_history


def make(*lines):
  return run_history.RunHistory(
    [{'task': 'worker 0', 'life': 'a', **line} for line in lines]
  )


def sample(time, **fields):
  return {'kind': 'sample', 'time': time, **fields}


def test_a_curve_a_task_over_time_or_steps():
  history = make(
    sample(100.0, step=1, cost=2.0, metrics={'accuracy': 0.5}),
    sample(102.0, step=None, cost=None),
    sample(104.0, step=9, cost=1.0, task='worker 1'),
    sample(105.0, task='ps 0', waiting=['worker 0', 'worker 1']),
  )
  assert history.num_secs == 5
  assert history.find_curves('cost', 'worker') == {
    'worker 0': [(0.0, 2.0)],
    'worker 1': [(4.0, 1.0)],
  }
  found = history.find_curves('accuracy', 'worker', 'step')
  assert found == {'worker 0': [(1, 0.5)]}
  assert history.find_curves('waiting', 'ps') == {'ps 0': [(5.0, 2)]}


def test_lives_and_what_broke_them():
  history = make(
    {'kind': 'start', 'time': 10.0},
    sample(12.0, staleness={'0': 2}, local_steps=5, sent_bytes=7),
    {
      **{'kind': 'event', 'time': 13.0, 'task': 'launcher', 'event': 'ended'},
      **{'about': 'worker 0', 'code': -9, 'text': 'killed by SIGKILL'},
    },
    {'kind': 'start', 'time': 14.0, 'life': 'b'},
    sample(15.0, staleness={'0': 1, '3': 1}, local_steps=2, life='b'),
    {
      **{'kind': 'event', 'time': 16.0, 'life': 'b', 'event': 'recovered'},
      **{'text': 'recovered at step 3: 2 steps lost'},
    },
    {'kind': 'end', 'time': 17.0, 'life': 'b', 'ok': False, 'text': 'no room'},
  )
  spans = [(start, end) for start, end, _ in history.lives['worker 0']]
  assert spans == [(0, 2), (4, 7)]
  assert history.marks == [
    ('worker 0', 3.0, 'worker 0: killed by SIGKILL'),
    ('worker 0', 6.0, 'worker 0: recovered at step 3: 2 steps lost'),
    ('worker 0', 7.0, 'worker 0: no room'),
  ]
  assert history.staleness == {'worker 0': {0: 3, 3: 1}}
  total = history.totals['worker 0']
  assert (total['local_steps'], total['sent_bytes']) == (7, 7)


def test_a_stop_that_was_asked_for_is_no_fault():
  event = {'kind': 'event', 'task': 'launcher'}
  history = make(
    event | {'event': 'stopping', 'time': 1.0, 'text': 'process 7 of host h'},
    event | {'event': 'ended', 'time': 2.0, 'code': 130, 'about': 'ps 0'},
  )
  assert history.marks == [(None, 0.0, 'asked to stop by process 7 of host h')]


def test_who_waited_is_counted_where_somebody_did():
  rounds = [['worker 1'], [], ['worker 1', 'worker 2'], ['worker 1']]
  history = make(
    *(sample(1.0, task=f'worker {i}') for i in range(3)),
    *(sample(2.0, task='ps 0', waiting=waiting) for waiting in rounds),
  )
  assert history.find_who_waited() == {
    ('worker 1', 'worker 0'): 1.0,
    ('worker 1', 'worker 2'): 2 / 3,
    ('worker 2', 'worker 0'): 1 / 3,
  }


def test_evaluations_are_sorted_by_step():
  history = make(
    *(
      {
        **{'kind': 'evaluation', 'time': 1.0, 'split': 'test', 'step': step},
        'metrics': {'accuracy': step / 10, 'mae': None},
      }
      for step in (7, 3)
    )
  )
  found = history.find_evaluations()
  assert found == {'accuracy': {'test': [(3, 0.3), (7, 0.7)]}}


def test_launches_of_a_run_that_was_moved_aside_are_left_out():
  launch = {'kind': 'start', 'task': 'launcher'}
  stop = {'kind': 'event', 'task': 'launcher', 'event': 'stopping', 'text': 'x'}
  earlier = launch | {'time': 1.0}, stop | {'time': 2.0}
  mine = launch | {'time': 8.0}, {'kind': 'start', 'time': 9.0}
  later = launch | {'time': 10.0}, stop | {'time': 11.0}
  history = make(*earlier, *mine, *later)
  assert (history.start, history.num_secs) == (8.0, 3.0)
  assert [time for _, time, _ in history.marks] == [3.0]
  assert [line['time'] for line in history.starts] == [8.0, 9.0, 10.0]


def test_of_a_very_long_run_some_samples_are_kept_and_the_last():
  history = make(*(sample(float(t), step=t, cost=0.0) for t in range(98765)))
  [points] = history.find_curves('cost', 'worker', 'step').values()
  steps = [step for step, _ in points]
  assert steps == sorted(set(steps))
  assert (steps[0], steps[-1]) == (0, 98764)
  assert 500 <= len(steps) <= 1000
  assert {b - a for a, b in zip(steps, steps[1:-1], strict=False)} == {128}
  short = make(*(sample(float(t), step=t, cost=0.0) for t in range(700)))
  assert len(short.find_curves('cost', 'worker')['worker 0']) == 700
