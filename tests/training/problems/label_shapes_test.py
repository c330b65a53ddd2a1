"""label_shapes: a label is compared with the output of its own example."""

import re

import pytest

from distmnist.common import cli
from distmnist.training.problems import problem_checks, problem_data
from tests.support import problems

HEAD = """
import numpy as np
import tensorflow.compat.v1 as tf

def load(split):
  return np.ones([8, 2]), {'flat': np.ones(8), 'column': np.ones([8, 1])}

def build(x, is_training):
  return x @ tf.get_variable('w', [2, 1])

"""


@pytest.fixture
def check(set_flags, tmp_path):
  def check_file(loss, batch_size=4):
    path = problems.write(tmp_path / 'net.py', HEAD + loss)
    found = problems.load(path, set_flags)
    train, _ = problem_data.load_training_splits(found)
    problem_checks.check_graph(found, train, batch_size)

  return check_file


LOSS = 'def loss(y, outputs):\n  return '


@pytest.mark.parametrize(
  'loss, place',
  [
    (f"{LOSS}tf.reduce_mean((y['flat'] - outputs) ** 2)", '12, in loss()'),
    (
      f"{LOSS}tf.reduce_mean(y['flat'] * (y['column'] - outputs) ** 2)",
      '12, in loss()',
    ),
    (
      f"{LOSS}tf.reduce_mean((outputs[:, 0] - y['column']) ** 2)",
      '12, in loss()',
    ),
    (
      f'{LOSS}outputs[:, 0]\n\ndef metrics(y, outputs):\n'
      "  hits = tf.equal(y['flat'], tf.round(outputs))\n"
      "  return {'hits': tf.reduce_mean(tf.cast(hits, tf.float32), 1)}",
      '15, in metrics()',
    ),
  ],
)
def test_labels_that_meet_every_output_are_refused(check, loss, place):
  with pytest.raises(cli.UsageError, match=re.escape(f'net.py:{place}: lab')):
    check(loss)


@pytest.mark.slow
@pytest.mark.parametrize(
  'loss',
  [
    "(y['flat'] - outputs[:, 0]) ** 2",
    "tf.reduce_mean((y['column'] - outputs) ** 2)",
    "tf.reduce_mean((y['flat'][:, None] - outputs) ** 2)",
    # Pairs of examples, as a ranking loss has.
    "tf.reduce_mean((y['column'] - y['flat']) * (outputs - outputs[:, 0]))",
  ],
)
def test_labels_that_meet_their_own_outputs_are_taken(check, loss):
  check(LOSS + loss)


def test_one_example_has_no_other_output(check):
  check(f"{LOSS}tf.reduce_mean((y['flat'] - outputs) ** 2)", batch_size=1)
