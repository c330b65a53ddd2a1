"""The flags that a user's problem defines, known without importing it.

Read from the definitions in its file, like those of train. What is not seen
there is known to train itself, which imports the file: a flag that comes from a
module of the file's own, for example.
"""

import ast
import contextlib
import importlib.util
import os
import pathlib
import re
import sys

from distmnist.common import names, registry

_LINES = re.MULTILINE | re.DOTALL
# In source that `ast` has written: each statement on one line, no comments.
_DEFINITION = re.compile(
  r'^ *(?:[^=\n]+ = )?(?:[\w.]+\.)?(DEFINE_\w+\(.*\))$', re.MULTILINE
)


class Names(dict):
  """What a definition may name: `known`, and literals of its own file."""

  def __init__(self, known, source):
    """
    Args:
      known: {name: value}.
      source: str, that of the file.
    """
    super().__init__(known)
    self._source = source

  def __missing__(self, name):
    found = re.search(
      rf'^{name} = (.*?)(?=^\S)(?:[)\]}}]$)?', self._source, _LINES
    )
    if found is None:
      raise KeyError(name)
    return ast.literal_eval(found[0].partition(' = ')[2])


def define(named, known):
  """Runs the definitions of a problem that are literals.

  Args:
    named: str, the value of --problem, or None.
    known: {name: value} for Names, in which `flags` stands for absl.flags.
  """
  source = _read(named)
  for text in _DEFINITION.findall(source):
    with contextlib.suppress(Exception):  # The user's code may raise anything.
      code = compile(f'flags.{text}', 'the flags of --problem', 'exec')
      exec(code, {}, Names(known, source))


def _read(named):
  """Returns the source (str) of a problem; '' if it is not found or no Python.

  Args:
    named: str, the value of --problem, or None.
  """
  path = registry.find(names.PROBLEMS).get(named, named or '')
  if path.startswith(f'{names.PACKAGE}.'):
    with contextlib.suppress(AttributeError, ImportError):  # There is none.
      path = importlib.util.find_spec(path).origin
  if not path.endswith('.py'):
    path = f'{path.replace(".", os.sep)}.py'
  for folder in ['', *sys.path]:
    found = os.path.join(folder, os.path.expanduser(path))
    with contextlib.suppress(OSError, ValueError, SyntaxError):
      return ast.unparse(ast.parse(pathlib.Path(found).read_bytes()))
  return ''
