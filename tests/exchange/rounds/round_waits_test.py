"""round_waits: what a wait is made of, read while all stand still."""

import contextlib

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
    assert '1 of 2' in text, text
    assert text.endswith('waits for worker 1')
  run.push(1, 4)
  assert run.stepper.join(0).global_step == 1
  assert run.stepper.join(1).global_step == 1

  def fail(*_):
    raise tf.errors.UnavailableError(None, None, '')

  monkeypatch.setattr(round_waits.deadlines, 'call', fail)
  rule = run.stepper.workers[0].rule
  text = round_waits.describe(rule.round, rule.raw_session.sess_str)
  assert text == 'the round cannot be read (UnavailableError)'


@pytest.mark.parametrize(
  ('table', 'counts', 'num_needed', 'num_in', 'whom'),
  [
    ([0, 1], [[1]], 2, '1 of 2', 'worker 1'),
    ([0, 0, -1], [[3, 3], [0, 2]], 3, '0 to 3 of 3', 'worker 2, which has'),
    # With a backup worker either is enough.
    ([0, 1, 1], [[1]], 2, '1 of 2', '1 of worker 1, worker 2'),
    ([0, 0], [[2]], 2, '2 of 2', 'worker 0, the chief'),
  ],
)
def test_who_is_waited_for_is_who_may_still_contribute(
  table, counts, num_needed, num_in, whom
):
  line = round_waits.format_state(
    {
      'step': 2879,
      'token_table': table,
      'contributions': dict(enumerate(counts)),
    },
    num_needed,
  )
  assert f'step 2880 has {num_in} ' in line
  assert f' waits for {whom}' in line


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
