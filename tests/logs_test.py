"""python -m distmnist.logs, without a run."""

import pytest

from distmnist import logs
from distmnist.common import cli
from distmnist.watching import metrics_file


@pytest.mark.parametrize(
  ('words', 'task'),
  [
    ([], 'worker 0'),
    (['chief'], 'worker 0'),
    (['ps', '1'], 'ps 1'),
    (['ps_01'], 'ps 1'),
    (['worker:3'], 'worker 3'),
    (['evaluator0'], 'evaluator 0'),
  ],
)
def test_a_task_may_be_typed_in_many_ways(words, task):
  assert logs.parse_task(words) == task


@pytest.mark.parametrize('words', [['ps'], ['ps_0', 'ps_1'], ['../x']])
def test_what_is_no_task_is_refused(words):
  with pytest.raises(cli.UsageError, match='is not a task: expected one'):
    logs.parse_task(words)


@pytest.fixture
def folder(tmp_path, set_flags):
  set_flags(f'--logdir={tmp_path}')
  (tmp_path / 'logs').mkdir()
  (tmp_path / 'logs' / 'worker_0.log').write_text('step 1\n')
  ps = metrics_file.Writer(str(tmp_path), 'ps 0', 'a', host='h', pid=1)
  ps.write('end', ok=True, text='')
  return tmp_path


def test_the_log_is_printed_whole(folder, capfdbinary):
  logs.main([])
  assert capfdbinary.readouterr().out == b'step 1\n'


def test_of_a_run_that_has_ended_nothing_more_is_waited_for(
  folder, set_flags, capfdbinary
):
  set_flags(f'--logdir={folder}', '-f')
  logs.main(['worker_0'])
  assert capfdbinary.readouterr().out == b'step 1\n'


def test_the_folder_of_the_launcher_comes_first(folder):
  (folder / 'other').mkdir()
  (folder / 'other' / 'worker_0.log').write_text('')
  launcher = {'logs_dir': f'{folder}/other'}
  found = logs.find_log(str(folder), launcher, 'worker 0')
  assert found == f'{folder}/other/worker_0.log'
  found = logs.find_log(str(folder), {'logs_dir': 'other'}, 'worker 0')
  assert found == f'{folder}/other/worker_0.log'


def test_which_logs_there_are_is_told(folder):
  with pytest.raises(cli.RunError, match='no log of ps 2 in .* are worker_0$'):
    logs.main(['ps_2'])
  (folder / 'logs' / 'worker_0.log').unlink()
  with pytest.raises(cli.RunError, match='kubectl logs'):
    logs.main([])
