"""repeated_runs: a run that is remembered is the run that it was."""

import types

import numpy as np
import pytest

import distmnist.runtime  # noqa: F401  TensorFlow, quiet and in graph mode.

# isort: split
import tensorflow.compat.v1 as tf

from distmnist.cluster import repeated_runs


@pytest.fixture
def made():
  """A session with its runs remembered, and how often it really ran."""
  with tf.Graph().as_default():
    fed = tf.placeholder(tf.float32, [None], name='fed')
    total = tf.get_variable('total', [], initializer=tf.zeros_initializer())
    made = types.SimpleNamespace(
      fed=fed,
      double=2 * fed,
      added=tf.assign_add(total, tf.reduce_sum(fed)).read_value(),
      checked=tf.debugging.check_numerics(fed, 'bad', name='checked'),
      op=tf.no_op(),
      anew=[],
    )
    with tf.Session() as session:
      session.run(tf.global_variables_initializer())
      plain = session.run

      def run(fetches, *args):
        made.anew.append(fetches)
        return plain(fetches, *args)

      session.run = run
      made.session, made.run = session, repeated_runs.RepeatedRuns(session).run
      yield made


def _feed(made, *values):
  return {made.fed: np.array(values, np.float32)}


def test_a_run_like_an_earlier_one_has_its_own_values(made):
  for i in range(1, 4):
    # A MonitoredSession makes the dict anew each time.
    fetches = {'caller': [], 'a': [made.double, made.added], 'b': made.added}
    found = made.run(fetches, _feed(made, i, 1), tf.RunOptions())
    assert list(found) == ['caller', 'a', 'b']
    assert found['caller'] == []
    assert found['a'][0].tolist() == [2 * i, 2]
    assert found['a'][1] == found['b'] == sum(range(1, i + 1)) + i
  assert len(made.anew) == 1


def test_a_run_without_feeds_is_remembered_too(made):
  value = tf.constant(3)
  for _ in range(2):
    assert made.run({'caller': [value]}) == {'caller': [3]}
  assert len(made.anew) == 1


def test_a_run_of_nothing_is_the_sessions_own(made):
  for _ in range(2):
    assert made.run({'caller': []}) == {'caller': []}
  assert len(made.anew) == 2


@pytest.mark.parametrize(
  'change',
  [
    lambda made: ({'a': [made.double]}, _feed(made, 1, 2, 3)),
    lambda made: ({'a': made.double}, _feed(made, 1, 2)),
    lambda made: ({'a': [made.added]}, _feed(made, 1, 2)),
    lambda made: ({'a': [made.double], 'b': []}, _feed(made, 1, 2)),
    lambda made: ({'a': [made.double]}, {made.fed: [1, 2]}),
    lambda made: ({'a': [made.double]}, {'fed:0': np.ones(2, np.float32)}),
    lambda made: ([made.double], _feed(made, 1, 2)),
    lambda made: ({'a': [made.double, made.op]}, _feed(made, 1, 2)),
  ],
)
def test_any_other_run_is_the_sessions_own(made, change):
  made.run({'a': [made.double]}, _feed(made, 1, 2))
  made.run(*change(made))
  assert len(made.anew) == 2


def test_a_wrong_shape_is_refused_as_ever(made):
  made.run({'a': [made.double]}, _feed(made, 1, 2))
  with pytest.raises(ValueError, match='Cannot feed value of shape'):
    made.run({'a': [made.double]}, {made.fed: np.ones([2, 2], np.float32)})


@pytest.mark.parametrize('dtype', [np.float64, np.int64])
def test_what_is_fed_in_another_dtype_is_cast_each_time(made, dtype):
  for i in range(1, 4):
    feed = {made.fed: np.array([i, 1], dtype)}
    found = made.run({'a': [made.double]}, feed)
    assert found['a'][0].dtype == np.float32
    assert found['a'][0].tolist() == [2 * i, 2]
  assert len(made.anew) == 3


def test_a_trace_is_the_sessions_own(made):
  options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
  for _ in range(2):
    metadata = tf.RunMetadata()
    made.run({'a': [made.double]}, _feed(made, 1), options, metadata)
    assert metadata.step_stats.dev_stats
  assert len(made.anew) == 2


def test_an_error_names_its_op_and_is_not_remembered(made):
  fetches = {'a': [made.checked]}
  for _ in range(2):
    with pytest.raises(tf.errors.InvalidArgumentError) as first:
      made.run(fetches, _feed(made, np.nan))
  assert len(made.anew) == 2
  made.run(fetches, _feed(made, 1))
  with pytest.raises(tf.errors.InvalidArgumentError) as again:
    made.run(fetches, _feed(made, np.nan))
  assert len(made.anew) == 3
  assert again.value.op is first.value.op is made.checked.op
  assert again.value.message == first.value.message


def test_a_closed_session_says_so(made):
  made.run({'a': [made.double]}, _feed(made, 1))
  made.session.close()
  with pytest.raises(RuntimeError, match='closed Session'):
    made.run({'a': [made.double]}, _feed(made, 1))
