"""groups: what is refused, and each variable by the optimizer of its group."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster
from distmnist.common import cli
from distmnist.lifecycle import restoring
from distmnist.nn import groups, optimizer, optimizers
from distmnist.training import flag_checks, step
from tests.support import grouped

HEAD = {'learning_rate': 2}
WHERE = '--problem=file.py: groups'


@pytest.mark.parametrize(
  'given, named',
  [
    ([], 'list'),
    ({'head(': HEAD}, 'head('),
    ({3: HEAD}, '[3]'),
    ({'head': {}}, 'head'),
    ({'head': 10}, 'head'),
    ({'head': {'rate': 2}}, "'rate'"),
    ({'head': {'optimizer': 'adamax'}}, "'adamax'"),
    ({'head': {'optimizer': None}}, 'None'),
    ({'head': {'optimizer': ['adam']}}, 'adam'),
    ({'head': {'learning_rate': -1}}, '-1'),
    ({'head': {'learning_rate': float('nan')}}, 'nan'),
    ({'head': {'learning_rate': 10**400}}, 'learning_rate'),
    ({'head': {'learning_rate': True}}, 'True'),
    ({'head': {'weight_decay': float('inf')}}, 'inf'),
    ({'head': {'weight_decay': '0.1'}}, "'0.1'"),
    ({'head': {'weight_decay': np.zeros([3, 3])}}, 'weight_decay'),
  ],
)
def test_what_is_no_group_is_refused(given, named):
  with pytest.raises(cli.UsageError) as refused:
    groups.parse(given, WHERE)
  text = str(refused.value)
  assert text.startswith('--problem=file.py: groups')
  assert named in text
  assert '\n' not in text


def test_numbers_of_numpy_are_numbers():
  [group] = groups.parse({'head': {'learning_rate': np.float32(2)}})
  assert group.factor == 2
  assert not groups.parse(None) and not groups.parse({})


def test_the_first_that_matches_the_whole_name_counts():
  found = groups.parse({'head/b.*': HEAD, 'head': HEAD, 'head/.*': HEAD})
  names = ['head/b', 'head/w', 'head', 'ahead/w']
  chosen = [groups.find(found, name) for name in names]
  assert chosen == [found[0], found[2], found[1], None]
  groups.check_used(found, names)


@pytest.mark.parametrize(
  'patterns, named',
  [
    (['tail/.*'], ["'tail/.*'", 'head/w']),
    (['head/.*', 'head/w'], ["['head/w']", "'head/.*'"]),
    (['ead/w'], ['ead/w']),
  ],
)
def test_a_group_without_a_variable_is_refused(patterns, named):
  found = groups.parse(dict.fromkeys(patterns, HEAD), WHERE)
  with pytest.raises(cli.UsageError) as refused:
    groups.check_used(found, ['head/w', 'head/b'])
  assert all(word in str(refused.value) for word in named)


def build(given, has_table=True, words=()):
  """Returns ((x, y, ids), step.Step) of one process, see tests/support."""
  member = cluster.Cluster()
  _, rule = flag_checks.make_strategy(member)
  x, y = (
    tf.placeholder(tf.float32, [grouped.BATCH, size])
    for size in (grouped.IN, grouped.OUT)
  )
  ids = tf.placeholder(tf.int64, [grouped.BATCH])

  def build_loss(state):
    del state
    return grouped.build(x, y, ids if has_table else None), {}

  built = step.build_step_of(
    member, rule, build_loss, groups=groups.parse(given, WHERE)
  )
  return (x, y, ids), built


@pytest.mark.slow
def test_each_variable_is_moved_by_its_own_optimizer(tf_session, set_flags):
  set_flags(*grouped.FLAGS, *grouped.TABLE_FLAGS)
  placeholders, built = build(grouped.GROUPS)
  tf_session.run(tf.global_variables_initializer())
  values, move = grouped.begin(has_table=True), grouped.Moves()
  for batch in zip(*grouped.draw(1), strict=True):
    given = [part[0] for part in batch]
    values = move(values, grouped.compute_gradients(values, *given))
    feed = dict(zip(placeholders, given, strict=True))
    tf_session.run(built.update.train_op, feed)
  for variable in tf.trainable_variables():
    name = groups.find_name(variable)
    np.testing.assert_allclose(
      tf_session.run(variable), values[name], rtol=0, atol=2e-5, err_msg=name
    )
  assert tf_session.run(tf.train.get_global_step()) == grouped.STEPS
  assert built.moved_by == {
    'wide/weights': 'ftrl',
    'head/weights': 'momentum, 3 times the rate, weight decay 0.2',
    'deep/weights': 'adam, 0.25 times the rate, weight decay 0.05',
    'body/weights': 'momentum, weight decay 0.05',
    'body/biases': 'momentum',
    'table/rows': 'adagrad, --table_learning_rate=0.2',
  }


@pytest.mark.slow
def test_without_groups_nothing_is_beside_the_optimizer(tf_session, set_flags):
  set_flags('--optimizer=adam')
  global_step = tf.train.get_or_create_global_step()
  make, _ = optimizers.from_flags(global_step)
  assert isinstance(make(), optimizer.Optimizer)
  _, built = build({})
  assert not built.moved_by
  set_flags('--table_optimizer=adagrad')  # No worker has a copy of a table.
  make, _ = optimizers.from_flags(global_step)
  assert isinstance(make(is_local=True), optimizer.Optimizer)


@pytest.mark.slow
def test_a_group_may_begin_in_a_run_that_goes_on(set_flags, tmp_path):
  set_flags('--optimizer=adam')
  path = str(tmp_path / 'model')

  def run(given, work):
    with tf.Graph().as_default(), tf.Session() as session:
      placeholders, built = build(given, has_table=False)
      session.run(tf.global_variables_initializer())
      return work(session, placeholders, built)

  def save(session, placeholders, built):
    feed = {
      placeholder: part[0, 0]
      for placeholder, part in zip(placeholders, grouped.draw(1), strict=True)
    }
    session.run(built.update.train_op, feed)
    tf.train.Saver().save(session, path, write_meta_graph=False)

  def restore(session, placeholders, built):
    restoring.Restorer().restore(session, path)
    return session.run([v for v in tf.global_variables() if 'power' in v.name])

  run({}, save)
  powers = run({'head/.*': {'learning_rate': 2}}, restore)
  np.testing.assert_allclose(sorted(powers), [0.81, 0.81, 0.998, 0.998], 1e-3)
  with pytest.raises(cli.RunError, match='head/weights.* optimizer'):
    run({'head/.*': {'optimizer': 'adagrad'}}, restore)


@pytest.mark.parametrize(
  'words, given, named',
  [
    ([], {'table/.*': {'optimizer': 'lamb'}}, "'table'"),
    (['--optimizer=lars'], {}, "'table'"),
    (['--optimizer=lars'], {'table/.*': {'optimizer': 'sgd'}}, None),
    (['--optimizer=lamb', '--table_optimizer=sgd'], {'table/.*': HEAD}, None),
    ([], {'table/.*': {'weight_decay': 1}}, 'table/.*'),
    ([], {'body/biases': {'weight_decay': 1}}, 'body/biases'),
    (['--decay_biases'], {'body/biases': {'weight_decay': 1}}, None),
    ([], {'nobody/.*': HEAD}, 'nobody/.*'),
  ],
)
@pytest.mark.slow
def test_a_group_that_moves_nothing_is_refused(
  tf_session, set_flags, words, given, named
):
  set_flags(*words)
  has_table = any('table' in word for word in given) or named == "'table'"
  if named is None:
    build(given, has_table)
    return
  with pytest.raises(cli.UsageError, match=named) as refused:
    build(given, has_table)
  assert '\n' not in str(refused.value)


@pytest.mark.slow
def test_what_lies_beside_a_copy_has_the_center_s_name(set_flags):
  set_flags('--strategy=easgd', '--easgd_momentum=0.9')
  member = cluster.make_cluster(('p:1', 'q:1'), ('w:1',), 'worker', 0)
  _, rule = flag_checks.make_strategy(member)

  def build_loss(state):
    del state
    with tf.variable_scope('head'):
      return tf.reduce_sum(tf.get_variable('w', [4, 2]) ** 2), {}

  with tf.Graph().as_default():
    step.build_step_of(member, rule, build_loss)
    found = {
      groups.find_name(v)
      for v in (*tf.trainable_variables(), *tf.local_variables())
      if v.shape.rank == 2
    }
    assert any('velocity' in v.name for v in tf.local_variables())
  assert found == {'head/w'}
