"""output: closed, full, or without a character; what is printed is no error."""

import os
import subprocess
import sys

import pytest

_PRINTS = """
from distmnist.common import cli
def main():
  print('\\u00e4' * 100)
cli.run(main, ['program'])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
  'redirected, code, said',
  [
    ('>&-', 0, ''),
    ('2>&-', 0, ''),
    ('>&- 2>&-', 0, ''),
    ('>/dev/full', 1, 'its output cannot be written: No space left on device'),
    ('>/dev/full 2>&1', 1, ''),
  ],
)
def test_a_program_prints_to_whatever_it_was_given(redirected, code, said):
  done = subprocess.run(
    ['sh', '-c', f'"$0" -c "$1" {redirected}', sys.executable, _PRINTS],
    env={**os.environ, 'PYTHONIOENCODING': 'ascii'},
    capture_output=True,
    text=True,
  )
  assert (done.returncode, done.stderr.count('\n')) == (code, bool(said))
  assert said in done.stderr and 'Traceback' not in done.stderr
