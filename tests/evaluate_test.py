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
  line = r'step 100  {} accuracy (0\.\d{{4}}), loss \S+  .*model.ckpt-100\n'
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
