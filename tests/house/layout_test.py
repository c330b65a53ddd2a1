"""The house: imports go down only, and programs begin as they must."""

import ast
import importlib
import re
import subprocess
import sys

import pytest

from tests.support.imports import check_imports
from tests.support.paths import REPO

PACKAGE = REPO / 'distmnist'
PATHS = sorted(
  path.relative_to(PACKAGE)
  for path in PACKAGE.rglob('*.py')
  if path.name != '__init__.py'
)
# The programs, the module that all of them begin with, and what it stands on.
TOP = {
  '__main__',
  'check_flags',
  'evaluate',
  'export',
  'graph_record',
  'launch',
  'logs',
  'plan',
  'predict',
  'report',
  'runtime',
  'status',
  'stop',
  'sweep',
  'tf_internals',
  'train',
}
# What the executors of Spark run, and the driver alone when it is fed.
ON_EXECUTORS = 'feed', 'layouts'
# What a user's script begins with, as a program does.
OF_SCRIPTS = ('own_loop',)
# `launch --dry_run` and `--help` answer at once.
WITHOUT_TENSORFLOW = (
  '__main__.py',
  'api',
  'common',
  'launch.py',
  'logs.py',
  'report.py',
  'launchers',
  'launching',
  'spark',
  'status.py',
  'stop.py',
  'storage',
  'sweep.py',
  'sweeps',
  'watching',
)


def read_program(path):
  """Returns (ast of a module, whether it is started as a program)."""
  tree = ast.parse((PACKAGE / path).read_text('utf-8'))
  return tree, any(
    isinstance(node, ast.If) and '__main__' in ast.unparse(node.test)
    for node in tree.body
  )


def name_of(path):
  return '.'.join(('distmnist', *path.with_suffix('').parts))


@pytest.mark.slow
def test_the_contracts_of_the_rooms_are_kept():
  check_imports(REPO)


def test_at_the_top_are_the_programs():
  assert {path.stem for path in PATHS if len(path.parts) == 1} == TOP


@pytest.mark.slow
def test_each_program_with_tensorflow_imports_runtime_first():
  for path in PATHS:
    tree, is_program = read_program(path)
    imports = [n for n in tree.body if isinstance(n, ast.Import)]
    names = [alias.name for node in imports for alias in node.names]
    is_without = path.parts[0] in WITHOUT_TENSORFLOW
    is_program |= path.stem in OF_SCRIPTS
    if not is_program or (is_without and path.stem not in ON_EXECUTORS):
      assert 'distmnist.runtime' not in names, path
      continue
    assert names[0] == 'distmnist.runtime', path
    others = [
      node
      for node in tree.body
      if isinstance(node, ast.ImportFrom) and node.module != '__future__'
    ]
    assert imports[0].lineno < min(n.lineno for n in others), path


@pytest.mark.slow
def test_a_launch_imports_no_tensorflow():
  names = [
    name_of(path)
    for path in PATHS
    if path.parts[0] in WITHOUT_TENSORFLOW and path.stem not in ON_EXECUTORS
  ]
  assert 'distmnist.launchers.ssh' in names
  program = '; '.join(
    [
      'import sys',
      *(f'import {name}' for name in names),
      "print(*{name.split('.')[0] for name in sys.modules})",
    ]
  )
  found = subprocess.run(
    [sys.executable, '-c', program],
    capture_output=True,
    text=True,
    timeout=200,
    cwd=REPO,
  )
  assert (found.returncode, found.stderr) == (0, '')
  imported = set(found.stdout.split())
  assert {'distmnist', 'absl'} <= imported
  assert not {'tensorflow', 'keras', 'numpy'} & imported


def test_the_face_of_spark_is_loaded_when_asked_for():
  spark = importlib.import_module('distmnist.spark')
  training = importlib.import_module('distmnist.spark.training')
  assert spark.run is training.run
  assert spark.__all__ == ['Feed', 'Options', 'TaskError', 'predict', 'run']
  with pytest.raises(AttributeError):
    spark.nothing  # noqa: B018


def test_the_page_of_the_packages_names_all_of_them_and_the_programs():
  packages = {path.parent.name for path in PACKAGE.glob('*/__init__.py')}
  text = (REPO / 'docs' / 'architecture.md').read_text()
  assert sorted((packages | TOP) - set(re.findall(r'\w+', text))) == []


# Who starts processes, and which.
STARTERS = {
  # Tasks: the hosts, and their agents on the other side.
  'launching/forking/fork_client.py': 'the fork server',
  'launching/forking/fork_server.py': 'tasks on this machine',
  'launching/ssh/ssh_host.py': 'ssh, one a task',
  'launching/scheduler/job_host.py': 'the command that submits a task',
  'launching/beats.py': 'signs of life',
  'launching/child_process.py': 'the task of an agent',
  'launching/ray/task_actor.py': 'the agent of an actor',
  'launching/slurm/sbatch.py': 'sbatch, squeue, scancel',
  'launching/slurm/srun_host.py': 'srun, one for all tasks of a job',
  'launching/kubernetes/kubectl.py': 'kubectl',
  'spark/partition.py': 'the agent of an executor',
  # Other programs.
  'common/commit.py': 'git',
  'common/child_program.py': 'launch or sweep, for a call from Python',
  'launching/supervisor/sidecars.py': 'TensorBoard and its like',
  'launching/network_namespace.py': 'who makes the namespace',
  'launching/train_flags.py': 'the check of a combination of flags',
  'launchers/command.py': 'sh, to look for a command',
  'launchers/slurm.py': 'scontrol',
}
_STARTS = re.compile(
  r'subprocess\.(Popen|run|call|check_)\w*\(|os\.(fork|posix_spawn|system)'
  r'\w*\(|multiprocessing\.(Process|Pool)'
)


def test_processes_are_started_in_few_places():
  found = {
    path.as_posix()
    for path in PATHS
    if _STARTS.search((PACKAGE / path).read_text())
  }
  assert found == set(STARTERS)
