"""Runs the notebooks of docs/tutorial and writes what they print into them.

  python scripts/tutorial.py                   runs all, and writes
  python scripts/tutorial.py 05 06             those whose names begin so
  python scripts/tutorial.py --check           runs all, and writes nothing

A notebook is a page of Markdown, as jupytext has it: each block of Python is a
cell. What a cell prints stands in a block of text below it, and what it draws
in pictures/. All notebooks share one kernel, which imports TensorFlow once.
"""

import argparse
import base64
import pathlib
import re
import subprocess

import jupytext
import nbclient
import nbformat
from jupyter_client import manager

FOLDER = pathlib.Path(__file__).resolve().parents[1] / 'docs' / 'tutorial'
# A cell, and below it what it printed and drew when the page was written.
CELL = re.compile(
  r'(^```python\n.*?^```\n)(?:\n```text\n.*?^```\n)?(?:\n!\[[^]]*\]\(pictures/[^)]*\)\n)?',
  re.M | re.S,
)
# A notebook sees neither the names nor the graph of the one before it.
_FORGET = """
%reset -f
import sys
if 'tensorflow' in sys.modules:
  sys.modules['tensorflow'].compat.v1.reset_default_graph()
"""
_TIMEOUT_SECS = 120  # Per cell.


def find(names=()):
  """Returns the pages (list of Path) whose names begin with one of `names`."""
  return [
    path
    for path in sorted(FOLDER.glob('[0-9]*.md'))
    if not names or path.name.startswith(tuple(names))
  ]


def run(paths):
  """Runs notebooks one after the other in one kernel.

  Args:
    paths: list of Path.

  Yields:
    (path, cells): cells is a list of (text, png), what a cell printed (str) and
    its picture (bytes), each empty if there is none.

  Raises:
    nbclient.exceptions.CellExecutionError: a cell failed.
  """
  kernel = manager.KernelManager()
  kernel.start_kernel(cwd=str(FOLDER), stderr=subprocess.DEVNULL)
  try:
    for path in paths:
      # Without its output, which jupytext would take for Markdown.
      notebook = jupytext.reads(CELL.sub(r'\1', path.read_text()), fmt='md')
      cells = [cell for cell in notebook.cells if cell.cell_type == 'code']
      forget = nbformat.v4.new_code_cell(_FORGET)
      notebook.cells = [forget, *notebook.cells]
      nbclient.NotebookClient(
        notebook, km=kernel, timeout=_TIMEOUT_SECS
      ).execute()
      yield path, [_read_outputs(cell.outputs) for cell in cells]
  finally:
    kernel.shutdown_kernel(now=True)


def _read_outputs(outputs):
  text, png = '', b''
  for output in outputs:
    if output.output_type == 'stream' and output.name == 'stdout':
      text += output.text
    elif 'image/png' in output.get('data', {}):
      png = base64.b64decode(output.data['image/png'])
  return text, png


def write(path, cells):
  """Puts into a page what `run` has found."""
  left = list(enumerate(cells))

  def add_outputs(match):
    index, (text, png) = left.pop(0)
    result = match[1]
    if text:
      result += f'\n```text\n{text.rstrip()}\n```\n'
    if png:
      picture = FOLDER / 'pictures' / f'{path.stem}_{index}.png'
      picture.parent.mkdir(exist_ok=True)
      picture.write_bytes(png)
      result += f'\n![What the cell draws](pictures/{picture.name})\n'
    return result

  path.write_text(CELL.sub(add_outputs, path.read_text()))


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('names', nargs='*', help='how their names begin')
  parser.add_argument('--check', action='store_true', help='write nothing')
  given = parser.parse_args()
  for path, cells in run(find(given.names)):
    print(path.name)
    if not given.check:
      write(path, cells)


if __name__ == '__main__':
  main()
