"""optimizer_checks: flags that the optimizers in use cannot heed."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster
from distmnist.common import cli, refusals
from distmnist.nn import groups, layers, optimizer_checks
from distmnist.strategies import agn, async_sgd, easgd, sync_sgd
from distmnist.training import step

ALL = *optimizer_checks.REFUSALS, *optimizer_checks.OF_ONE


@pytest.mark.parametrize(
  'words, rule, message',
  [
    (
      ['--optimizer=ftrl', '--weight_decay=0.1'],
      async_sgd.AsyncSgd,
      '--weight_decay=0.1 does not go with --optimizer=ftrl, which computes '
      'weights anew from its sums: take --ftrl_l2',
    ),
    (
      ['--ftrl_l1=0.5', '--optimizer=adam'],
      async_sgd.AsyncSgd,
      '--ftrl_l1=0.5 needs --optimizer=ftrl, not adam',
    ),
    (
      ['--trust_coefficient=0.5', '--optimizer=lamb'],
      async_sgd.AsyncSgd,
      '--trust_coefficient=0.5 needs --optimizer=lars, not lamb',
    ),
    (
      ['--optimizer=ftrl'],
      agn.Agn,
      '--optimizer=ftrl computes weights from its own sums, and would undo '
      "each pull of a worker's copy: give a --local_optimizer such as adagrad",
    ),
    (
      ['--optimizer=ftrl', '--ftrl_l1=1', '--local_optimizer=sgd'],
      easgd.Easgd,
      '--ftrl_l1=1 needs --optimizer=ftrl, not sgd',
    ),
    (
      ['--local_optimizer=ftrl'],
      agn.Agn,
      '--local_optimizer=ftrl computes weights from its own sums, and would '
      "undo each pull of a worker's copy: give a --local_optimizer such as "
      'adagrad',
    ),
  ],
)
def test_flags_that_do_not_fit_are_refused(set_flags, words, rule, message):
  set_flags(*words)
  with pytest.raises(cli.UsageError) as refused:
    refusals.refuse(ALL, strategy=rule, groups=())
  assert str(refused.value) == message


@pytest.mark.parametrize(
  'words, rule',
  [
    ([], agn.Agn),
    (['--optimizer=ftrl', '--ftrl_l2=1', '--local_optimizer=adagrad'], agn.Agn),
    (['--optimizer=ftrl', '--ftrl_l1=1'], async_sgd.AsyncSgd),
    (
      ['--optimizer=ftrl', '--weight_decay=1', '--local_optimizer=sgd'],
      easgd.Easgd,
    ),
    (['--optimizer=adamw', '--weight_decay=1'], agn.Agn),
  ],
)
def test_flags_that_fit(set_flags, words, rule):
  set_flags(*words)
  refusals.refuse(ALL, strategy=rule, groups=())


@pytest.mark.slow
@pytest.mark.parametrize(
  'dtype, words, rule, given',
  [
    (tf.float16, ['--optimizer=adam'], async_sgd, '--optimizer=adam'),
    (tf.bfloat16, ['--optimizer=adamw'], async_sgd, '--optimizer=adamw'),
    (tf.bfloat16, ['--local_optimizer=adam'], agn, '--local_optimizer=adam'),
    (tf.bfloat16, ['--optimizer=rmsprop'], async_sgd, None),
    (tf.float16, ['--optimizer=adam', '--local_optimizer=sgd'], easgd, None),
  ],
)
def test_adam_would_divide_by_zero_in_16_bits(
  set_flags, words, rule, given, dtype
):
  set_flags(*words)
  member = cluster.make_cluster(('p:1',), ('w:1',), 'worker', 0)

  def build_loss(state):
    del state
    return tf.cast(tf.get_variable('w', [2], dtype), tf.float32)[0], {}

  def build():
    with tf.Graph().as_default():
      step.build_step_of(member, rule.make(member), build_loss)

  if given is None:
    build()
    return
  with pytest.raises(cli.UsageError) as refused:
    build()
  assert str(refused.value).startswith(
    f"{given} cannot train the variable 'w' of {dtype.name}: "
  )


@pytest.mark.parametrize(
  'words, rule, given, is_refused',
  [
    ([], agn, {'optimizer': 'ftrl'}, True),
    (['--local_optimizer=sgd'], agn, {'optimizer': 'ftrl'}, False),
    (['--weight_decay=1'], async_sgd, {'optimizer': 'ftrl'}, True),
    ([], async_sgd, {'optimizer': 'ftrl', 'weight_decay': 1}, True),
    (
      ['--weight_decay=1'],
      async_sgd,
      {'optimizer': 'ftrl', 'weight_decay': 0},
      False,
    ),
    (['--easgd_momentum=0.9'], easgd, {'optimizer': 'adam'}, True),
    (['--easgd_momentum=0.9'], easgd, {'learning_rate': 2}, False),
    (['--worker_learning_rates=1'], sync_sgd, {'weight_decay': 1}, True),
    (['--worker_learning_rates=1'], sync_sgd, {'optimizer': 'sgd'}, False),
    (['--local_optimizer=sgd'], easgd, {'optimizer': 'adam'}, True),
    (['--local_optimizer=sgd'], agn, {'optimizer': 'adam'}, False),
    ([], easgd, {'optimizer': 'adam'}, False),
  ],
)
def test_groups_fit_the_flags_and_the_rule(
  set_flags, words, rule, given, is_refused
):
  set_flags(*words)
  member = cluster.make_cluster(('p:1',), ('w:1',), 'worker', 0)
  with tf.Graph().as_default():
    tf.get_variable('w', [2, 2])
    found = groups.parse({'w': given}, 'file.py: groups')
    if not is_refused:
      optimizer_checks.check_variables(rule.make(member), found)
      return
    with pytest.raises(cli.UsageError, match=r"file.py: groups\['w'\]"):
      optimizer_checks.check_variables(rule.make(member), found)


@pytest.mark.parametrize('group, is_idle', [('ftrl', False), ('adam', True)])
def test_a_flag_of_one_optimizer_is_for_a_group_too(set_flags, group, is_idle):
  set_flags('--ftrl_l1=1')
  found = refusals.find(
    optimizer_checks.OF_ONE,
    strategy=async_sgd.AsyncSgd,
    groups=groups.parse({'w': {'optimizer': group}}),
  )
  assert found.startswith('--ftrl_l1=1') == is_idle


@pytest.mark.slow
def test_a_group_of_tables_apart_may_have_what_no_copy_may(set_flags):
  set_flags('--table_strategy=async_sgd', '--weight_decay=1')
  member = cluster.make_cluster(('p:1',), ('w:1',), 'worker', 0)
  found = groups.parse({'table/.*': {'optimizer': 'ftrl'}}, 'file.py: groups')

  def build_loss(state):
    del state
    rows = layers.embedding(tf.zeros([2], tf.int64), 4, 2, 'table')
    return tf.reduce_sum(rows * tf.get_variable('w', [2])), {}

  with tf.Graph().as_default():
    built = step.build_step_of(
      member, easgd.make(member), build_loss, groups=found
    )
  assert built.moved_by == {'w': 'local: sgd', 'table/rows': 'ftrl'}
