import ast
import importlib.util

import pytest

from distmnist.common import names
from distmnist.launching import jobs

MODULES = {
  name: value
  for name, value in vars(names).items()
  if name.isupper() and str(value).startswith(f'{names.PACKAGE}.')
}
ROOMS = {
  *('DATASETS', 'LAUNCHERS', 'MODELS'),
  *('PROBLEMS', 'RANKERS', 'STRATEGIES'),
}
LIBRARIES = {'OWN_LOOP'}


def list_modules():
  """Returns the dotted names of all that is in the package."""
  found = set()
  for path in names.PACKAGE_DIR.rglob('*.py'):
    parts = path.relative_to(names.PACKAGE_DIR.parent).with_suffix('').parts
    found.add('.'.join(parts).removesuffix('.__init__'))
  return found


@pytest.mark.parametrize('name', sorted(MODULES.keys() - ROOMS - LIBRARIES))
def test_a_program_is_there_and_can_be_started(name):
  spec = importlib.util.find_spec(MODULES[name])
  assert spec is not None
  assert spec.submodule_search_locations is None
  with open(spec.origin, encoding='utf-8') as file:
    assert "\nif __name__ == '__main__':\n" in file.read()


@pytest.mark.parametrize('name', sorted(ROOMS))
def test_a_room_is_a_folder_of_modules(name):
  spec = importlib.util.find_spec(MODULES[name])
  assert spec.submodule_search_locations == [
    str(names.PACKAGE_DIR / name.lower())
  ]


@pytest.mark.slow
def test_no_other_file_has_the_name_of_a_module_as_text():
  modules = list_modules() - {names.PACKAGE}
  assert set(MODULES.values()) <= modules
  found = [
    (path.name, node.lineno, node.value)
    for path in names.PACKAGE_DIR.rglob('*.py')
    if path.name != 'names.py'
    for node in ast.walk(ast.parse(path.read_text('utf-8')))
    if isinstance(node, ast.Constant) and node.value in modules
  ]
  assert found == []


def test_the_chief_is_called_as_launchers_call_it():
  tasks = jobs.make_tasks(['a:1'], ['b:1', 'c:1'], [])
  assert [task.name for task in tasks] == ['ps 0', names.CHIEF, 'worker 1']
