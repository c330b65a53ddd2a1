"""beta_powers: one name for those of the center, whatever the rule's scope."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.logdir import checkpoints, saving
from distmnist.nn import beta_powers, optimizers
from tests.training.worker_loop_test import train  # noqa: F401  A fixture.


@pytest.mark.parametrize('name', ['adam', 'lamb'])
def test_those_of_the_center_are_in_no_scope(tf_session, name):
  def make(is_local, rate_factor):
    assert rate_factor is None
    return optimizers.make_optimizer(name, 0.1)

  make_optimizer = beta_powers.share(make)
  weight = tf.get_variable('w', [2, 3])
  pairs = [(tf.ones([2, 3]), weight)]
  with tf.name_scope('rule'):
    make_optimizer(is_local=True).apply_gradients(pairs)
    make_optimizer().apply_gradients(pairs)
  names = {v.op.name for v in tf.global_variables()}
  scopes = 'rule/', ''
  assert names >= {f'{s}beta{i}_power' for s in scopes for i in (1, 2)}


@pytest.mark.parametrize(
  'saved, expected',
  [
    (['w', 'w/Adam', 'beta2_power'], None),
    (['beta2_power', 'ssp/beta1_power'], 'ssp/beta1_power'),
    (['agn/beta1_power_1'], 'agn/beta1_power_1'),
    (['tables_apart/beta1_power', 'x/beta1_power'], 'x/beta1_power'),
    (['tables_apart/beta1_power', 'w'], 'tables_apart/beta1_power'),
  ],
)
def test_another_rule_has_them_in_its_scope(saved, expected):
  assert beta_powers.find_other('beta1_power', saved) == expected


def read(logdir):
  path = checkpoints.find_latest(logdir)
  reader = tf.train.load_checkpoint(path)
  names = reader.get_variable_to_shape_map()
  return {name: reader.get_tensor(name) for name in names}


@pytest.mark.slow
def test_a_run_goes_on_under_another_rule(train, tmp_path):  # noqa: F811
  words = '--optimizer=adam', f'--logdir={tmp_path}'
  train(*words, '--train_steps=3')
  train(*words, '--train_steps=5', '--strategy=sync_sgd')
  found = read(tmp_path)
  assert found['beta1_power'] == pytest.approx(0.9**6)
  # As earlier versions have named them.
  old = {'async_sgd/beta1_power', 'async_sgd/beta2_power'}
  found |= {name: found.pop(name.removeprefix('async_sgd/')) for name in old}
  folder = tmp_path / 'old'
  saving.CheckpointWriter(str(folder), 5).save_values(found, 5)
  train(*words[:1], f'--logdir={folder}', '--train_steps=7')
  found = read(folder)
  assert found['beta1_power'] == pytest.approx(0.9**8)
  assert found['beta2_power'] == pytest.approx(0.999**8)
  assert not old & found.keys()


@pytest.mark.parametrize('is_table', [False, True])
def test_another_ps_gets_both_in_one_message(tf_session, is_table):
  pairs = []
  for i, ps in enumerate([0, 1, 1, 1]):
    with tf.device(f'/job:ps/task:{ps}'):
      variable = tf.get_variable(f'v{i}', [4, 2])
      gradient = tf.ones([4, 2])
      if is_table:
        gradient = tf.IndexedSlices(gradient, tf.range(4))
    pairs.append((gradient, variable))
  with tf.device('/job:ps/task:0'):
    optimizers.make_optimizer('adam', 0.1).apply_gradients(pairs)
  sent = {
    x.name
    for op in tf.get_default_graph().get_operations()
    for x in op.inputs
    if 'ps' in x.device and 'ps' in op.device and x.device != op.device
  }
  assert sent == {'Adam/stack:0'}
