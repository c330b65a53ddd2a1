"""What `pip install` brings: built here, without a network, and looked into."""

import ast
import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib import metadata

import pytest
from packaging import requirements, utils

from tests.support.paths import REPO


@pytest.fixture(scope='module')
def built(tmp_path_factory):
  """The folder with the wheel and the sdist."""
  folder = tmp_path_factory.mktemp('source')
  # Not in the checkout: building leaves its own files behind.
  for name in ('distmnist', 'configs', 'docs', 'scripts'):
    ignore = shutil.ignore_patterns('__pycache__')
    shutil.copytree(REPO / name, folder / name, ignore=ignore)
  for name in ('setup.py', 'pyproject.toml', 'README.md', 'LICENSE'):
    shutil.copy(REPO / name, folder)
  shutil.copy(REPO / 'MANIFEST.in', folder)
  author = '-c', 'user.name=n', '-c', 'user.email=e'
  for words in (['init', '-q'], ['add', 'distmnist'], ['commit', '-qm', 'm']):
    subprocess.run(['git', *author, *words], cwd=folder, check=True)
  subprocess.run(
    [sys.executable, 'setup.py', '-q', 'bdist_wheel', 'sdist'],
    cwd=folder,
    capture_output=True,
    check=True,
  )
  return folder / 'dist'


@pytest.fixture(scope='module')
def wheel(built):
  (path,) = built.glob('*.whl')
  with zipfile.ZipFile(path) as file:
    yield file


def read(wheel, name):
  (path,) = [n for n in wheel.namelist() if n.endswith(f'.dist-info/{name}')]
  return wheel.read(path).decode()


@pytest.mark.slow
def test_all_configs_and_modules_are_in_the_wheel(wheel):
  names = set(wheel.namelist())
  configs = {
    f'distmnist/{path.relative_to(REPO)}'
    for path in (REPO / 'configs').rglob('*.flags')
  }
  modules = {
    str(path.relative_to(REPO)) for path in (REPO / 'distmnist').rglob('*.py')
  }
  assert configs
  assert configs | modules <= names
  assert {
    'distmnist/launching/train_flags.json',
    'distmnist/py.typed',
    'distmnist/watching/metrics.schema.json',
    'distmnist/watching/report.html.jinja',
  } <= names
  assert not [n for n in names if n.startswith(('tests/', 'configs/'))]


@pytest.mark.slow
def test_what_is_built_knows_its_commit(wheel, built):
  (path,) = built.glob('*.tar.gz')
  with tarfile.open(path) as file:
    (name,) = [n for n in file.getnames() if n.endswith('/commit.txt')]
    of_sdist = file.extractfile(name).read()
  assert of_sdist == wheel.read('distmnist/commit.txt')
  assert re.fullmatch(rb'[0-9a-f]{40}\n', of_sdist)


@pytest.mark.slow
def test_the_license_is_there_whole(wheel, built):
  text = (REPO / 'LICENSE').read_text()
  assert 'Apache License' in text
  assert 'Version 2.0, January 2004' in text
  (path,) = [n for n in wheel.namelist() if n.endswith('LICENSE')]
  assert wheel.read(path).decode() == text
  (path,) = built.glob('*.tar.gz')
  with tarfile.open(path) as file:
    names = {name.split('/', 1)[-1] for name in file.getnames()}
  assert {'LICENSE', 'configs/quickstart.flags', 'docs/cluster.md'} <= names


@pytest.mark.slow
def test_each_program_has_a_command(wheel):
  programs = {
    path.stem
    for path in (REPO / 'distmnist').glob('*.py')
    if "if __name__ == '__main__':\n  run()" in path.read_text()
  }
  found = re.findall(
    r'^distmnist-(\w+) = distmnist\.\1:run$',
    read(wheel, 'entry_points.txt'),
    re.M,
  )
  assert {*found, 'check_flags', '__main__'} == programs


@pytest.mark.slow
def test_an_index_page_has_no_broken_link(wheel):
  metadata = email.message_from_string(read(wheel, 'METADATA'))
  text = metadata.get_payload()
  assert '# distmnist' in text
  assert not re.search(r'\]\((?!https?://)', text)
  assert metadata['License'] == 'Apache-2.0'
  assert metadata['Author'] == 'distmnist developers'
  assert metadata.get_all('Classifier')


@pytest.mark.slow
def test_a_config_is_found_without_a_checkout(wheel, tmp_path):
  wheel.extractall(tmp_path / 'site')
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'distmnist.launch', '--dry_run', '--'),
      '--flagfile=configs/strategies/easgd.flags',
    ],
    cwd=tmp_path,
    env={**os.environ, 'PYTHONPATH': str(tmp_path / 'site')},
    capture_output=True,
    text=True,
  )
  assert (done.returncode, done.stderr) == (0, '')
  assert '--flagfile=configs/strategies/easgd.flags' in done.stdout


# In the kernel of an environment that has the wheel and what it asks for.
_NOTEBOOK = """
import nbclient, nbformat, sys
cells = [nbformat.v4.new_code_cell(text) for text in sys.argv[1:]]
book = nbformat.v4.new_notebook(cells=cells)
nbclient.NotebookClient(book, timeout=300, kernel_name='python3').execute()
*before, last = book.cells
for output in [output for cell in before for output in cell.outputs]:
  if output.get('name') == 'stderr':
    print(output['text'], file=sys.stderr)
print(last.outputs[0]['text'])
"""


def read_first_code(page):
  return (
    (REPO / 'docs' / page).read_text().split('```python\n')[1].split('```')[0]
  )


def test_the_page_of_python_begins_with_eight_statements():
  assert len(ast.parse(read_first_code('python.md')).body) == 8


def find_needed(*names):
  """Returns the distributions that pip would install for them, by name."""
  found, left = {}, [requirements.Requirement(name) for name in names]
  while left:
    wanted = left.pop()
    name = utils.canonicalize_name(wanted.name)
    extras = {'', *wanted.extras}
    if extras <= found.setdefault(name, set()):
      continue
    found[name] |= extras
    left += [
      needed
      for needed in map(requirements.Requirement, metadata.requires(name) or [])
      if not needed.marker
      or any(needed.marker.evaluate({'extra': extra}) for extra in extras)
    ]
  return [metadata.distribution(name) for name in found]


def link_distributions(distributions, site):
  """Puts links to what they have installed, and to nothing else, in `site`."""
  for distribution in distributions:
    tops = {path.parts[0] for path in distribution.files}
    for top in tops - {'..', '__pycache__'}:
      # Two of them may share a folder, such as google.
      if not os.path.lexists(site / top):
        (site / top).symlink_to(distribution.locate_file(top))


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_notebook_trains_where_nothing_but_the_wheel_is(built, tmp_path):
  """What the wheel asks for comes from here: TensorFlow is not copied."""
  (path,) = built.glob('*.whl')
  venv.create(tmp_path / 'env')
  python = tmp_path / 'env' / 'bin' / 'python'
  (site,) = (tmp_path / 'env' / 'lib').glob('python*/site-packages')
  with zipfile.ZipFile(path) as file:
    file.extractall(site)
    asked = email.message_from_string(read(file, 'METADATA'))
  link_distributions(
    find_needed(
      *(r for r in asked.get_all('Requires-Dist') if 'extra ==' not in r),
      *('nbclient', 'ipykernel'),
    ),
    site,
  )
  env = {k: v for k, v in os.environ.items() if not k.startswith('PYTHON')}
  env.pop('VIRTUAL_ENV', None)
  check = 'print(report.train_metrics, model.evaluate(x, y, verbose=0))'
  done = subprocess.run(
    [python, '-c', _NOTEBOOK, read_first_code('python.md'), check],
    cwd=tmp_path,
    env=env,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  reported, (loss, mae) = map(
    ast.literal_eval, re.findall(r'{.*}|\[.*\]', done.stdout)
  )
  assert [reported['loss'], reported['mae']] == pytest.approx(
    [loss, mae], rel=1e-4
  )
  assert loss < 0.2
  assert 'Skipping variable loading' not in done.stderr
