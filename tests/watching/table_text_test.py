"""The tasks as a table, and a run in a line."""

from distmnist.watching import run_state, table_text

ROWS = [
  run_state.Row('ps 0', 'serving', received_per_sec=2.5e6, restarts=1),
  run_state.Row(
    *('worker 10', 'training', 40, 12345.6, 0.5, 1e6, 2e6, 3.21e8, 0)
  ),
]


def test_a_row_a_task_and_a_dash_for_what_is_unknown():
  assert table_text.format_table(ROWS, 'images').splitlines() == [
    'task       state     step  images/s  staleness  in MB/s  out MB/s'
    '  memory MB  restarts',
    'ps 0       serving      -         -          -     2.50         -'
    '          -         1',
    'worker 10  training    40    12,346       0.50     1.00      2.00'
    '        321         0',
  ]


def describe(*lines):
  state = run_state.RunState().take(
    [{'time': 1.0, 'life': 'a', **line} for line in lines]
  )
  return table_text.describe_run('run/', state)


def test_a_run_is_told_in_a_line():
  launcher = {'task': 'launcher', 'kind': 'start', 'host': 'h', 'pid': 7}
  evaluated = {'kind': 'evaluation', 'split': 'test', 'step': 30}
  text = describe(
    launcher | {'launcher': 'ssh', 'tasks': ['worker 0']},
    {'task': 'worker 0', 'kind': 'start', 'host': 'h', 'pid': 1},
    {
      **{'task': 'worker 0', 'kind': 'sample', 'state': 'training'},
      **{'step': 40, 'last_step': 100},
    },
    evaluated | {'task': 'worker 0', 'metrics': {'accuracy': 0.75}},
    {'task': 'worker 0', 'kind': 'end', 'ok': True, 'text': ''},
  )
  assert text == (
    'run: ended; step 40 of 100; test accuracy 0.75 at step 30; started by '
    'the launcher ssh, process 7 on h'
  )


def test_a_step_beyond_the_last_is_the_last():
  line = {'task': 'worker 0', 'kind': 'sample', 'state': 'training'}
  text = describe(line | {'step': 3001, 'last_step': 3000})
  assert text.endswith('; step 3000 of 3000')


def test_a_run_that_only_time_ends_has_a_step_and_no_last_one():
  line = {'task': 'worker 0', 'kind': 'sample', 'state': 'training'}
  text = describe(line | {'step': 40, 'last_step': None})
  assert text.endswith('; step 40')


def test_a_launcher_need_not_say_which_process_it_is():
  launcher = {'task': 'launcher', 'kind': 'start', 'launcher': 'slurm'}
  assert 'slurm' in describe(launcher)


def test_the_exit_code_of_the_launcher_says_how_it_went():
  launcher = {'task': 'launcher', 'host': 'h', 'pid': 7}
  for code, word in (
    (0, 'ended'),
    (130, 'stopped'),
    (3, 'failed with exit code 3'),
  ):
    text = describe(
      launcher | {'kind': 'start'},
      launcher | {'kind': 'end', 'ok': not code, 'text': '', 'code': code},
    )
    assert text.startswith(f'run: {word}; ')
