"""Runs our programs, and has some of bash in the place of a system's."""

import os
import subprocess
import sys

from tests.support.paths import REPO


def run(module, *words, code=0, cwd=REPO, **env):
  """Runs `python -m MODULE WORDS` to its end.

  Args:
    module: str, such as distmnist.train.
    *words: str.
    code: int, the exit code that it must have.
    cwd: str or path.
    **env: variables of its environment, beside our own.

  Returns:
    (stdout, stderr), both str.
  """
  done = subprocess.run(
    [sys.executable, '-m', module, *words],
    cwd=cwd,
    env={**os.environ, **env},
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.returncode == code, done.stdout + done.stderr
  return done.stdout, done.stderr


def make(folder, **scripts):
  """Makes programs, {name: script}, in `folder`; returns PATH with it."""
  for name, script in scripts.items():
    path = folder / name
    path.write_text(f'#!/bin/bash\n{script}\n')
    path.chmod(0o755)
  return f'{folder}:{os.environ["PATH"]}'
