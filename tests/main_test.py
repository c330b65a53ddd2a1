"""distmnist PROGRAM: lists the programs, runs one, refuses what is none."""

import importlib.machinery
import re
import subprocess
import sys

import pytest

from distmnist.common import layout
from distmnist.common.names import PROGRAMS
from tests.support import programs
from tests.support.paths import REPO


def test_all_programs_of_the_package_are_listed():
  installed = re.findall(
    r"'distmnist-(\w+) = distmnist\.(\w+):run'", (REPO / 'setup.py').read_text()
  )
  assert {*installed} == {(name, name) for name in PROGRAMS}
  shown, _ = programs.run('distmnist')
  listed = re.findall(r'^  (\w+) +\S', shown, re.M)
  assert listed == list(PROGRAMS)


@pytest.mark.slow
def test_the_program_that_is_named_gets_the_other_arguments(tmp_path):
  _, told = programs.run(
    'distmnist', 'status', f'--logdir={tmp_path}/none', code=1
  )
  assert told.startswith('distmnist-status: error: ')


def test_who_reads_no_further_sees_no_traceback():
  pipe = f'{{ {sys.executable} -m distmnist; echo $? >&2; }} | true'
  done = subprocess.run(
    ['bash', '-c', pipe], capture_output=True, text=True, timeout=200, cwd=REPO
  )
  assert done.stderr in ('0\n', '141\n')


def test_in_a_log_directory_the_package_is_found(tmp_path):
  layout.make_own_dir(str(tmp_path))
  found = importlib.machinery.PathFinder.find_spec('distmnist', [str(tmp_path)])
  assert found is None


def test_what_is_no_program_is_refused_in_one_line():
  _, told = programs.run('distmnist', 'lunch', code=2)
  [line] = told.splitlines()
  assert "'lunch' is no program" in line
