"""What a step passes through is made in one place, in one order.

No hook, call-back or global is wired behind the reader's back.
"""

import ast
import re

import pytest

from distmnist.common.names import PACKAGE_DIR
from distmnist.training import worker_loop

SOURCES = {
  str(path.relative_to(PACKAGE_DIR)): path.read_text(encoding='utf-8')
  for path in sorted(PACKAGE_DIR.rglob('*.py'))
}
# The record of a graph, and two kinds of variables of tf.get_variable.
COLLECTIONS = {
  'graph_record.py',
  'tables/sparse_table.py',
  'transport/variable_lists.py',
}


def find_all(pattern):
  """Returns {file: matches} of a regular expression in the package's code."""
  found = {name: re.findall(pattern, text) for name, text in SOURCES.items()}
  return {name: matches for name, matches in found.items() if matches}


def test_all_hooks_are_put_in_order_in_one_list():
  [name] = find_all(r'(?m)^ORDER = \(')
  assert name == 'training/worker_loop.py'
  assert set(find_all(r'order_hooks\(')) == {name, 'training/own_loop.py'}
  # No worker both saves and starts late, or has both a script's hooks and
  # batches of ours.
  assert len(worker_loop.ORDER) - 2 <= 8
  assert set(find_all(r'return tf.train.MonitoredTrainingSession\(')) == {
    'lifecycle/session.py'
  }
  lists = find_all(r'hooks \+= |hooks\.(?:append|extend|insert)\(')
  assert not lists, f'a hook is added out of order: {lists}'


def test_a_session_is_changed_in_one_place():
  assert find_all(r'session\.run = ') == {
    'lifecycle/liveness.py': ['session.run = ']
  }


@pytest.mark.slow
def test_no_call_back_is_set_from_outside():
  """A function given to an object later is an argument, or a plain call."""
  set_later = []
  for name in find_all('lambda'):
    for node in ast.walk(ast.parse(SOURCES[name])):
      if not isinstance(node, ast.Assign):
        continue
      for target in node.targets:
        is_own = not isinstance(target, ast.Attribute) or (
          isinstance(target.value, ast.Name) and target.value.id == 'self'
        )
        if not is_own and isinstance(node.value, ast.Lambda):
          set_later.append(f'{name}: {ast.unparse(node)}')
  assert set_later == []


def test_few_values_travel_in_collections_and_none_in_globals():
  collections = find_all(r"(?m)^_?[A-Z_]+ = 'distmnist/[a-z_]+'")
  assert set(collections) == COLLECTIONS
  assert all(len(names) == 1 for names in collections.values())
  assert not find_all(r'global _of_process')
