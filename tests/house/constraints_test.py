"""Versions: bounded in setup.py, and one of each in constraints.txt."""

import re
import shutil
import subprocess
import sys

import pytest

import distmnist
from tests.support.runner import REPO


def parse(version):
  return [int(part) for part in re.findall(r'\d+', version)[:3]]


def read_constraints():
  lines = (REPO / 'constraints.txt').read_text().splitlines()
  pairs = [line.split('==') for line in lines if not line.startswith('#')]
  return {name.lower(): version for name, version in pairs}


def test_what_is_installed_is_within_the_bounds():
  setup = (REPO / 'setup.py').read_text()
  found = re.findall(r"'([a-z-]+)(?:\[[a-z-]+\])?>=([\d.]+),<([\d.]+)'", setup)
  assert {name for name, _, _ in found} >= {
    *('tensorflow', 'numpy', 'absl-py', 'pooch', 'tqdm', 'tensorboard'),
    *('pyspark', 'matplotlib', 'pyyaml'),
  }
  constraints = read_constraints()
  for name, low, high in found:
    if name != 'torch':  # For one benchmark alone, and not among the tests'.
      assert parse(low) <= parse(constraints[name]) < parse(high), name


def test_no_requirement_of_the_program_is_unbounded():
  setup = (REPO / 'setup.py').read_text()
  (required,) = re.findall(r'install_requires=\[(.*?)\n  \]', setup, re.S)
  for word in re.findall(r"'([^']+)'", re.sub('#.*', '', required)):
    assert '<' in word, word


def test_scripts_and_image_use_the_constraints():
  assert 'constraints.txt' in (REPO / 'scripts/environment.sh').read_text()
  image = (REPO / 'Dockerfile').read_text()
  assert 'pip install --no-cache-dir -c constraints.txt' in image
  copied = ' '.join(re.findall('^COPY (.*) \\S+$', image, re.M)).split()
  kept = (REPO / '.dockerignore').read_text().splitlines()
  for path in copied:
    assert f'!{path.partition("/")[0]}' in kept, path


@pytest.mark.slow
def test_the_image_has_what_its_install_reads(tmp_path):
  before, _, _ = (REPO / 'Dockerfile').read_text().partition('\nRUN ')
  for line in re.findall('^COPY (.*)$', before, re.M):
    *sources, place = line.split()
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    for source in sources:
      if (REPO / source).is_dir():
        shutil.copytree(REPO / source, tmp_path / place, dirs_exist_ok=True)
      else:
        shutil.copy(REPO / source, tmp_path / place)
  done = subprocess.run(
    [sys.executable, 'setup.py', '--version'],
    cwd=tmp_path,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout.split() == [distmnist.__version__]
