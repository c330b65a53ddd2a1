"""What another package adds by entry points is there as our own files are."""

import pytest

from tests.support import programs
from tests.support.paths import REPO

_NET = """
import tensorflow.compat.v1 as tf
from absl import flags

_SCALE = flags.DEFINE_float('their_scale', 1, 'By what the logits are scaled.')

def make(num_classes):
  def build(images, is_training):
    x = tf.reshape(images, [-1, 784])
    return _SCALE.value * x @ tf.get_variable('theirs', [784, num_classes])
  return build
"""
_RULE = """
from distmnist.strategies import async_sgd

def make(cluster):
  return Renamed(cluster)

class Renamed(async_sgd.AsyncSgd):
  pass
"""
_FILES = {
  'their_net.py': _NET,
  'their_rule.py': _RULE,
  'their_problem.py': (REPO / 'examples' / 'regression.py').read_text(),
  'theirs-1.0.dist-info/METADATA': 'Name: theirs\nVersion: 1.0\n',
  'theirs-1.0.dist-info/entry_points.txt': """
[distmnist.models]
linear = their_net
[distmnist.strategies]
renamed = their_rule
[distmnist.problems]
curve = their_problem
""",
}


@pytest.fixture
def run(tmp_path):
  """Returns run(program, *words) -> what it prints, with the package."""
  for name, text in _FILES.items():
    path = tmp_path / 'site' / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(text)

  def run_program(program, *words):
    found = f'{tmp_path}/site:{REPO}'
    module = f'distmnist.{program}'
    return programs.run(module, *words, cwd=tmp_path, PYTHONPATH=found)[0]

  return run_program


@pytest.mark.daily
@pytest.mark.slow
def test_a_net_and_a_rule_of_another_package_are_trained(run):
  output = run(
    'launch',
    *('--num_ps=1', '--num_workers=1', '--', '--dataset=synthetic'),
    *('--model=linear', '--their_scale=2', '--strategy=renamed'),
    *('--train_steps=20', '--synthetic_train_images=6000'),
  )
  assert 'renamed, 1 ps, 1 worker; linear on synthetic' in output
  assert 'test accuracy' in output


@pytest.mark.daily
@pytest.mark.slow
def test_a_problem_of_another_package_has_a_name(run):
  output = run('train', '--problem=curve', '--units=8', '--train_steps=5')
  assert 'test rmse' in output
