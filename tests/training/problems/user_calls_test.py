"""user_calls: what the user's functions raise is one line."""

import signal

import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.training.problems import user_calls
from tests.support import problems

CODE = """
build = loss = print

def load(split):
  raise {}
"""


@pytest.mark.parametrize(
  'raised, kind, message',
  [
    ('ValueError("no rows")', cli.UsageError, 'ValueError: no rows$'),
    ('SystemExit(3)', cli.UsageError, r'it ends the program \(SystemExit: 3\)'),
    ('StopIteration', cli.UsageError, 'StopIteration: no reason given$'),
    ('MemoryError("7 TiB")', cli.RunError, 'out of memory: 7 TiB$'),
  ],
)
def test_whatever_is_raised_is_one_line(
  set_flags, tmp_path, raised, kind, message
):
  path = problems.write(tmp_path / 'bad.py', CODE.format(raised))
  problem = problems.load(path, set_flags)
  with pytest.raises(kind, match=rf'bad.py:5, in load\(\): {message}'):
    problem.load('train')


def test_a_ctrl_c_is_one_only_where_python_raises_it(
  set_flags, tmp_path, monkeypatch
):
  path = problems.write(tmp_path / 'bad.py', CODE.format('KeyboardInterrupt'))
  problem = problems.load(path, set_flags)
  handlers = [signal.default_int_handler, lambda *_: None]
  monkeypatch.setattr(signal, 'getsignal', lambda number: handlers[0])
  with pytest.raises(KeyboardInterrupt):
    problem.load('train')
  del handlers[0]
  with pytest.raises(cli.UsageError, match='KeyboardInterrupt: no reason'):
    problem.load('train')


def test_an_op_that_fails_is_said_in_its_own_words():
  with tf.Graph().as_default(), tf.Session() as session:
    number = tf.strings.to_number(['x'])
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
      session.run(number)
  assert raised.value.message.startswith('Graph execution error:')
  found = user_calls.describe(raised.value)
  assert found.startswith('InvalidArgumentError: StringToNumberOp could not')


def test_an_op_that_fails_in_a_layer_is_described_by_the_layer():
  text = (
    'Exception encountered when calling Words.call().\n\n'
    '\x1b[1mCannot convert a Tensor of dtype resource to a NumPy array.\x1b[0m'
    '\n\nArguments received by Words.call():\n  • inputs=3'
  )
  error = tf.errors.InvalidArgumentError(None, None, text)
  described = user_calls.describe(error)
  assert 'Words.call(): it uses a lookup table' in described
