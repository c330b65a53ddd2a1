"""trust_ratio: norms of whole layers, and what they cost in messages."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.nn import trust_ratio
from tests.support import lock_step

PS = [f'/job:ps/task:{i}/device:CPU:0' for i in range(3)]


def build():
  """Two layers with a shard on each of two ps, one whole on the third."""
  pairs = []
  for name, places in (('a', PS[:2]), ('b', PS[:2]), ('c', PS[2:])):
    for i, place in enumerate(places):
      with tf.device(place):
        w = tf.get_variable(f'{name}{i}', initializer=[[1.0 + i, 2.0]])
        if len(places) > 1:
          info = tf.Variable.SaveSliceInfo(name, [2, 2], [i, 0], [1, 2])
          w._set_save_slice_info(info)
        pairs.append((tf.constant([[3.0, 4.0 * i]]), w))
  with tf.device(PS[0]):
    pairs.append((tf.ones([2]), tf.get_variable('biases', [2])))
  return pairs, trust_ratio.build_norms(pairs)


@pytest.mark.slow
def test_norms_are_of_whole_layers_and_beside_each_shard():
  with tf.Graph().as_default():
    pairs, norms = build()
    assert list(norms) == [id(w) for _, w in pairs[:-1]]
    for _, w in pairs[:-1]:
      assert {norm.device for norm in norms[id(w)]} == {w.device}


@pytest.mark.slow
def test_a_ps_sends_one_message_to_each_that_shares_a_layer():
  with tf.Graph().as_default() as graph:
    build()
    sent = [
      (source.device, op.device)
      for op in graph.get_operations()
      for source in op.inputs
      if source.device not in ('', op.device)
    ]
  assert sorted(sent) == [(PS[0], PS[1]), (PS[1], PS[0])]


@pytest.mark.slow
def test_the_norms_of_shards_are_added_as_squares(tf_session, monkeypatch):
  monkeypatch.setattr(f'{__name__}.PS', ['/cpu:0'] * 3)
  pairs, norms = build()
  tf_session.run(tf.global_variables_initializer())
  found = tf_session.run([norms[id(w)] for _, w in pairs[:-1]])
  whole = np.sqrt(1 + 4 + 4 + 4), np.sqrt(9 + 9 + 16)
  alone = np.sqrt(1 + 4), 3
  np.testing.assert_allclose(found, [whole] * 4 + [alone], rtol=1e-6)


def test_a_square_may_be_more_than_float16_holds(tf_session):
  w = tf.get_variable('w', initializer=np.float16([[300, 400]]))
  norms = trust_ratio.build_norms([(tf.constant([[600, 800.0]]), w)])
  tf_session.run(tf.global_variables_initializer())
  assert tf_session.run(norms[id(w)]) == (500, 1000)


def test_a_norm_of_zero_makes_the_ratio_one(tf_session):
  norms = tf.constant([0.0, 3, 3]), tf.constant([2.0, 0, 2])
  found = tf_session.run(trust_ratio.choose(norms[0] / norms[1], norms))
  assert found.tolist() == [1, 1, 1.5]


@pytest.mark.daily
@pytest.mark.slow
# ftrl has no ratio, and goes through the same shards.
@pytest.mark.parametrize('name', ['lars', 'lamb', 'ftrl'])
def test_shards_change_nothing_also_where_the_wire_rounds(
  make_cluster, set_flags, name
):
  set_flags(f'--optimizer={name}', *lock_step.FLAGS)
  whole, cut = (
    lock_step.train(make_cluster(num_ps, 2), 'float16') for num_ps in (1, 2)
  )
  for variable, value in whole.items():
    assert (value != lock_step.START[variable]).any()
    np.testing.assert_allclose(cut[variable], value, rtol=0, atol=1e-6)
