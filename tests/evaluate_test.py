"""evaluate: accuracies of checkpoints, and what it refuses."""

import re

import pytest

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
