"""sorted_flags: flags of the program before the --, those of train after it."""

import subprocess
import sys

from distmnist import sweep  # noqa: F401  Its flags.
from distmnist.api import sorted_flags


def test_flags_are_taken_in_any_order():
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'distmnist.api.sorted_flags', 'launch'),
      '--train_steps=5',
      *('--dry_run', '--num_ps=1', '--num_workers=1', '--nofork_tasks'),
      '--strategy=easgd',
    ],
    capture_output=True,
    text=True,
    check=True,
  )
  assert '--job_name=ps' in done.stdout
  assert '--train_steps=5 --strategy=easgd' in done.stdout


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
