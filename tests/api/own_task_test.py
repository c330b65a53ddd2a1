"""own_task: what is wrong before a script calls train is one line."""

import os
import subprocess
import sys

import pytest

from tests.support.paths import PYTHONPATH

_SCRIPT = """
import distmnist.runtime
import distmnist
from absl import flags

flags.DEFINE_list('ps_hosts', [], 'As in many a script.')


def train(task):
  raise AssertionError('train was called')


distmnist.run_task(train)
"""


@pytest.mark.daily
@pytest.mark.slow
def test_a_flag_by_the_name_of_one_of_ours_is_one_line(tmp_path):
  script = tmp_path / 'mine.py'
  script.write_text(_SCRIPT)
  done = subprocess.run(
    [sys.executable, script, '--job_name=ps'],
    env={**os.environ, 'PYTHONPATH': PYTHONPATH},
    capture_output=True,
    text=True,
    timeout=200,
  )
  assert (done.returncode, done.stdout) == (2, '')
  [line] = done.stderr.splitlines()
  assert line.startswith("mine.py: error: The flag 'ps_hosts' is defi")
  assert "Remove the script's flag, or rename it" in line
