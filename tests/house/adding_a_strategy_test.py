"""docs/adding_a_strategy.md: its two files are taken out of it, and run."""

import collections
import os
import re
import shutil
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from tests.support.imports import check_imports
from tests.support.paths import REPO

PAGE = REPO / 'docs' / 'adding_a_strategy.md'
FILES = [
  'distmnist/strategies/sign_sgd.py',
  'tests/strategies/sign_sgd_test.py',
]
# A path and a colon on a line, then a block of Python.
BLOCK = re.compile(r'^`([\w/]+\.py)`:\n\n```python\n(.*?)^```$', re.M | re.S)
TEST_FILES = [
  'tests/strategies/sign_sgd_test.py',
  'tests/strategies/battery_test.py',
  'tests/strategies/oracles_test.py',
  'tests/house/layout_test.py',
]


def read_blocks():
  """Returns [(path, code)] of the page, in its order."""
  return BLOCK.findall(PAGE.read_text('utf-8'))


@pytest.fixture(scope='module')
def tree(tmp_path_factory):
  """A copy of what tests need, with the files of the page in it."""
  folder = tmp_path_factory.mktemp('tree')
  for name in ('distmnist', 'tests'):
    shutil.copytree(
      REPO / name,
      folder / name,
      ignore=shutil.ignore_patterns('__pycache__'),
    )
  shutil.copy(REPO / 'pyproject.toml', folder)
  for path, code in read_blocks():
    assert not (folder / path).exists(), f'{path} is there already'
    (folder / path).write_text(code, 'utf-8')
  return folder


def run(tree, *words):
  """Runs `python -m words...` in the tree; returns its output."""
  env = {name: v for name, v in os.environ.items() if 'PYTEST' not in name}
  # The tree itself comes first, also before an installed distmnist.
  found = subprocess.run(
    [sys.executable, '-m', *words],
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    timeout=500,
    cwd=tree,
    env={**env, 'OPENBLAS_NUM_THREADS': '1'},
  )
  assert found.returncode == 0, found.stdout
  return found.stdout


def test_the_page_has_a_rule_and_its_test():
  assert [path for path, _ in read_blocks()] == FILES
  assert PAGE.read_text('utf-8').count('```python\n') == len(FILES)


@pytest.mark.slow
def test_ruff_has_nothing_to_say(tree):
  run(tree, 'ruff', 'check', '--no-cache', *FILES)
  run(tree, 'ruff', 'format', '--no-cache', '--check', *FILES)


@pytest.mark.slow
def test_it_imports_what_a_rule_may(tree):
  check_imports(tree)


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
  'chosen, num_battery, num_oracles',
  [('two_workers or random_steps', 1, 1), ('battery or oracles', 11, 4)],
  ids=['some', 'all'],
)
def test_its_own_test_and_those_of_all_rules_pass(
  tree, chosen, num_battery, num_oracles
):
  run(
    tree,
    'pytest',
    # More processes would import TensorFlow once more; few rules run every day.
    *('-q', '--numprocesses=0', '--all'),
    '-p',
    'no:cacheprovider',
    '--junit-xml=result.xml',
    '-k',
    f'sign_sgd_test or sign_sgd and ({chosen}) or each_program',
    *TEST_FILES,
  )
  suite = ElementTree.parse(tree / 'result.xml').getroot()[0]
  assert [suite.get(n) for n in ('errors', 'failures', 'skipped')] == ['0'] * 3
  counts = collections.Counter(
    case.get('classname').split('.')[-1] for case in suite.iter('testcase')
  )
  num_own = read_blocks()[1][1].count('\ndef test_')
  assert counts['sign_sgd_test'] >= num_own >= 3
  assert counts['battery_test'] >= num_battery
  assert counts['oracles_test'] >= num_oracles
  assert counts['layout_test'] == 1


@pytest.mark.slow
def test_it_trains_by_its_name(tree):
  output = run(
    tree,
    'distmnist.train',
    '--strategy=sign_sgd',
    '--model=softmax',
    '--dataset=synthetic',
    '--synthetic_train_images=500',
    '--synthetic_test_images=100',
    '--validation_images=0',
    '--train_steps=5',
    '--intra_op_parallelism_threads=1',
  )
  assert 'worker 0 at this process: sign_sgd, 0 ps, 1 worker' in output
  assert re.search(r'^work +5 steps, ', output, re.M)
  assert re.search(r'^traffic +5 pushes, ', output, re.M)
