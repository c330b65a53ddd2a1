"""Learning-rate schedules: each against its equation, wrong ones refused."""

import types

import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.nn import schedules


@pytest.mark.parametrize(
  'schedule, settings, expected',
  [
    ('constant', {}, {0: 0.2, 12345: 0.2}),
    (
      'exponential',
      {'decay_steps': 100, 'decay_rate': 0.25},
      {0: 0.2, 50: 0.1, 100: 0.05, 200: 0.0125},
    ),
    (
      'step',
      {'boundaries': [10, 20], 'decay_rate': 0.1},
      {0: 0.2, 9: 0.2, 10: 0.02, 19: 0.02, 20: 0.002, 999: 0.002},
    ),
    (
      'linear_scaling',
      {'warmup_steps': 10, 'scale': 4.0},
      {0: 0.2, 5: 0.5, 10: 0.8, 11: 0.8, 999: 0.8},
    ),
    ('linear_scaling', {'warmup_steps': 10}, {0: 0.2, 5: 0.2, 99: 0.2}),
    ('constant', {'warmup_steps': 4}, {0: 0, 1: 0.05, 3: 0.15, 4: 0.2, 9: 0.2}),
    (
      'cosine',
      {'decay_steps': 100, 'decay_rate': 0.0},
      {0: 0.2, 25: 0.1 * (1 + 0.5**0.5), 50: 0.1, 100: 0, 999: 0},
    ),
    (
      'cosine',
      {'decay_steps': 100, 'decay_rate': 0.5, 'warmup_steps': 10},
      {0: 0, 5: 0.1, 10: 0.2, 60: 0.15, 110: 0.1, 999: 0.1},
    ),
    (
      'polynomial',
      {'decay_steps': 100, 'decay_rate': 0.1},
      {0: 0.2, 50: 0.11, 100: 0.02, 999: 0.02},
    ),
    (
      'polynomial',
      {'decay_steps': 10, 'decay_rate': 0, 'power': 2, 'warmup_steps': 2},
      {1: 0.1, 2: 0.2, 7: 0.05, 12: 0, 99: 0},
    ),
    (
      'exponential',
      {'decay_steps': 10, 'decay_rate': 0.5, 'warmup_steps': 2},
      {0: 0, 2: 0.2, 12: 0.1},
    ),
    # Boundaries count all steps, as in the papers that warm up before them.
    (
      'step',
      {'boundaries': [10], 'decay_rate': 0.1, 'warmup_steps': 4},
      {2: 0.1, 9: 0.2, 10: 0.02},
    ),
    # With a cut every ten steps.
    (
      'plateau',
      {'decay_rate': 0.5, 'warmup_steps': 4},
      {0: 0, 2: 0.1, 9: 0.2, 10: 0.1, 25: 0.05},
    ),
  ],
)
def test_a_schedule_follows_its_equation(
  tf_session, schedule, settings, expected
):
  step = tf.placeholder(tf.int64, [])
  plateau = None
  if schedule == 'plateau':
    cuts = tf.cast(step // 10, tf.float32)
    plateau = types.SimpleNamespace(build_cuts=lambda: cuts)
  rate = schedules.Schedule(schedule, **settings).build(step, 0.2, plateau)
  assert (rate.dtype, rate.shape) == (tf.float32, [])
  found = {t: tf_session.run(rate, {step: t}) for t in expected}
  assert found == pytest.approx(expected, rel=1e-6)


def test_every_schedule_is_tested_above():
  (mark,) = test_a_schedule_follows_its_equation.pytestmark
  tested = {case[0] for case in mark.args[1]}
  assert tested == set(schedules.SCHEDULES)


@pytest.mark.parametrize('words', ['10,5', '10,10', '10,x', '10,', '1.5'])
def test_boundaries_that_do_not_ascend_are_refused(words):
  with pytest.raises(
    cli.UsageError,
    match=f'^--lr_boundaries={words}: expected ascending global steps, such ',
  ):
    schedules.parse_boundaries(words.split(','), 'step')


@pytest.mark.parametrize('words', ['2,1', '1,1', '1,x', '-1', 'nan', 'inf'])
def test_epochs_that_do_not_ascend_are_refused(words):
  with pytest.raises(
    cli.UsageError, match='expected ascending epochs, such as'
  ):
    schedules.parse_boundaries(words.split(','), 'step', 'epochs')


@pytest.mark.parametrize(
  'words, message',
  [
    (['--lr_decay_steps=0.5'], '--lr_decay_steps=0.5: expected whole global '),
    (['--lr_warmup_steps=0.5'], '--lr_warmup_steps=0.5: expected whole glob'),
    (
      ['--lr_schedule_unit=epochs', '--lr_decay_steps=0'],
      '--lr_decay_steps=0: expected a number of epochs above 0',
    ),
    *(
      (
        ['--lr_schedule=plateau', f'--lr_decay_rate={factor}'],
        f'--lr_decay_rate={factor}: expected a factor above 0 and below 1',
      )
      for factor in ('0', '1', '1.5')
    ),
  ],
)
def test_a_schedule_that_is_none_is_refused(set_flags, words, message):
  set_flags(*words)
  with pytest.raises(cli.UsageError, match=f'^{message}'):
    schedules.check_flags()


def test_boundaries_are_ints():
  assert schedules.parse_boundaries(['10', '200'], 'step') == [10, 200]
  assert schedules.parse_boundaries([], 'constant') == []


def test_a_step_schedule_without_boundaries_is_refused():
  with pytest.raises(
    cli.UsageError, match='^--lr_schedule=step needs --lr_boundaries=1000,2000'
  ):
    schedules.parse_boundaries([], 'step')


@pytest.mark.parametrize(
  'words', [['9' * 20], ['1e300', '--lr_schedule_unit=epochs']]
)
def test_a_boundary_that_no_step_reaches_changes_nothing(
  tf_session, set_flags, words
):
  boundary, *unit = words
  set_flags('--lr_schedule=step', f'--lr_boundaries=5,{boundary}', *unit)
  rate = schedules.from_flags(1, 0.1).build(tf.int64.max // 4, 1.0)
  assert tf_session.run(rate) == pytest.approx(0.96)


@pytest.mark.parametrize(
  'words, expected',
  [
    ([], {0: 1, 10: 0.5, 20: 0}),
    (['--lr_warmup_steps=4'], {2: 0.5, 4: 1, 12: 0.5, 20: 0}),
    (['--lr_decay_steps=10'], {0: 1, 5: 0.5, 10: 0, 20: 0}),
    (['--lr_schedule_unit=epochs', '--lr_decay_steps=1'], {2: 0.5, 4: 0}),
    (['--lr_decay_rate=0.5'], {0: 1, 10: 0.75, 20: 0.5}),
  ],
)
def test_a_cosine_ends_with_the_training(
  tf_session, set_flags, words, expected
):
  set_flags('--lr_schedule=cosine', *words)
  step = tf.placeholder(tf.int64, [])
  rate = schedules.from_flags(1, 0.25, last_step=20).build(step, 1.0)
  found = {t: tf_session.run(rate, {step: t}) for t in expected}
  assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
  'words, last_step, message',
  [
    ([], None, 'cosine needs --lr_decay_steps'),
    (['--lr_warmup_steps=20'], 20, 'ends at step 20, before the rate would'),
  ],
)
def test_a_cosine_without_an_end_is_refused(
  set_flags, words, last_step, message
):
  set_flags('--lr_schedule=cosine', *words)
  with pytest.raises(cli.UsageError, match=message):
    schedules.from_flags(1, last_step=last_step)
