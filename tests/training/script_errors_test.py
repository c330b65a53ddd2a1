"""script_errors: whose mistake an error is, and the line that names it."""

import types

import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.training import script_checks, script_errors


class _OurOp:
  name, traceback, _original_op, graph = 'mean', (), None, None


def _explain(work, script=__file__):
  with script_errors.explained(script):
    work()


def test_a_mistake_of_the_script_is_one_line_that_names_its_own():
  def train():
    raise ValueError('not so\nand more')

  said = r'^script_errors_test\.py:\d+, in train\(\): ValueError: not so$'
  with pytest.raises(cli.RunError, match=said):
    _explain(train)


def test_what_a_library_refuses_is_the_scripts():
  with pytest.raises(cli.RunError, match=r'in <lambda>\(\): TypeError'):
    _explain(lambda: tf.nn.relu())


def test_a_mistake_of_ours_stays_as_it_is():
  with pytest.raises(AttributeError):
    _explain(lambda: script_checks.check_places(None))


def test_what_is_one_line_already_stays():
  def refuse():
    raise cli.UsageError('no')

  with pytest.raises(cli.UsageError, match='^no$'):
    _explain(refuse)


def test_an_op_is_named_by_the_line_that_made_it():
  with tf.Graph().as_default(), tf.Session() as session:
    x = tf.placeholder(tf.float32, [])
    checked = tf.check_numerics(x, 'it is not finite')

    def run():
      session.run(checked, {x: float('nan')})

    said = r'errors_test\.py:\d+, in test_an_op_\w+\(\): .*not finite'
    with pytest.raises(cli.RunError, match=said):
      _explain(run)


@pytest.mark.parametrize(
  'said, hint',
  [
    ('Run called even after should_stop requested.', r'task\.evaluate'),
    ("module has no attribute 'contrib'", 'has no tf.contrib'),
  ],
)
def test_what_many_scripts_do_comes_with_what_to_do_instead(said, hint):
  def train():
    raise RuntimeError(said)

  with pytest.raises(cli.RunError, match=hint):
    _explain(train)


@pytest.mark.parametrize(
  ('error', 'device', 'said'),
  [
    (StopIteration(), None, 'the input of worker 1 ends at 7: '),
    (None, '/job:worker/task:1', 'the input of worker 1 ends at 7: '),
    (None, '', 'the input of worker 1 ends at 7: '),
    (None, '/job:ps/task:0', 'worker 0 has ended the training at 7'),
    # TensorFlow does not say which op it was.
    (tf.errors.OutOfRangeError(None, None, ''), None, 'worker 0 has ended'),
  ],
)
def test_it_is_told_whether_an_input_has_ended_or_the_training(
  error, device, said
):
  if not error:
    op = types.SimpleNamespace(device=device)
    error = tf.errors.OutOfRangeError(None, op, '')
  assert script_errors.describe_end(error, 'worker 1', 'at 7').startswith(said)
