"""The matrix of faults: which cells a seed draws, and calls that fail."""

import concurrent.futures
import errno
import os
import subprocess
import sys
import types

import pytest

from tests.support.runner import import_benchmark

files = import_benchmark('lib.fault_files')
matrix = import_benchmark('fault_matrix')
phases = import_benchmark('lib.fault_phases')

PROGRAM = """
import os, sys, time
path, start = sys.argv[1], time.monotonic()
def attempt(name, do):
  try:
    do()
    print(name, 'done')
  except OSError as error:
    print(name, error.errno)
for name in sys.argv[2:]:
  if name == 'fork':
    attempt(name, lambda: os.fork() or os._exit(0))
  elif name == 'write':
    attempt(name, lambda: open(path, 'w').write('x'))
  else:
    attempt(name, lambda: open(path).read())
print(time.monotonic() - start)
"""


class Run:
  """Stands for a PhaseRun with the lines of two tasks."""

  begins_again = (50,)

  def __init__(self, **lines):
    self.logs = {
      name: types.SimpleNamespace(lines=found) for name, found in lines.items()
    }


def test_silence_counts_once_a_task_has_begun_and_not_while_all_are_loaded():
  works = [(0, 'step 1'), (3, 'step 2')]
  find = matrix.find_longest_silence
  assert find(Run(a=works, b=[(1, 'step 1'), (9, 'step 2')])) == 6
  loaded = [*works, (4, '--- restart 1 ---'), (40, 'step 3')]
  both = [(0, 'step 1'), (5, '--- restart 1 ---'), (41, 'step 3')]
  assert find(Run(a=loaded, b=both)) == 3
  assert find(Run(a=loaded, b=[(0, 'step 1')])) == 36  # It could say something.
  assert find(Run(a=[(49, 'done'), (60, 'step 1')], b=[])) == 0


def role_of(task):
  return next(role for role, tasks in phases.ROLES.items() if task in tasks)


@pytest.mark.slow
def test_every_cell_comes_and_each_rule_meets_every_phase_and_condition():
  cells = phases.draw_cells(0, 300)
  assert cells == phases.draw_cells(0, 300) != phases.draw_cells(1, 300)
  found = {(c.phase, c.condition, role_of(c.task)) for c in cells}
  possible = {
    (phase, condition, role)
    for phase in phases.PHASES
    for condition in phases.CONDITIONS
    for role in phases.ROLES
    if any(
      phases.is_possible(rule, phase, condition, role) for rule in phases.RULES
    )
  }
  assert found == possible and len(possible) > 250
  for rule in phases.RULES:
    mine = [cell for cell in cells if cell.rule == rule]
    of_loops = phases.NOT_OF_LOOPS if rule == 'own loop' else ()
    assert {c.phase for c in mine} == {*phases.PHASES} - {*of_loops}
    assert {c.condition for c in mine} == {*phases.CONDITIONS}
  assert sum(bool(cell.other_condition) for cell in cells) == 75
  ring = [cell for cell in cells if cell.rule == 'ring_allreduce']
  assert not any('ps' in cell.task + cell.other_task for cell in ring)


@pytest.fixture
def calls(tmp_path):
  """(Files, run(names) -> lines of PROGRAM), for a file in a folder."""
  folder = tmp_path / 'run'
  folder.mkdir()
  try:
    found = files.Files(tmp_path, folder)
  except files.CannotError as error:
    pytest.skip(str(error))

  def run(*names):
    argv = [sys.executable, '-c', PROGRAM, str(folder / 'file'), *names]
    return subprocess.run(
      argv,
      env={**os.environ, **found.env},
      stdout=subprocess.PIPE,
      text=True,
      timeout=200,
      check=True,
    ).stdout.splitlines()

  with found:
    yield found, run


@pytest.mark.slow
def test_calls_fail_while_they_are_told_to(calls):
  found, run = calls
  assert run('write', 'read', 'fork')[:3] == [
    'write done',
    'read done',
    'fork done',
  ]
  found.fail(files.WRITES, errno.ENOSPC)
  assert run('write', 'read')[:2] == [f'write {errno.ENOSPC}', 'read done']
  found.fail(files.READS, errno.EIO, times=1)
  assert run('read', 'read')[:2] == [f'read {errno.EIO}', 'read done']
  found.fail(files.FORKS, errno.EAGAIN)
  assert run('fork', 'write')[:2] == [f'fork {errno.EAGAIN}', 'write done']
  found.fail(files.WRITES, errno.EIO, name='another')
  assert run('write')[0] == 'write done'
  found.fail(files.WRITES, errno.EIO, pid=1)
  assert run('write')[0] == 'write done'
  found.mend()
  assert run('write')[0] == 'write done'


@pytest.mark.slow
def test_a_call_that_hangs_goes_on_when_the_fault_is_over(calls):
  found, _ = calls
  found.fail(files.READS, files.HANGS)
  path = os.path.join(found.env['FAULT_FOLDER'], 'file')
  open(path, 'w').close()
  process = subprocess.Popen(
    [sys.executable, '-c', PROGRAM, path, 'read'],
    env={**os.environ, **found.env},
    stdout=subprocess.PIPE,
    text=True,
  )
  with process:
    with pytest.raises(subprocess.TimeoutExpired):
      process.wait(0.5)
    found.mend()
    assert process.stdout.readline() == 'read done\n'


def test_the_table_counts_what_is_not_broken(capsys):
  cell = phases.Cell('easgd', 'save', 'killed', 'ps 0', has_met=True)
  other = phases.Cell('easgd', 'save', 'killed', 'ps 1', broken=['one'])
  matrix.print_cells([cell, other])
  lines = capsys.readouterr().out.splitlines()
  assert '| save | 1 of 2 | - | - | - | - | - | - | - |' in lines
  assert (
    '2 cells, 0 with two conditions; in 1 the task was gone by then; 1'
    in (' '.join(lines))
  )


def test_it_goes_on_from_the_cells_that_are_kept(tmp_path, monkeypatch):
  path, done = tmp_path / 'results', []

  class Pool(concurrent.futures.ThreadPoolExecutor):
    def __init__(self, number, context):
      super().__init__(1)

  def do_cell(seed, index, cell, keep):
    done.append(index)
    return cell

  monkeypatch.setattr(matrix, 'do_cell', do_cell)
  monkeypatch.setattr(matrix.concurrent.futures, 'ProcessPoolExecutor', Pool)
  for number in (3, 5):
    assert matrix.main([f'--cells={number}', f'--results={path}']) == 0
  assert sorted(done) == [0, 1, 2, 3, 4] and len(done) == 5
