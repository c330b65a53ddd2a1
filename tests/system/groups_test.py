"""Groups of variables, as a user has them: the page's example in a cluster."""

import json

import pytest

from tests.support import programs
from tests.support.paths import REPO

FLAGS = (
  *('--optimizer=adam', '--table_optimizer=adagrad'),
  *('--table_learning_rate=0.1', '--batch_size=50'),
)


@pytest.fixture
def problem(tmp_path):
  """The path of the file that the page shows, with the lines it promises."""
  page = (REPO / 'docs' / 'your_own_model.md').read_text()
  section = page.split('## Groups of variables\n')[1].split('\n## ')[0]
  path = tmp_path / 'wide.py'
  path.write_text(section.split('```python\n')[1].split('```')[0])
  promised = section.split('so at the start:\n\n')[1].split('\n\n')[0]
  return path, [line.strip() for line in promised.splitlines()]


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize('rule', ['sync_sgd', 'dc_asgd'])
def test_the_page_s_example_trains_as_it_says(tmp_path, problem, rule):
  path, promised = problem
  logdir = tmp_path / 'run'
  programs.run_forked(
    *('launch', '--num_ps=2', '--num_workers=2', '--', f'--strategy={rule}'),
    *(f'--problem={path}', f'--logdir={logdir}', '--epochs=10', *FLAGS),
  )
  said = (logdir / 'logs' / 'worker_0.log').read_text()
  assert all(f'{line}\n' in said for line in promised)
  report = json.loads((logdir / 'report.json').read_text())
  assert report['train_metrics']['loss'] < 0.6  # A guess has 0.67.


@pytest.mark.slow
def test_plan_shows_what_moves_each_variable(problem):
  path, promised = problem
  output = programs.run_forked(
    *('plan', '--num_ps=2', '--num_workers=2', f'--problem={path}', *FLAGS)
  )
  [shard] = [x for x in ''.join(output).splitlines() if 'wide/weights/' in x][
    :1
  ]
  assert shard.endswith('  ftrl')


@pytest.mark.slow
@pytest.mark.parametrize(
  'words, named',
  [
    (['--strategy=easgd', '--table_strategy=async_sgd'], "groups['wide/.*']"),
    (['--weight_decay=0.1'], "groups['wide/.*']"),
    (['--table_optimizer=lamb'], '--table_optimizer=lamb'),
    (['--ftrl_l1=1', '--epochs=0.1'], None),
  ],
)
def test_what_does_not_fit_is_one_line_before_anything_serves(
  problem, words, named
):
  path, _ = problem
  output = programs.run_forked(
    *('train', f'--problem={path}', *FLAGS, *words), code=2 if named else 0
  )
  if named:
    *_, last = ''.join(output).strip().splitlines()
    assert named in last


@pytest.mark.slow
def test_a_run_goes_on_with_another_factor_but_no_other_optimizer(
  tmp_path, problem
):
  path, _ = problem
  words = f'--problem={path}', f'--logdir={tmp_path}/run', *FLAGS
  programs.run_forked('train', *words, '--epochs=0.5')
  text = path.read_text()
  path.write_text(text.replace("'learning_rate': 10", "'learning_rate': 5"))
  programs.run_forked('train', *words, '--epochs=1')
  path.write_text(text.replace("'ftrl'", "'adagrad'"))
  output = programs.run_forked('train', *words, '--epochs=1.5', code=1)
  *_, last = ''.join(output).strip().splitlines()
  assert 'wide/weights' in last and 'optimizer' in last
