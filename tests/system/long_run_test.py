"""A run of weeks is looked at, and stopped, as fast as one of an hour."""

import json
import os
import time

import pytest

from distmnist import report, status, stop
from distmnist.watching import stop_file

NUM_TASKS, NUM_LINES = 10, 1_000_000
NOW = 1.7e9


def write(folder):
  """Makes ten million lines: one file, under the names of ten tasks."""
  own = {'task': 'worker 0', 'life': 'a'}
  first = own | {'kind': 'start', 'time': NOW, 'host': 'h', 'pid': 1}
  sample = {
    **own,
    **{'kind': 'sample', 'time': 1.0, 'state': 'training', 'step': 2},
    **{'examples': 3, 'loss': 0.5, 'examples_per_sec': 9.0},
  }
  form = json.dumps(sample).replace('1.0', '%d').replace(' 2', ' %d')
  for i in range(NUM_TASKS):
    (folder / 'metrics' / f'worker_{i}').mkdir(parents=True)
  path = folder / 'metrics' / 'worker_0' / 'metrics.jsonl'
  with open(path, 'w') as file:
    file.write(f'{json.dumps(first)}\n')
    file.writelines(f'{form % (NOW + 2 * i, i)}\n' for i in range(NUM_LINES))
  for i in range(1, NUM_TASKS):
    os.link(path, folder / 'metrics' / f'worker_{i}' / 'metrics.jsonl')


@pytest.mark.daily
@pytest.mark.slow
def test_of_ten_million_lines_a_part_is_read(tmp_path, set_flags, capsys):
  write(tmp_path)
  set_flags(f'--logdir={tmp_path}', '--timeout_secs=0')
  took = {}
  for program in status, stop, report:
    # Of this process alone, whatever else runs on the machine.
    begun = time.process_time()
    program.main()
    took[program.__name__] = time.process_time() - begun
  said = capsys.readouterr().out
  assert f' {NUM_LINES - 1} ' in said and 'asked the run in ' in said
  assert stop_file.read(str(tmp_path))['token']
  assert (tmp_path / 'report.html').read_text().count('<svg') > 2
  assert max(took.values()) < 10, took
