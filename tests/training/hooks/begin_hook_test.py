"""begin_hook: what the log directory has once the first step is done."""

import os

from distmnist.datasets import synthetic  # noqa: F401  Its flags.
from distmnist.training.hooks import begin_hook
from distmnist.training.problems import problem


def test_a_run_has_begun_once_its_first_step_is_done(set_flags, tmp_path):
  set_flags('--synthetic_train_images=20')
  report = tmp_path / 'report.json'
  report.write_text('{}')
  begin = begin_hook.BeginHook(
    str(tmp_path), 'some images', problem.from_flags()
  )
  assert sorted(os.listdir(tmp_path)) == ['report.json']
  begin.before_run(None)
  assert (tmp_path / 'train.data').read_text() == 'some images\n'
  assert '--synthetic_train_images=20' in (
    (tmp_path / 'train.flags').read_text().splitlines()
  )
  assert report.exists()  # The step may still fail.
  begin.after_run(None, None)
  assert not report.exists()
  # Later steps neither write nor remove.
  report.write_text('{}')
  (tmp_path / 'train.data').unlink()
  begin.before_run(None)
  begin.after_run(None, None)
  assert report.exists() and not (tmp_path / 'train.data').exists()
