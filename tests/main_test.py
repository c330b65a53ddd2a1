"""distmnist PROGRAM: lists the programs, runs one, refuses what is none."""

import re

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


def test_the_program_that_is_named_gets_the_other_arguments(tmp_path):
  _, told = programs.run(
    'distmnist', 'status', f'--logdir={tmp_path}/none', code=1
  )
  assert told.startswith('distmnist-status: error: ')


def test_what_is_no_program_is_refused_in_one_line():
  _, told = programs.run('distmnist', 'lunch', code=2)
  [line] = told.splitlines()
  assert "'lunch' is no program" in line
