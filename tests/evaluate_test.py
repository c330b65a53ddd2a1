"""evaluate: accuracies of checkpoints, and what it refuses."""

import re

import pytest

from distmnist import evaluate
from distmnist.common import cli
from tests.support import problems
from tests.support.runner import SMALL


@pytest.mark.slow
def test_flags_of_the_run_are_found_and_can_be_overruled(tasks, tmp_path):
  logdir = f'--logdir={tmp_path / "run"}'
  tasks.run(tmp_path / '1', *SMALL, '--train_steps=100', logdir)
  test, validation, fewer = (
    tasks.run(tmp_path / name, logdir, *flags, module='distmnist.evaluate')
    for name, flags in (
      ('2', []),
      ('3', ['--split=validation']),
      ('4', ['--synthetic_test_images=20']),
    )
  )
  assert [test.code, validation.code, fewer.code] == [0, 0, 0]
  line = r'step 100  {} accuracy (0\.\d{{4}})  .*model.ckpt-100\n'
  assert re.fullmatch(line.format('test'), test.output)
  assert re.fullmatch(line.format('validation'), validation.output)
  # 20 images give multiples of 0.05.
  accuracy = float(re.fullmatch(line.format('test'), fewer.output)[1])
  assert (accuracy * 20) % 1 == pytest.approx(0)


def test_a_problem_without_a_validation_split_is_named(set_flags, tmp_path):
  path = problems.write(
    tmp_path / 'mine.py',
    """
    import numpy as np

    def load(split):
      return None if split == 'validation' else (np.ones([8, 2]), np.ones(8))

    def build(x, is_training):
      pass

    def loss(y, outputs):
      pass
    """,
  )
  problem = problems.load(path, set_flags, '--split=validation')
  message = f"--problem={path}: --split=validation is empty: load('validation')"
  with pytest.raises(cli.UsageError, match=f'^{re.escape(message)} gave no'):
    evaluate._load_split(problem)


@pytest.fixture(scope='module')
def run(_runner, tmp_path_factory):
  """The logdir of a run of one step."""
  folder = tmp_path_factory.mktemp('evaluate')
  run = folder / 'run'
  _runner.run(folder / 'log', *SMALL, '--train_steps=1', f'--logdir={run}')
  return run


@pytest.mark.parametrize(
  ('flags', 'code', 'words'),
  [
    ([], 2, '--logdir is missing'),
    (['--logdir=nowhere'], 1, 'no run of distmnist.train in --logdir=nowhere'),
    (['--logdir={run}', '--checkpoint=7'], 1, 'checkpoint 7 was not found'),
    (['--logdir={run}', '--checkpoint=best'], 1, 'checkpoint best was not'),
    (['--logdir={run}', '--model=mlp'], 1, 'has no hidden1/'),
    (['--logdir={run}', '--split=half'], 2, 'should be one of <test|'),
  ],
)
def test_what_cannot_be_evaluated_is_one_line(
  tasks, run, tmp_path, flags, code, words
):
  flags = [flag.format(run=run) for flag in flags]
  task = tasks.run(tmp_path / '2', *flags, module='distmnist.evaluate')
  assert task.code == code
  (line,) = task.output.splitlines()
  assert words in line


@pytest.mark.slow
def test_a_torn_checkpoint_is_one_line(tasks, tmp_path):
  run = tmp_path / 'run'
  tasks.run(tmp_path / '1', *SMALL, '--train_steps=3', f'--logdir={run}')
  index = run / 'model.ckpt-3.index'
  index.write_bytes(index.read_bytes()[:20])
  task = tasks.run(
    tmp_path / '2',
    f'--logdir={run}',
    '--checkpoint=3',
    module='distmnist.evaluate',
  )
  assert task.code == 1, task.output
  assert 'model.ckpt-3 is not whole' in task.output.splitlines()[-1]
  assert 'Traceback' not in task.output
  # A training has more to lose: it goes back to the one before.
  task = tasks.run(tmp_path / '3', *SMALL, '--train_steps=5', f'--logdir={run}')
  assert task.code == 0, task.output
  assert f'restored {run}/model.ckpt-0\n' in task.output
