"""A ps sees which workers wait for the end of a round."""

import contextlib

import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import token_table, waiting_workers


def test_those_without_a_token_wait(make_cluster):
  shared = make_cluster(1, 2)
  ps, worker = shared.ps(0), shared.worker(1)
  seen = waiting_workers.WaitingWorkers(ps, shared.ps_servers[0])
  with contextlib.closing(seen), tf.Graph().as_default():
    assert seen.find() == []
    table = token_table.TokenTable(worker, '/job:ps/task:0')
    ops = [table.set_has_token(has) for has in (False, True)]
    with tf.Session(shared.servers[1].target) as session:
      session.run(ops[0])
      assert seen.find() == ['worker 1']
      session.run(ops[1])
      assert seen.find() == []
      session.run(table.clear())
