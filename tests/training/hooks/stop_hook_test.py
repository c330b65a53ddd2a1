"""stop_hook: when a training ends."""

import types

import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.training.hooks import stop_hook
from tests.support import in_process


def test_what_is_lost_counts_from_the_last_step_before_the_restore(logged):
  steps = types.SimpleNamespace(last={})
  stop = in_process.NoStop()
  hook = stop_hook.StopHook(steps, None, 100, stop, lambda: False)

  def begin(step):
    session = types.SimpleNamespace(run=lambda _: step)
    hook.after_create_session(session, None)

  begin(0)
  # It waits as the center is set back to 20, and is let go with that step.
  for step in (30, 40, 20):
    steps.last['global_step'] = step
    hook.after_run(None, None)
  begin(20)
  assert logged == ['recovered at step 20: 20 steps lost']
  assert hook.sessions == [[0, 40], [20, 20]]


def test_a_stop_for_all_is_asked_for_twice_a_second(monkeypatch):
  clock, looks, ends = types.SimpleNamespace(now=9.0), [], []
  clock.monotonic = lambda: clock.now
  monkeypatch.setattr(stop_hook, 'time', clock)

  def is_stop_for_all():
    looks.append(clock.now)
    return clock.now >= 10

  steps = types.SimpleNamespace(last={'global_step': 1})
  hook = stop_hook.StopHook(
    *(steps, None, 100, in_process.NoStop(), is_stop_for_all),
    request_stop=lambda context: ends.append(clock.now),
  )
  hook.after_create_session(
    types.SimpleNamespace(run=lambda _: 0), tf.train.Coordinator()
  )
  for _ in range(5):
    hook.after_run(None, None)
    clock.now += 0.25
  assert looks == [9, 9, 9.5, 10]
  assert ends == [10]


@pytest.mark.parametrize(
  ('step', 'is_for_all', 'is_asked', 'is_over'),
  [
    (99, False, False, False),
    (100, False, False, True),
    (20, True, False, True),
    (20, False, True, True),  # By a signal, while the session was made.
  ],
)
def test_a_session_with_nothing_left_to_do_makes_no_step(
  step, is_for_all, is_asked, is_over
):
  steps, ends = types.SimpleNamespace(last={}), []
  stop = types.SimpleNamespace(is_requested=is_asked)
  hook = stop_hook.StopHook(steps, None, 100, stop, lambda: is_for_all)
  hook.after_create_session(
    types.SimpleNamespace(run=lambda _: step),
    types.SimpleNamespace(request_stop=lambda: ends.append(step)),
  )
  assert bool(ends) == is_over


@pytest.mark.parametrize('number', range(3))
def test_no_step_of_a_run_may_have_an_infinite_loss(number):
  done = [{'loss': 1.0, 'global_step': 7 + i} for i in range(3)]
  told = []

  def explain(*where):
    told.append(where)
    return 'the loss is inf'

  steps = types.SimpleNamespace(done=done, last=done[-1])
  stop = in_process.NoStop()
  hook = stop_hook.StopHook(
    steps, None, 100, stop, lambda: False, explain_nan=explain
  )
  hook.after_create_session(
    types.SimpleNamespace(run=lambda _: 0), tf.train.Coordinator()
  )
  hook.after_run(None, None)
  steps.done[number]['loss'] = float('inf')
  with pytest.raises(cli.RunError, match='^the loss is inf$'):
    hook.after_run(None, None)
  assert told == [(float('inf'), 7 + number, number)]
