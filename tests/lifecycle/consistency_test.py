"""consistency: what the tasks of a run must have in common."""

import types

from distmnist.lifecycle import consistency
from distmnist.logdir import logdirs


def test_a_changed_line_is_other_code(tmp_path):
  (tmp_path / 'rules').mkdir()
  path = tmp_path / 'rules' / 'sgd.py'
  path.write_text('RATE = 0.1')
  (tmp_path / 'notes.txt').write_text('not code')
  before = consistency.hash_code(tmp_path)
  assert len(before) == 12
  (tmp_path / 'notes.txt').write_text('still not')
  assert consistency.hash_code(tmp_path) == before
  path.write_text('RATE = 0.2')
  assert consistency.hash_code(tmp_path) != before


def test_other_code_and_another_tensorflow_are_differences():
  mine = {'code': 'abc', 'tensorflow': '2.21.0', 'seed': 1}
  theirs = {'code': 'def', 'tensorflow': '2.20.0'}
  program = [
    'code (a hash of its .py files) def there but '
    'code (a hash of its .py files) abc here',
    'TensorFlow 2.20.0 there but TensorFlow 2.21.0 here',
  ]
  assert consistency.find_differences(mine, theirs, is_ps=True) == program
  [code, seed, version] = consistency.find_differences(
    mine, theirs, is_ps=False
  )
  assert [code, version] == program
  assert seed == '--seed=(not given) there but --seed=1 here'


def test_an_edit_in_mid_run_makes_no_other_program_of_a_task(monkeypatch):
  ps = types.SimpleNamespace(job_name='ps', ps_hosts=(), worker_hosts=())
  before = consistency.settings_from_flags(ps)
  monkeypatch.setattr(consistency, 'hash_code', lambda: 'of the edited files')
  assert consistency.settings_from_flags(ps) == before
  assert before['code'] == consistency._CODE


def test_each_worker_reads_the_examples_that_it_is_fed(set_flags):
  worker = types.SimpleNamespace(
    job_name='worker', ps_hosts=('a:1',), worker_hosts=('b:1',)
  )
  set_flags('--fed_dir=/executor/0', '--data_dir=/executor/0', '--seed=7')
  here = consistency.settings_from_flags(worker)
  set_flags('--fed_dir=/executor/1', '--data_dir=/executor/1', '--seed=7')
  there = consistency.settings_from_flags(worker)
  assert here['seed'] == there['seed']
  assert not consistency.find_differences(here, there, is_ps=False)


def test_a_worker_whose_folder_is_another_than_the_chiefs_says_so(
  tmp_path, logged
):
  lives = {}
  watchdog = types.SimpleNamespace(find_life=lives.get)
  consistency.check_logdir(watchdog, str(tmp_path))  # No chief is known.
  logdirs.make(str(tmp_path))
  logdirs.sign(str(tmp_path), 'a')
  lives['worker 0'] = 'a'
  consistency.check_logdir(watchdog, str(tmp_path))
  assert logged == []
  logdirs.sign(str(tmp_path), 'b')  # Started again, and not yet at the table.
  consistency.check_logdir(watchdog, str(tmp_path))
  assert logged == []
  lives['worker 0'] = 'c'
  consistency.check_logdir(watchdog, str(tmp_path))
  [line] = logged
  assert line.startswith(f'--logdir={tmp_path} is not the folder ')
