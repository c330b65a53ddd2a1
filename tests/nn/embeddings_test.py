"""embeddings: rows by ids of any kind, against NumPy; and wrong ids."""

import itertools
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.exchange.center import center
from distmnist.nn import combiners, layers
from distmnist.tables import key_map, key_shard, new_rows, sparse_table

LISTS = [[3, 3, 70], [], [99]]
WEIGHTS = [[1.0, 2.0, 0.5], [], [4.0]]


def find_table(session):
  [table] = session.run(tf.trainable_variables())
  return table[sparse_table.find_positions(np.arange(100), 100)]


def combine(table, ids, weights, combiner):
  """Returns one example's combined row, as the docstring says."""
  if not ids:
    return np.zeros(table.shape[1])
  weights = np.array(weights)
  total = (table[ids] * weights[:, np.newaxis]).sum(0)
  return {
    'sum': total,
    'mean': total / weights.sum(),
    'sqrtn': total / np.sqrt((weights**2).sum()),
  }[combiner]


@pytest.mark.slow
@pytest.mark.parametrize(
  'is_under_rule, kind',
  [
    (False, 'sparse'),
    (True, 'ragged'),
  ],
)
def test_lists_of_ids_are_combined(tf_session, is_under_rule, kind):
  ids, weights = (
    tf.ragged.constant(x, dtype, ragged_rank=1)
    for x, dtype in ((LISTS, tf.int32), (WEIGHTS, tf.float32))
  )
  if kind == 'sparse':
    ids, weights = ids.to_sparse(), weights.to_sparse()
  the_center = center.Center(cluster_lib.Cluster())
  ways = list(itertools.product(combiners.COMBINERS, [None, weights]))
  with the_center.scope() if is_under_rule else tf.name_scope('alone'):
    found = [
      layers.embedding(ids, 100, 2, 'table', given, combiner)
      for combiner, given in ways
    ]
  assert {each.shape.as_list()[1] for each in found} == {2}
  tf_session.run(tf.global_variables_initializer())
  table = find_table(tf_session)
  for (combiner, given), value in zip(ways, tf_session.run(found), strict=True):
    numbers = WEIGHTS if given is not None else [[1.0] * len(x) for x in LISTS]
    expected = [
      combine(table, x, w, combiner)
      for x, w in zip(LISTS, numbers, strict=True)
    ]
    np.testing.assert_allclose(value, expected, rtol=1e-5)


@pytest.mark.slow
def test_a_tensor_of_ids_keeps_its_shape(tf_session):
  ids = np.array([[[1, 2], [3, 3]]], np.int16)
  divisors = {'sum': 1, 'mean': 2, 'sqrtn': 2**0.5}
  assert {*divisors} == {*combiners.COMBINERS}
  tensors = {
    combiner: layers.embedding(
      tf.constant(ids), 100, 2, 'table', None, combiner
    )
    for combiner in (None, *divisors)
  }
  tf_session.run(tf.global_variables_initializer())
  rows = find_table(tf_session)[ids]
  expected = {None: rows} | {
    name: rows.sum(2) / divisor for name, divisor in divisors.items()
  }
  for name, tensor in tensors.items():
    assert tensor.shape.as_list() == list(expected[name].shape)
    found = tf_session.run(tensor)
    np.testing.assert_allclose(found, expected[name], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['ragged', 'sparse'])
def test_weights_of_other_places_are_an_error(tf_session, kind):
  ids, weights = (
    tf.ragged.constant(x, ragged_rank=1)
    for x in (LISTS, [[1.0, 2.0], [0.5], [4.0]])
  )
  # As many, but the third is of another example.
  few = tf.ragged.constant([[5.0], [], []], ragged_rank=1)
  if kind == 'sparse':
    ids, weights, few = ids.to_sparse(), weights.to_sparse(), few.to_sparse()
  for given in weights, few:
    found = layers.embedding(ids, 100, 2, 'user', given, 'sum')
    tf_session.run(tf.global_variables_initializer())
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
      tf_session.run(found)
    text = ' '.join(caught.value.message.split())
    assert '[the weights for the table user are not at the places' in text


@pytest.mark.slow
@pytest.mark.parametrize('wrong', [-1, 100])
def test_an_id_without_a_row_is_named(tf_session, wrong):
  found = layers.embedding(tf.constant([3, wrong], tf.int64), 100, 2, 'user')
  tf_session.run(tf.global_variables_initializer())
  with pytest.raises(tf.errors.InvalidArgumentError) as caught:
    tf_session.run(found)
  text = ' '.join(caught.value.message.split())
  assert f'[the table user has rows 0 to 99, and none of] [{wrong}]' in text


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'ids': [1, 2]}, 'expected ids as a tensor, a tf.RaggedTensor or a'),
    ({'ids': tf.float32}, 'expected ids that are integers, not float32'),
    ({'ids': tf.string}, 'number the values, or give layers.NewRows(capacity)'),
    ({'num_rows': None}, 'expected num_rows, an int of 1 or more, not None'),
    (
      {'num_rows': layers.NewRows(0)},
      'expected capacity, an int of 1 or more, not 0',
    ),
    (
      {'num_rows': layers.NewRows(5, min_sightings=0)},
      'expected min_sightings, an int of 1 or more, not 0',
    ),
    (
      {'num_rows': layers.NewRows(5, unseen_steps=-1)},
      'expected unseen_steps, an int of 0 or more, not -1',
    ),
    (
      {
        'num_rows': layers.NewRows(5),
        'initializer': tf.glorot_uniform_initializer(),
      },
      'that can draw the rows of keys one by one: tf.zeros_, ones_, '
      'constant_, random_uniform_, random_normal_ or '
      'truncated_normal_initializer, not GlorotUniform',
    ),
    ({'num_rows': 0}, 'expected num_rows, an int of 1 or more, not 0'),
    (
      {'num_rows': 1e6},
      'expected num_rows, an int of 1 or more, not 1000000.0',
    ),
    ({'width': 2.5}, 'expected width, an int of 1 or more, not 2.5'),
    ({'combiner': 'max'}, "combiner sum, mean, sqrtn or None, not 'max'"),
    ({'weights': tf.float32}, 'weights need a combiner'),
    (
      {'weights': [1.0], 'combiner': 'sum'},
      'expected weights of the same kind as the ids, not list',
    ),
    (
      {'weights': tf.int32, 'combiner': 'sum'},
      'expected weights of float32 (3,), like the ids, not of int32 (3,)',
    ),
    (
      {'weights': tf.ones([1, 3]), 'combiner': 'sum'},
      'expected weights of float32 (3,), like the ids, not of float32 (1, 3)',
    ),
  ],
)
def test_arguments_that_do_not_fit_are_named(tf_session, settings, message):
  given = {'ids': tf.int64, 'num_rows': 10, 'width': 2, 'name': 'user'}
  given |= settings
  for name in ('ids', 'weights'):
    if isinstance(given.get(name), tf.DType):
      given[name] = tf.placeholder(given[name], [3])
  with pytest.raises(
    ValueError, match=f"^embedding 'user': .*{re.escape(message)}"
  ):
    layers.embedding(**given)


@pytest.mark.slow
def test_sizes_may_be_numbers_of_numpy(tf_session):
  ids = np.array([3, 7])
  for num_rows in (ids.max() + 1, layers.NewRows(ids.max() + 1)):
    name = type(num_rows).__name__
    rows = layers.embedding(tf.constant(ids), num_rows, np.int32(2), name)
    assert rows.shape.as_list() == [2, 2]
  assert type(num_rows.capacity) is int  # The report has it, as JSON.


@pytest.mark.slow
def test_a_lookup_in_a_loop_is_refused(tf_session):
  def add(i, total):
    return i + 1, total + layers.embedding(tf.constant([1]), 10, 2, 'user')

  with pytest.raises(ValueError, match="^embedding 'user' is looked up in a"):
    tf.while_loop(lambda i, total: i < 2, add, (0, tf.zeros([1, 2])))


@pytest.mark.slow
@pytest.mark.parametrize(
  ('num_rows', 'width', 'what'),
  [
    (100, 3, 'width'),
    (500, 2, 'num_rows'),
    (layers.NewRows(500), 2, 'num_rows'),
  ],
)
def test_a_table_has_one_shape(tf_session, num_rows, width, what):
  with center.Center(cluster_lib.Cluster()).scope():
    for _ in range(2):
      layers.embedding(tf.constant([1]), 100, 2, 'user')
    with pytest.raises(ValueError, match=f"^embedding 'user': .* {what}: "):
      layers.embedding(tf.constant([1]), num_rows, width, 'user')


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['ragged', 'tensor', 'sparse'])
def test_text_is_looked_up_by_itself(tf_session, kind):
  words = tf.ragged.constant([['a', 'b'], ['b', 'a']])
  words = {
    'tensor': words.to_tensor,
    'ragged': lambda: words,
    'sparse': words.to_sparse,
  }[kind]()
  the_center = center.Center(cluster_lib.Cluster())
  with the_center.scope():
    found = layers.embedding(
      words,
      layers.NewRows(10),
      2,
      'word',
      combiner='sum',
      initializer=tf.ones_initializer(),
    )
  assert found.shape.as_list() == [2, 2]
  key_shard.connect_all(lambda rows, first: [])
  tf_session.run(tf.global_variables_initializer())
  key_map.fill(tf_session)
  np.testing.assert_array_equal(tf_session.run(found), np.full([2, 2], 2.0))


@pytest.mark.slow
def test_the_lowest_numbers_are_no_keys(tf_session):
  ids = tf.constant([3, -(2**63)], tf.int64)
  found = layers.embedding(ids, layers.NewRows(10), 2, 'user')
  tf_session.run(tf.global_variables_initializer())
  key_map.fill(tf_session)
  with pytest.raises(tf.errors.InvalidArgumentError) as caught:
    tf_session.run(found)
  text = ' '.join(caught.value.message.split())
  lowest = new_rows.LOWEST_KEY
  assert f'[the table user has keys from {lowest} on, and none of]' in text
