"""Sizes: what outgrows one of these limits most often holds two ideas."""

import ast

from tests.support.paths import REPO

PACKAGE = REPO / 'distmnist'
MOST_LINES = 250
MOST_LINES_OF_A_STRATEGY = 120
MOST_FUNCTION_LINES = 60
MOST_CLASS_LINES = 150
MOST_PARAMETERS = 7


def count_parameters(function):
  """Without self and cls; `*args` and `**kwargs` take any number."""
  args = function.args
  names = [a.arg for a in args.posonlyargs + args.args + args.kwonlyargs]
  return len([name for name in names if name not in ('self', 'cls')])


def find_large(path, source):
  """Returns the set of (path, name, or '' for the file) over a limit."""
  is_strategy = path.startswith('strategies/')
  most = MOST_LINES_OF_A_STRATEGY if is_strategy else MOST_LINES
  found = {(path, '')} if len(source.splitlines()) > most else set()
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.ClassDef):
      most, num_parameters = MOST_CLASS_LINES, 0
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
      most, num_parameters = MOST_FUNCTION_LINES, count_parameters(node)
    else:
      continue
    num_lines = node.end_lineno - node.lineno + 1
    if num_lines > most or num_parameters > MOST_PARAMETERS:
      found.add((path, node.name))
  return found


def test_nothing_has_outgrown_its_limit():
  found = set()
  for path in PACKAGE.rglob('*.py'):
    source = path.read_text('utf-8')
    found |= find_large(str(path.relative_to(PACKAGE)), source)
  assert not found
