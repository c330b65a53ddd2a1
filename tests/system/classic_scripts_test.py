"""Scripts in the style of the old tutorials, and their ports to run_task."""

import ast
import difflib
import io
import re
import tokenize

import pytest

from tests.support import programs
from tests.support.paths import REPO

FOLDER = REPO / 'examples' / 'classic'
PORTS = {
  'sigmoid': ['--num_ps=1', '--learning_rate=1'],
  'cnn': ['--num_ps=2', '--strategy=sync_sgd', '--optimizer=adam'],
}


def read_code(path):
  """Returns the lines of a module, without comments, docstring and blanks."""
  text = path.read_text()
  lines = text.splitlines()
  for token in tokenize.generate_tokens(io.StringIO(text).readline):
    if token.type == tokenize.COMMENT:
      row, column = token.start
      lines[row - 1] = lines[row - 1][:column]
  docstring = ast.parse(text).body[0]
  return [
    line.rstrip() for line in lines[docstring.end_lineno :] if line.strip()
  ]


@pytest.mark.parametrize('name', PORTS)
def test_few_lines_change_and_the_page_shows_them(name):
  classic, port = (
    read_code(FOLDER / f'{name}{end}.py') for end in ('', '_port')
  )
  changes = difflib.ndiff(classic, port)
  new = [x[2:] for x in changes if x.startswith('+ ')]
  assert 5 < len(new) <= 10
  page = (REPO / 'docs' / 'coming_from.md').read_text()
  for line in new:
    assert line.strip() in page


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize('name', PORTS)
def test_a_port_learns_on_a_cluster(name):
  cluster = [x for x in PORTS[name] if x.startswith('--num_')]
  words = [x for x in PORTS[name] if x not in cluster]
  output, _ = programs.run(
    'distmnist.launch',
    f'--module=examples.classic.{name}_port',
    *(*cluster, '--num_workers=2', '--', *words),
  )
  [loss] = re.findall(r'^worker 0: loss (\S+) at step \d+$', output, re.M)
  assert float(loss) < 0.25
