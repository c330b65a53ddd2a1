"""final_model: what a training leaves beside its checkpoints."""

import logging
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.training import final_model

pytestmark = pytest.mark.usefixtures('set_flags')


class Problem:
  """Keeps what it is told to save."""

  has_keras_model = True

  def __init__(self, error=None):
    self.saved = None
    self._error = error

  def save_model(self, values, path):
    if self._error:
      raise self._error
    self.saved = values, path


def make_live(values, has_tables=False):
  """Returns what stands for a live_evaluation.LiveEvaluation."""
  return types.SimpleNamespace(values=values, has_tables=has_tables)


def test_the_last_values_are_written(tmp_path, caplog):
  problem, values = Problem(), {'w': np.ones(2)}
  with caplog.at_level(logging.INFO):
    final_model.write(problem, str(tmp_path), make_live(values))
  assert problem.saved == (values, str(tmp_path / 'model.keras'))
  assert str(tmp_path / 'model.keras') in caplog.text


def test_those_of_the_best_checkpoint_are_if_there_is_one(tmp_path):
  with tf.Graph().as_default(), tf.Session() as session:
    tf.get_variable('w', initializer=3.0)
    session.run(tf.global_variables_initializer())
    path = tf.train.Saver().save(session, str(tmp_path / 'model.ckpt'), 7)
  problem = Problem()
  final_model.write(problem, str(tmp_path), path)
  assert problem.saved[0] == {'w': 3.0}
  # A table is not at hand; the last checkpoint has it.
  tables = make_live({}, has_tables=True)
  final_model.write(problem, str(tmp_path), tables)
  assert problem.saved[0] == {'w': 3.0}


def test_a_model_that_keras_cannot_save_is_named(tmp_path, caplog):
  problem = Problem(NotImplementedError('\nNet must override\nget_config()'))
  final_model.write(problem, str(tmp_path), make_live({'w': 1.0}))
  [line] = caplog.messages
  assert 'model.keras is not written' in line and '\n' not in line
  assert 'Net must override get_config(); the checkpoints' in line


def test_a_full_disk_is_one_line(tmp_path):
  problem = Problem(OSError(28, 'No space left on device'))
  with pytest.raises(cli.RunError, match='No space left on device; the check'):
    final_model.write(problem, str(tmp_path), make_live({}))
