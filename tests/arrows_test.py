"""The arrows of the imports: down only, and no TensorFlow where none is due.

Read from the source by ast; what a launch really imports is seen in one
process of its own.
"""

import ast
import pathlib
import subprocess
import sys

import pytest

REPO = pathlib.Path(__file__).parents[1]
PACKAGE = REPO / 'distmnist'
ROOMS = 'datasets', 'launchers', 'models', 'strategies'
# The rooms are level 2, whatever is not named is 1.
LEVELS = {
  4: {'check', 'train', 'launch', 'plan', 'sweep'},
  3: {
    'chief',
    'evaluate',
    'evaluator',
    'export',
    'hooks',
    'invariants',
    'lives',
    'predict',
    'report',
    'restart',
    'saved_run',
    'session',
    'spark_trials',
    'validation_hook',
    'workload',
  },
  0: {'runtime'},
}
# `launch --dry_run` and `--help` answer at once.
WITHOUT_TENSORFLOW = {
  'cli',
  'combinations',
  'console',
  'fork_server',
  'halving',
  'hparams',
  'isolation',
  'json_lines',
  'launch',
  'on_spark',
  'processes',
  'registry',
  'remote',
  'results',
  'screen',
  'spark_desk',
  'spark_task',
  'spark_trials',
  'supervisor',
  'sweep',
  'task_environment',
  'tasks',
  'trials',
}
# Its functions are the program in the Python processes of executors.
STARTED_BY_SPARK = {'spark_predict'}


def get_name(path):
  """distmnist/models/cnn.py -> 'models.cnn'; the package itself is ''."""
  parts = path.relative_to(PACKAGE).with_suffix('').parts
  return '.'.join(part for part in parts if part != '__init__')


PATHS = {get_name(path): path for path in sorted(PACKAGE.rglob('*.py'))}


def read_imports(name):
  """Returns the modules that `name` imports, a set of dotted names.

  Ours are without 'distmnist.'. A room that is loaded by the registry counts
  as imported.
  """
  found = set()
  for node in ast.walk(ast.parse(PATHS[name].read_text('utf-8'))):
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, f'{name}: an import that starts with a dot'
      whole = {f'{node.module}.{alias.name}' for alias in node.names}
      found |= whole if is_ours(node.module) else {node.module}
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
      found |= {node.value} & {f'distmnist.{room}' for room in ROOMS}
  return {strip(module) for module in found}


def is_ours(module):
  return module.split('.')[0] == 'distmnist'


def strip(module):
  """'distmnist.cli.run' -> 'cli'; what is not ours stays as it is."""
  if not is_ours(module):
    return module
  parts = module.split('.')[1:]
  while parts and '.'.join(parts) not in PATHS:
    parts.pop()
  return '.'.join(parts)


IMPORTS = {name: read_imports(name) for name in PATHS}


def compute_closure(name):
  """Returns all that `name` imports, also by way of others."""
  seen, todo = set(), [name]
  while todo:
    new = IMPORTS.get(todo.pop(), set()) - seen
    seen |= new
    todo += new
  return seen


def get_level(name):
  if name.split('.')[0] in ROOMS:
    return 2
  return next((n for n, names in LEVELS.items() if name in names), 1)


def get_room(name):
  """The room of a file in one; None for the room itself and for the rest."""
  room, _, file = name.partition('.')
  return room if file and room in ROOMS else None


def files_of(room):
  return [name for name in PATHS if get_room(name) == room]


def find(name, forbidden):
  """Returns what `name` imports, by way of others too, that is forbidden."""
  return {
    module
    for module in compute_closure(name)
    if module in forbidden or module.split('.')[0] in forbidden
  }


def test_the_reader_of_imports_sees_them():
  assert {'runtime', 'cli', 'strategies', 'absl', 'os'} <= IMPORTS['train']
  assert {'models', 'datasets', 'registry'} <= IMPORTS['workload']
  assert {'layers', 'tensorflow.compat.v1'} <= IMPORTS['models.cnn']
  assert 'checkpoints' in compute_closure('session')


@pytest.mark.parametrize('name', PATHS)
def test_imports_go_down_only(name):
  ours = {module for module in IMPORTS[name] if module in PATHS}
  up = {m for m in ours if get_level(m) > get_level(name)}
  assert not up, f'{name} (level {get_level(name)}) imports {up} above it'


def test_imports_go_in_no_circle():
  circles = [name for name in PATHS if name in compute_closure(name)]
  assert circles == []


@pytest.mark.parametrize('room', ROOMS)
def test_a_file_of_a_room_imports_no_other_room_and_no_sibling(room):
  for name in files_of(room):
    assert not find(name, set(ROOMS)), f'{name} imports a room'
  assert files_of(room)


def test_models_know_no_cluster():
  for name in files_of('models'):
    forbidden = {'cluster', 'mailbox', 'placement', 'session', 'strategy'}
    assert not find(name, forbidden), name


def test_strategies_know_no_data_and_no_model():
  for name in files_of('strategies'):
    forbidden = {'download', 'idx', 'input_pipeline', 'layers', 'workload'}
    assert not find(name, forbidden), name


def test_data_sets_know_neither_cluster_nor_tensorflow():
  for name in files_of('datasets'):
    assert not find(name, {'cluster', 'runtime', 'tensorflow'}), name


@pytest.mark.parametrize(
  'name', [*sorted(WITHOUT_TENSORFLOW), *files_of('launchers')]
)
def test_to_launch_takes_no_tensorflow(name):
  assert not find(name, {'runtime', 'tensorflow'})


@pytest.mark.parametrize('name', PATHS)
def test_a_program_that_needs_tensorflow_imports_runtime_first(name):
  tree = ast.parse(PATHS[name].read_text('utf-8'))
  is_program = any(
    isinstance(node, ast.If) and '__main__' in ast.unparse(node.test)
    for node in tree.body
  )
  needs = {m.split('.')[0] for m in compute_closure(name)} >= {'tensorflow'}
  if name in STARTED_BY_SPARK:
    assert needs and not is_program
  elif is_program and needs:
    first = next(n for n in tree.body if isinstance(n, ast.Import))
    assert ast.unparse(first) == 'import distmnist.runtime'
    others = [n for n in tree.body if isinstance(n, ast.ImportFrom)]
    assert first.lineno < min(n.lineno for n in others)
  else:
    assert 'runtime' not in IMPORTS[name]


def test_a_launch_imports_no_tensorflow():
  names = sorted({*WITHOUT_TENSORFLOW, *files_of('launchers')})
  program = '; '.join(
    [
      'import sys',
      *(f'import distmnist.{name}' for name in names),
      "print(*{name.split('.')[0] for name in sys.modules})",
    ]
  )
  found = subprocess.run(
    [sys.executable, '-c', program],
    capture_output=True,
    text=True,
    timeout=60,
    cwd=REPO,
  )
  assert (found.returncode, found.stderr) == (0, '')
  imported = set(found.stdout.split())
  assert {'distmnist', 'absl'} <= imported
  assert not {'tensorflow', 'keras', 'numpy'} & imported
