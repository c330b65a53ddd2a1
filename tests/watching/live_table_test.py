"""Which tasks a table shows, and in which colours."""

import io

from rich import console as console_lib

from distmnist.watching import live_table, run_state


def make_row(name, state):
  return run_state.Row(name, state)


def test_where_there_is_no_room_those_that_need_a_look_are_shown():
  rows = [
    make_row('ps 0', 'serving'),
    make_row('worker 0', 'training'),
    make_row('worker 1', 'killed'),
    make_row('worker 2', 'waiting'),
  ]
  shown = live_table.choose_rows(rows, 3)
  assert [row.task for row in shown] == ['ps 0', 'worker 1', 'worker 2']
  assert live_table.choose_rows(rows, 9) == rows


def draw(lines, num_rows=9):
  out = io.StringIO()
  state = run_state.RunState().take(lines)
  console = console_lib.Console(file=out, width=100)
  console.print(live_table.make('run', state, num_rows))
  return out.getvalue()


def sample(task, **fields):
  return {'task': task, 'kind': 'sample', 'time': 1e12, 'life': 'a', **fields}


def test_a_bar_shows_how_far_the_run_is():
  evaluated = {'kind': 'evaluation', 'split': 'test', 'step': 25}
  text = draw(
    [
      sample('worker 0', state='training', step=50, last_step=100),
      sample('worker 1', state='waiting', step=40),
      sample('worker 0') | evaluated | {'metrics': {'accuracy': 0.5}},
    ],
    num_rows=1,
  )
  bar, *_, row, more = text.splitlines()
  assert bar.split() == [
    *('━' * 15 + '─' * 15, 'step', '50/100', 'test', 'accuracy', '0.5')
  ]
  assert row.split()[:3] == ['worker', '1', 'waiting']
  assert more == 'and 1 more: python -m distmnist.status --logdir=run'


def test_the_time_that_is_left_is_at_the_pace_so_far():
  first = sample('worker 0', state='training', step=10, last_step=100)
  last = first | {'step': 50, 'time': 1e12 + 20, 'examples': 500}
  text = draw([first | {'examples': 100}, last])
  assert text.splitlines()[0].endswith('step 50/100  25 s left')


def test_without_a_last_step_there_is_the_step_and_no_bar():
  text = draw([sample('worker 0', state='training', step=550, last_step=None)])
  assert text.splitlines()[0].split() == ['step', '550']


def test_a_unit_is_no_markup():
  unit = {'state': 'training', 'unit': 'pairs [a][/b]'}
  assert '[a][/b]/s' in draw([sample('worker 0', **unit)])


def test_a_terminal_that_has_only_ascii_gets_no_more():
  line = sample('worker 0', state='training', step=50, last_step=100)
  state = run_state.RunState().take([line])
  out = io.StringIO()
  console = console_lib.Console(file=out, width=20)
  console.print(live_table.make('run', state, 9, is_ascii=True))
  text = out.getvalue()
  assert text.isascii() and '=' * 15 + '-' * 5 in text


def test_before_the_first_step_it_says_so():
  assert draw([sample('ps 0', state='serving')]).startswith('starting')
