"""import-linter, on this repository or on a copy of it."""

import os
import pathlib
import subprocess
import sys


def check_imports(repo):
  """Checks the contracts of pyproject.toml for the package in `repo`."""
  found = subprocess.run(
    [pathlib.Path(sys.executable).with_name('lint-imports'), '--no-cache'],
    capture_output=True,
    text=True,
    timeout=100,
    cwd=repo,
    env={**os.environ, 'PYTHONPATH': str(repo)},
  )
  assert found.returncode == 0, found.stdout + found.stderr
  assert ' 0 broken.' in found.stdout
