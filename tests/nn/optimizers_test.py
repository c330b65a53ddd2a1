"""optimizers: each rule against its equation, schedules, flags."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.nn import formulas, optimizers

RATE, MOMENTUM = 0.1, 0.8
L1, L2 = 2.0, 0.3
START = np.array([1.0, -2.0, 0.5])
GRADIENTS = np.random.default_rng(5).normal(size=(6, 3))


def step_sgd(w, g, state):
  return w - RATE * g


def step_momentum(w, g, state):
  state['v'] = MOMENTUM * state.get('v', 0) + g
  return w - RATE * state['v']


def step_nesterov(w, g, state):
  state['v'] = MOMENTUM * state.get('v', 0) + g
  return w - RATE * (g + MOMENTUM * state['v'])


def step_adam(w, g, state):
  t = state['t'] = state.get('t', 0) + 1
  state['m'] = 0.9 * state.get('m', 0) + 0.1 * g
  state['s'] = 0.999 * state.get('s', 0) + 0.001 * g**2
  rate = RATE * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
  return w - rate * state['m'] / (np.sqrt(state['s']) + 1e-8)


def step_lamb(w, g, state):
  t = state['t'] = state.get('t', 0) + 1
  state['m'] = 0.9 * state.get('m', 0) + 0.1 * g
  state['s'] = 0.999 * state.get('s', 0) + 0.001 * g**2
  m, s = state['m'] / (1 - 0.9**t), state['s'] / (1 - 0.999**t)
  return w - RATE * m / (np.sqrt(s) + 1e-6)


def step_adagrad(w, g, state):
  state['s'] = state.get('s', 0.1) + g**2
  return w - RATE * g / np.sqrt(state['s'])


def step_rmsprop(w, g, state):
  state['s'] = 0.9 * state.get('s', 1.0) + 0.1 * g**2
  scaled = RATE * g / np.sqrt(state['s'] + 1e-10)
  state['v'] = MOMENTUM * state.get('v', 0) + scaled
  return w - state['v']


def step_ftrl(w, g, state):
  if not state:
    state['n'] = np.full(3, 0.1)
    state['z'] = -np.sqrt(0.1) * w
  n = state['n'] + g**2
  sigma = np.sqrt(n) - np.sqrt(state['n'])
  z = state['z'] = state['z'] + RATE * g - sigma * w
  state['n'] = n
  shrunk = np.maximum(np.abs(z) - RATE * L1, 0)
  return -np.sign(z) * shrunk / (np.sqrt(n) + 2 * RATE * L2)


STEPS = {
  'sgd': step_sgd,
  'momentum': step_momentum,
  'nesterov': step_nesterov,
  'adam': step_adam,
  'adamw': step_adam,  # A vector does not decay.
  'adagrad': step_adagrad,
  'rmsprop': step_rmsprop,
  'ftrl': step_ftrl,
  'lars': step_momentum,  # A vector has no ratio.
  'lamb': step_lamb,
}


@pytest.mark.parametrize('name', optimizers.OPTIMIZERS)
def test_an_optimizer_follows_its_equation(tf_session, name):
  variable = tf.get_variable('w', initializer=START.astype(np.float32))
  gradient = tf.placeholder(tf.float32, [3])
  loss = tf.reduce_sum(variable * gradient)
  own = {'l1': L1, 'l2': L2} if name == 'ftrl' else {}
  optimizer = optimizers.make_optimizer(name, RATE, momentum=MOMENTUM, **own)
  train_op = optimizer.minimize(loss)
  tf_session.run(tf.global_variables_initializer())
  expected, state = START, {}
  for g in GRADIENTS:
    tf_session.run(train_op, {gradient: g})
    expected = STEPS[name](expected, g, state)
    found = tf_session.run(variable)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
  'name, use_locking',
  # lamb has no kernel.
  [('sgd', False), *((n, True) for n in optimizers.OPTIMIZERS if n != 'lamb')],
)
def test_an_update_locks_its_variable_if_asked_to(
  tf_session, name, use_locking
):
  variable = tf.get_variable('w', [2])
  optimizer = optimizers.make_optimizer(name, 1.0, use_locking=use_locking)
  optimizer.minimize(tf.reduce_sum(variable))
  (apply,) = [
    op
    for op in tf.get_default_graph().get_operations()
    if op.type.startswith('ResourceApply')
  ]
  assert apply.get_attr('use_locking') == use_locking


def test_a_norm_of_zero_is_refused(set_flags):
  with pytest.raises(flags.IllegalFlagValueError, match='norm above 0'):
    set_flags('--clip_norm=0')


@pytest.mark.parametrize(
  'words, expected',
  [
    # 0.1 epochs a step: 3 steps are 0.3 epochs, and 0.1 * 3 is above it.
    (['step', '--lr_boundaries=0.3,0.6'], {2: 1, 3: 0.5, 5: 0.5, 6: 0.25}),
    (['exponential', '--lr_decay_steps=0.5'], {0: 1, 5: 0.5, 10: 0.25}),
    (
      ['linear_scaling', '--lr_warmup_steps=1', '--lr_scale=2'],
      {0: 1, 5: 1.5, 10: 2, 20: 2},
    ),
  ],
)
def test_a_schedule_in_epochs_is_of_the_work_that_is_done(
  tf_session, set_flags, words, expected
):
  set_flags(
    '--learning_rate=1',
    '--lr_decay_rate=0.5',
    '--lr_schedule_unit=epochs',
    f'--lr_schedule={words[0]}',
    *words[1:],
  )
  step = tf.placeholder(tf.int64, [])
  _, rate = optimizers.from_flags(step, 4, epochs_per_update=0.1)
  found = {t: tf_session.run(rate, {step: t}) for t in expected}
  assert found == pytest.approx(expected, rel=1e-5)


def test_the_flags_by_default_are_plain_sgd(tf_session, set_flags):
  set_flags()
  step = tf.train.get_or_create_global_step()
  make, rate = optimizers.from_flags(step)
  tf_session.run(tf.global_variables_initializer())
  assert isinstance(make(), tf.train.Optimizer)
  assert make().formula == formulas.make('sgd')
  assert make() is not make()
  assert tf_session.run(rate) == pytest.approx(0.01)


def test_the_flags_reach_the_optimizer(tf_session, set_flags):
  set_flags(
    '--optimizer=momentum',
    '--momentum=0.5',
    '--learning_rate=2',
    '--clip_norm=1',
    '--lr_schedule=step',
    '--lr_boundaries=1,3',
    '--lr_decay_rate=0.5',
  )
  step = tf.train.get_or_create_global_step()
  make, rate = optimizers.from_flags(step)
  w = tf.get_variable('w', initializer=0.0)
  train_op = make().minimize(10 * w, global_step=step)
  tf_session.run(tf.global_variables_initializer())
  found = []
  for _ in range(4):
    found.append(float(tf_session.run(rate)))
    tf_session.run(train_op)
  assert found == [2, 1, 1, 0.5]
  # Clipped to 1; the velocity is 1, 1.5, 1.75, 1.875.
  expected = -(2 * 1 + 1.5 + 1.75 + 0.5 * 1.875)
  assert tf_session.run(w) == pytest.approx(expected)


@pytest.mark.parametrize('words, scale', [([], 4), (['--lr_scale=2'], 2)])
def test_the_rate_is_scaled_by_the_number_of_batches(
  tf_session, set_flags, words, scale
):
  set_flags('--lr_schedule=linear_scaling', '--lr_warmup_steps=1', *words)
  _, rate = optimizers.from_flags(tf.constant(5, tf.int64), 4)
  assert tf_session.run(rate) == pytest.approx(0.01 * scale)


@pytest.mark.parametrize(
  'words, expected',
  [
    (['--optimizer=adamw'], 0.01),
    (['--optimizer=adamw', '--weight_decay=0'], 0),
    (['--optimizer=adam'], 0),
    (['--weight_decay=0.3'], 0.3),
    (['--local_optimizer=adamw'], 0),
  ],
)
def test_what_decays_by_default(tf_session, set_flags, words, expected):
  set_flags('--learning_rate=0.1', *words)
  make, _ = optimizers.from_flags(tf.train.get_or_create_global_step(), 1)
  w = tf.get_variable('w', initializer=[[2.0]])
  update = make().apply_gradients([(tf.zeros([1, 1]), w)])
  tf_session.run(tf.global_variables_initializer())
  tf_session.run(update)
  assert tf_session.run(w) == pytest.approx(2 * (1 - 0.1 * expected))


def test_sgd_that_decays_is_no_plain_sgd(set_flags):
  set_flags('--weight_decay=0.1', '--local_optimizer=adam')
  assert optimizers.base_rate_from_flags() == ('sgd with --weight_decay', 0.01)
  assert optimizers.local_name_from_flags() == 'adam with --weight_decay'


@pytest.mark.parametrize(
  'schedule, is_local, is_read_first',
  [
    ('exponential', True, True),
    ('exponential', False, False),
    ('constant', True, False),
  ],
)
def test_a_local_step_has_the_rate_of_its_beginning(
  tf_session, set_flags, schedule, is_local, is_read_first
):
  # What a rule does between the two may count the global step.
  set_flags(f'--lr_schedule={schedule}')
  global_step = tf.placeholder(tf.int64, [])
  make, _ = optimizers.from_flags(global_step, 2)
  variables = [tf.get_variable(n, initializer=2.0) for n in ('used', 'unused')]
  pairs = make(is_local=is_local).compute_gradients(variables[0] ** 2)
  (gradient, _), (none, _) = pairs
  assert none is None
  tf_session.run(tf.global_variables_initializer())
  assert tf_session.run(gradient, {global_step: 7}) == 4
  if is_read_first:
    with pytest.raises(tf.errors.InvalidArgumentError):
      tf_session.run(gradient)
  else:
    tf_session.run(gradient)


@pytest.mark.daily(but=['sgd', 'adam', 'lamb', 'ftrl'])
@pytest.mark.parametrize('name', optimizers.OPTIMIZERS)
@pytest.mark.slow
def test_weights_of_64_bits_move_like_those_of_32_beside_them(
  tf_session, set_flags, name
):
  decay = [] if name == 'ftrl' else ['--weight_decay=0.3']
  set_flags(
    *(f'--optimizer={name}', *decay, '--learning_rate=0.1', '--clip_norm=1'),
    '--lr_schedule=exponential',
  )
  make, _ = optimizers.from_flags(tf.Variable(0, dtype=tf.int64), 1)
  weights = [
    tf.get_variable(f'w{i}', initializer=np.array([[1.0, -2]], dtype))
    for i, dtype in enumerate((np.float64, np.float32))
  ]
  losses = [tf.cast(tf.reduce_sum(w**2), tf.float32) for w in weights]
  optimizer = make(rate_factor=tf.constant(0.5))
  train_op = optimizer.minimize(tf.add_n(losses), var_list=weights)
  tf_session.run(tf.global_variables_initializer())
  for _ in range(3):
    tf_session.run(train_op)
  wide, narrow = tf_session.run(weights)
  assert wide[0, 0] < 1
  np.testing.assert_allclose(wide, narrow, rtol=1e-5)
