"""sorted_flags: flags of the program before the --, those of train after it."""

import subprocess

import pytest

from distmnist import sweep  # noqa: F401  Its flags.
from distmnist.api import sorted_flags
from distmnist.common import child_program


@pytest.mark.slow
def test_flags_are_taken_in_any_order():
  words = [
    '--train_steps=5',
    *('--dry_run', '--num_ps=1', '--num_workers=1', '--nofork_tasks'),
    '--strategy=easgd',
  ]
  process, kept = child_program.start(
    'launch', words, stdout=subprocess.PIPE, text=True
  )
  with process, open(kept, 'wb'):
    said = process.stdout.read()
  assert process.returncode == 0
  assert '--job_name=ps' in said
  assert '--train_steps=5 --strategy=easgd' in said


def test_what_a_sweep_tries_goes_before_the_flags_of_its_trials():
  words = ['--of_train=1', 'batch_size=5,6', '--noretry_failed', '--random=2']
  assert sorted_flags.sort(words) == [
    *('batch_size=5,6', '--noretry_failed', '--random=2', '--', '--of_train=1')
  ]


def test_a_flagfile_may_have_flags_of_both(tmp_path):
  path = tmp_path / 'x.flags'
  path.write_text('--random=3\n--of_train=1\n')
  assert sorted_flags.sort([f'--flagfile={path}', '--of_train=2']) == [
    *('--random=3', '--', '--of_train=1', '--of_train=2')
  ]
  missing = '--flagfile=/no.flags'
  assert sorted_flags.sort([missing, '--random=2']) == [
    *('--random=2', '--', missing)
  ]
