"""docs/tutorial: each notebook runs, and what it asserts is so."""

import os
import re
import subprocess
import sys

import pytest

from scripts import tutorial
from tests.support.paths import REPO

PAGES = tutorial.find()


def test_the_pages_are_numbered_and_lead_on():
  assert [page.name[:2] for page in PAGES] == [
    f'{i:02}' for i in range(1, len(PAGES) + 1)
  ]
  for page, following in zip(PAGES, PAGES[1:], strict=False):
    assert f'({following.name})' in page.read_text(), page.name


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.stem)
def test_a_page_is_a_notebook_with_what_it_prints(page):
  text = page.read_text()
  assert '\n## Exercise\n' in text and '\n### Answer\n' in text
  words = re.sub(r'^```.*?^```', '', text, flags=re.M | re.S).split()
  assert len(words) < 2000, 'more than ten minutes of reading'
  assert '\n```text\n' in text, f'scripts/tutorial.py {page.stem[:2]}'
  for picture in re.findall(r'\((pictures/.*?)\)', text):
    assert (page.parent / picture).is_file()
  # Up to the eighth all is shown in plain TensorFlow first.
  if page.name < '09':
    plain, ours = text.split('\n## The same with distmnist\n')
    assert 'import distmnist' not in plain and 'from distmnist' not in plain
    assert 'distmnist' in ours


def test_what_cells_print_and_draw_is_replaced(tmp_path, monkeypatch):
  monkeypatch.setattr(tutorial, 'FOLDER', tmp_path)
  page = tmp_path / '01_page.md'
  page.write_text(
    'Text.\n\n```python\nx = 1\n```\n\n```text\nold\n```\n\nMore.\n\n'
    '```python\ny\n```\n\n![What](pictures/old.png)\n\nEnd.\n'
  )
  tutorial.write(page, [('new\n', b''), ('', b'PNG')])
  assert page.read_text() == (
    'Text.\n\n```python\nx = 1\n```\n\n```text\nnew\n```\n\nMore.\n\n'
    '```python\ny\n```\n\n![What the cell draws](pictures/01_page_1.png)\n\n'
    'End.\n'
  )
  assert (tmp_path / 'pictures' / '01_page_1.png').read_bytes() == b'PNG'
  tutorial.write(page, [('', b''), ('', b'')])
  assert page.read_text() == (
    'Text.\n\n```python\nx = 1\n```\n\nMore.\n\n```python\ny\n```\n\nEnd.\n'
  )


# Three of servers in the notebook itself, and the rest.
SOME = '03', '05', '08'
REST = tuple(page.name[:2] for page in PAGES if page.name[:2] not in SOME)


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize('numbers', [SOME, REST], ids=['some', 'rest'])
def test_notebooks_run(numbers):
  """One kernel for several, so that TensorFlow is imported once."""
  # Without what distmnist.runtime has set here: a notebook begins without it.
  env = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(('GRPC_', 'TF_'))
  }
  done = subprocess.run(
    [sys.executable, 'scripts/tutorial.py', '--check', *numbers],
    cwd=REPO,
    env=env,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  assert [name[:2] for name in done.stdout.split()] == [*numbers]
