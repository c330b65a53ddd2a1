import json
import os
import threading

import pytest

from distmnist.common import cli, layout
from distmnist.logdir import history
from tests.support.runner import SMALL


def test_each_life_has_a_file_of_whole_lines(tmp_path, set_flags):
  logdir = str(tmp_path)
  set_flags('--history')
  one = history.from_flags(logdir, 0, 'a')
  two = history.from_flags(logdir, 1, 'b')
  one.write('lease', first=0, end=4)
  two.write('run', global_step=3)
  one.write('save', step=3)
  path = tmp_path / 'distmnist-files' / 'history' / 'worker_0_a.jsonl'
  lines = [json.loads(x) for x in path.read_text().splitlines()]
  assert [x.pop('time') > 0 for x in lines] == [True, True]
  assert lines == [
    {'worker': 0, 'life': 'a', 'event': 'lease', 'first': 0, 'end': 4},
    {'worker': 0, 'life': 'a', 'event': 'save', 'step': 3},
  ]
  with path.open('a') as file:
    file.write('{"cut')  # What a kill leaves of a line that was too long.
  events = [(x['life'], x['event']) for x in history.read(logdir)]
  assert events == [('a', 'lease'), ('b', 'run'), ('a', 'save')]


def test_lines_of_several_threads_stay_whole(tmp_path):
  path = str(tmp_path / 'distmnist-files' / 'history' / 'worker_0_a.jsonl')
  writer = history.History(path, worker=0)
  threads = [
    threading.Thread(
      target=lambda: [writer.write('run', text='x' * 999) for _ in range(50)]
    )
    for _ in range(4)
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert len(history.read(str(tmp_path))) == 200


def test_nothing_is_written_unless_asked_for(tmp_path, set_flags):
  set_flags()
  quiet = history.from_flags(str(tmp_path), 0, 'a')
  quiet.write('run', global_step=1)
  assert not os.listdir(tmp_path)


def test_what_cannot_be_written_is_said_in_one_line(tmp_path, set_flags):
  layout.make_own_dir(str(tmp_path))
  (tmp_path / 'distmnist-files' / 'history').write_text('a file')
  set_flags('--history')
  with pytest.raises(cli.RunError, match='worker_0_a.jsonl cannot be written'):
    history.from_flags(str(tmp_path), 0, 'a')


@pytest.mark.slow
def test_saves_evaluations_and_restores_are_in_the_history(tasks, tmp_path):
  flags = *SMALL, '--history', '--save_steps=10', '--validation_steps=20'
  for last_step in (20, 30):
    done = tasks.run(
      tmp_path / f'log_{last_step}',
      *flags,
      f'--train_steps={last_step}',
      f'--logdir={tmp_path}/run',
    )
    assert done.code == 0, done.output
  left_out = 'start', 'took', 'ran'
  found = [
    (event['event'], event.get('step'))
    for event in history.read(str(tmp_path / 'run'))
    if event['event'] not in left_out
  ]
  assert found == [
    ('session', 0),
    *[(kind, 0) for kind in ('saving', 'saved')],
    *[(kind, 10) for kind in ('saving', 'saved')],
    *[(kind, 20) for kind in ('saving', 'saved')],
    ('validating', None),
    *[(kind, 20) for kind in ('evaluated', 'noted')],
    ('end', None),
    ('evaluating', None),
    ('restoring', 20),
    ('restored', 20),
    ('session', 20),
    *[(kind, 30) for kind in ('saving', 'saved')],
    ('end', None),
    ('evaluating', None),
  ]
