"""The pages: their commands parse, and what they name is there."""

import re
import shlex
import subprocess
import sys

import pytest

from tests.support import programs as programs_lib
from tests.support.paths import REPO

PAGES = [*sorted(REPO.glob('*.md')), *sorted((REPO / 'docs').rglob('*.md'))]
IDS = [str(page.relative_to(REPO)) for page in PAGES]
# A command of a page, to the end of its line, of its `...` or of its pipe.
_COMMAND = re.compile(r'python -m distmnist\.(\w+)((?: [^`#|>\n]+)?)')
# What the reader is to replace.
_NAMES = {
  'my_file.py': 'examples/regression.py',
  '=sign_sgd': '=async_sgd',
  '=P ': '=1 ',
  '=N ': '=1 ',
}
_MODULE = re.compile(
  r'`((?:distmnist/|tests/|benchmarks/|scripts/)?\w+/[\w/]+\.py)`'
)

_DEFINED = re.compile(r"DEFINE_\w+\(\s*'(\w+)'")
# What one process of ours gives to another.
_OUR_OWN = {'fed_dir', 'fitted_dir', 'main'}


def read_commands(text):
  """Yields (program, words) of the complete commands of a page."""
  for name, word in _NAMES.items():
    text = text.replace(name, word)
  for program, words in _COMMAND.findall(re.sub(r'\\\n\s*', '', text)):
    # $HOSTS and ... are for the reader to fill in.
    if '$' not in words and '...' not in words:
      yield program, shlex.split(words)


# Of each page every run has the first.
COMMANDS = [
  pytest.param(
    *(program, words),
    id=f'{name} {program} {i}',
    marks=[pytest.mark.daily] * (i > 0),
  )
  for name, page in zip(IDS, PAGES, strict=True)
  for i, (program, words) in enumerate(read_commands(page.read_text()))
]


@pytest.fixture(scope='module')
def programs():
  return programs_lib.start_forked()


def check(programs, program, words):
  """Has a program read its flags, and do nothing."""
  done = programs.run(program, [*words, '--help'], REPO)
  assert done['code'] == 0, done['err']


def test_there_are_commands():
  assert len(COMMANDS) > 30


@pytest.mark.slow
@pytest.mark.parametrize('program, words', COMMANDS)
def test_a_command_of_a_page_is_understood(programs, program, words):
  own, *others = [part.split('\0') for part in '\0'.join(words).split('\0--\0')]
  own = [word for word in own if word and word != '--']
  if words[:1] == ['--']:
    own, others = [], [words[1:]]
  check(programs, program, own)
  for flags in others:
    if program in ('launch', 'sweep'):
      check(programs, 'train', flags)


def list_anchors(page):
  """Returns the anchors of a page's headings, as GitHub makes them."""
  text = re.sub(r'^```.*?^```', '', page.read_text(), flags=re.M | re.S)
  return {
    re.sub(r'[^\w\- ]', '', title.strip().lower()).replace(' ', '-')
    for title in re.findall(r'^#+ (.*)', text, flags=re.M)
  }


@pytest.mark.parametrize('page', PAGES, ids=IDS)
def test_an_anchor_is_where_github_has_it_too(page):
  for path, anchor in re.findall(
    r'\]\(([\w./-]*\.md)?#([\w-]+)\)', page.read_text()
  ):
    if path != 'flags.md':  # Made with the site.
      other = page.parent / path if path else page
      assert anchor in list_anchors(other), f'{path}#{anchor}'


@pytest.mark.parametrize('page', PAGES, ids=IDS)
def test_what_a_page_links_to_and_names_is_there(page):
  text = re.sub(r'^```.*?^```', '', page.read_text(), flags=re.M | re.S)
  for path in re.findall(r'\]\(([\w./-]+)(?:#[\w-]*)?\)', text):
    if path not in ('index.md', 'flags.md'):  # Made with the site.
      assert (page.parent / path).exists(), path
  if page.name == 'adding_a_strategy.md':
    return  # It shows how to make them.
  for path in _MODULE.findall(page.read_text().replace('NAME', 'easgd')):
    found = REPO / path, REPO / 'distmnist' / path
    assert any(p.exists() for p in found), path


def test_each_part_of_a_life_is_where_its_page_says():
  page = (REPO / 'docs' / 'life.md').read_text()
  rows = re.findall(r'^\| \d+ \|.*\| (.*?) \| (.*?) \|$', page, re.M)
  # A step, a checkpoint, a launch, a restart.
  assert len(rows) == 16 + 10 + 16 + 9
  for names, files in rows:
    code = ''.join(
      (REPO / 'distmnist' / path).read_text()
      for path in re.findall(r'`(.*?)`', files)
    )
    for name in re.findall(r'`(?:\w+\.)?(\w+)`', names):
      assert re.search(rf'^ *(def |class |){name}\b[ (:=]', code, re.M), name


@pytest.mark.slow
def test_the_errors_of_the_page_are_those_of_the_program():
  page = (REPO / 'docs' / 'errors.md').read_text()
  ours = page[: page.index("\n## TensorFlow's own")]
  cells = re.findall(r'^\| (.*?) \|', ours, re.M)
  lines = [line for cell in cells for line in re.findall('`(.*?)`', cell)]
  assert len(lines) > 30
  files = (
    *(REPO / 'distmnist').rglob('*.py'),
    REPO / 'tests/system/bad_inputs.txt',
  )
  known = '\0'.join(path.read_text() for path in files)
  known = re.sub(r"'\s*\n\s*f?'", '', known)  # The parts of a text.

  def is_known(line):
    """Whether three of its words in a row are of the program."""
    words = line.split()
    threes = [' '.join(words[i : i + 3]) for i in range(len(words) - 2)]
    return any(each in known for each in threes)

  assert [x for x in lines if len(x.split()) > 2 and not is_known(x)] == []


def test_each_promise_is_held_by_a_test():
  page = (REPO / 'docs' / 'promises.md').read_text()
  rows = re.findall(r'^\| .* \| `(.*)::(.*)` \|$', page, re.M)
  assert len(rows) > 50
  missing = [
    f'{path}::{name}'
    for path, name in rows
    if not (file := REPO / 'tests' / path).is_file()
    or f'\ndef {name}(' not in file.read_text()
  ]
  assert missing == []


def test_the_reference_names_every_flag():
  defined = {
    name
    for path in (REPO / 'distmnist').rglob('*.py')
    for name in _DEFINED.findall(path.read_text())
  }
  assert len(defined) > 150
  text = (REPO / 'docs' / 'reference.md').read_text()
  named = set(re.findall(r'--(\w+)', text))
  assert sorted(defined - _OUR_OWN - named) == []


def test_pages_name_all_that_can_be_run():
  scripts = sorted((REPO / 'scripts').glob('*.sh'))
  paths = [*scripts, *sorted((REPO / 'examples').glob('*.py'))]
  paths += [
    path
    for path in (REPO / 'benchmarks').glob('*.py')
    if f'python benchmarks/{path.name}' in path.read_text()
  ]
  texts = {path: path.read_text() for path in [*PAGES, *scripts]}
  unnamed = [
    path.name
    for path in paths
    if not any(f'/{path.name}' in texts[x] for x in texts if x != path)
  ]
  assert unnamed == []


def test_the_readme_is_read_in_one_sitting():
  assert len((REPO / 'README.md').read_text().splitlines()) <= 150


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_site_builds_without_a_warning(tmp_path):
  pytest.importorskip('material', reason='needs pip install -e .[docs]')
  done = subprocess.run(
    [sys.executable, '-m', 'mkdocs', 'build', '--strict', '-q', '-d', tmp_path],
    cwd=REPO,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  flags = (tmp_path / 'flags' / 'index.html').read_text()
  assert '--strategy' in flags and '--max_restarts' in flags
  assert (tmp_path / 'source' / 'examples' / 'regression.py').is_file()
