"""round_waits: what a wait is made of, read while all stand still."""

import contextlib
import re

import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import round_waits, tokens
from tests.support import rounds

make = rounds.make


@pytest.mark.slow
def test_a_wait_is_read_from_outside_or_said_not_to_be(make, monkeypatch):
  run = make(num_ps=2)
  run.push(0, 8)
  assert not run.stepper.is_done(0)
  for worker in run.stepper.workers:
    text = worker.rule.hook.describe_wait()
    assert re.match(
      r'the round of step 0, life \d+: worker 1 has a token; worker 0 waits; '
      r'tokens left: 0 0; contributions in the accumulators of '
      r'/job:ps(/replica:0)?/task:\d: 1',
      text,
    ), text
  assert 'whose thread goes on' in (
    run.stepper.workers[0].rule.hook.describe_wait()
  )
  run.push(1, 4)
  assert run.stepper.join(0).global_step == 1
  assert run.stepper.join(1).global_step == 1

  def fail(*_):
    raise tf.errors.UnavailableError(None, None, '')

  monkeypatch.setattr(round_waits.deadlines, 'call', fail)
  rule = run.stepper.workers[0].rule
  text = round_waits.describe(rule.round, rule.raw_session.sess_str)
  assert text == 'the round cannot be read (UnavailableError)'


def test_accumulators_that_differ_are_told():
  line = round_waits.format_state(
    {
      'step': 2880,
      'life': 4,
      'token_table': [0, 0, -1],
      'tokens': [0, 0, 1],
      'contributions': {
        '/job:ps/task:0/device:CPU:0': [3, 3],
        '/job:ps/task:1': [0, 2],
      },
    }
  )
  assert line == (
    'the round of step 2880, life 4: worker 0, worker 1 wait; worker 2 has not '
    'begun; tokens left: 0 0 1; contributions in the accumulators of '
    '/job:ps/task:0: 3, /job:ps/task:1: 0 to 2'
  )


@pytest.mark.slow
def test_those_without_a_token_wait(make_cluster):
  shared = make_cluster(1, 2)
  ps, worker = shared.ps(0), shared.worker(1)
  seen = round_waits.WaitingWorkers(ps, shared.ps_servers[0])
  with contextlib.closing(seen), tf.Graph().as_default():
    assert seen.find() == []
    table = tokens.TokenTable(worker, '/job:ps/task:0')
    ops = [table.set_has_token(has) for has in (False, True)]
    with tf.Session(shared.servers[1].target) as session:
      session.run(ops[0])
      assert seen.find() == ['worker 1']
      session.run(ops[1])
      assert seen.find() == []
      session.run(table.clear())
