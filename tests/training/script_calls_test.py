"""script_calls: a classic script's own session and servers in a task."""

import types

import pytest
import tensorflow.compat.v1 as tf

from distmnist.training import script_calls


class _Task:
  is_chief = True

  def session(self, *args):
    return args


@pytest.fixture
def open_session():
  """Returns MonitoredTrainingSession as a script calls it in a task."""
  with script_calls.taken_over(_Task()):
    yield tf.train.MonitoredTrainingSession


def test_its_session_is_that_of_the_task(open_session):
  first, second = tf.train.SessionRunHook(), tf.train.SessionRunHook()
  config = tf.ConfigProto(operation_timeout_in_ms=7)
  given = open_session(
    *('grpc://a:1', True, '/tmp/none'),
    hooks=[first, tf.train.StopAtStepHook(last_step=9)],
    chief_only_hooks=[second],
    config=config,
  )
  assert given == (9, [first, second], config)
  # Without a last step the loop decides.
  assert open_session() == (None, [], None)


def test_only_the_chief_has_its_hooks(monkeypatch, open_session):
  monkeypatch.setattr(_Task, 'is_chief', False)
  hook = tf.train.SessionRunHook()
  assert open_session(chief_only_hooks=[hook]) == (None, [], None)


@pytest.mark.parametrize(
  'wrong, said',
  [
    ({'scaffold': 'mine'}, 'scaffold'),
    ({'hooks': [tf.train.StopAtStepHook(num_steps=9)]}, 'num_steps'),
  ],
)
def test_what_a_task_cannot_take_over_is_one_line(open_session, wrong, said):
  with pytest.raises(RuntimeError, match=said):
    open_session(**wrong)


@pytest.mark.parametrize(
  'name, said',
  [
    ('Server', 'run_task serves'),
    ('Supervisor', r'task\.session\(last_step\)'),
    ('SyncReplicasOptimizer', '--strategy=sync_sgd'),
  ],
)
def test_what_a_task_has_is_refused_in_the_script_alone(name, said):
  before = getattr(tf.train, name)
  with script_calls.taken_over(_Task()):
    refused = getattr(tf.train, name)
    with pytest.raises(RuntimeError, match=said):
      refused('anything', is_chief=True)
    # A call by one of our modules.
    ours = types.FunctionType(
      (lambda call: call(none=1)).__code__, {'__name__': 'distmnist.mine'}
    )
    with pytest.raises(TypeError, match='none'):
      ours(refused)
  assert getattr(tf.train, name) is before
