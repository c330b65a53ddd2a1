"""sorted_launch: flags of launch before the --, those of train after it."""

import subprocess
import sys


def test_flags_are_taken_in_any_order():
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'distmnist.api.sorted_launch', '--train_steps=5'),
      *('--dry_run', '--num_ps=1', '--num_workers=1', '--nofork_tasks'),
      '--strategy=easgd',
    ],
    capture_output=True,
    text=True,
    check=True,
  )
  assert '--job_name=ps' in done.stdout
  assert '--train_steps=5 --strategy=easgd' in done.stdout
