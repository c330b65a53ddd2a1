"""Handover: any worker's values, to some of the others, whole or not at all."""

import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.ring import generations, handover

VALUES = np.arange(6.0).reshape(2, 3), np.array(7), np.array([True, False])


def build(member, number):
  """Returns (variables, Handover) of a worker; its values are `number`-fold."""
  with tf.device(member.cpu_device):
    variables = [
      tf.get_variable(f'v{i}', initializer=tf.constant(x * number, x.dtype))
      for i, x in enumerate(VALUES)
    ]
    return variables, handover.Handover(member, variables, 'values')


def open_session(cluster, index):
  config = cluster.session_config(index)
  return tf.Session(cluster.servers[index].target, config=config)


@pytest.mark.slow
@pytest.mark.parametrize('giver', [0, 2])
def test_any_worker_gives_its_values_to_some(make_cluster, giver):
  cluster = make_cluster(0, 3)
  cluster.reset()

  def work(index):
    variables, values = build(cluster.worker(index), index == giver)
    values.take_from(giver)
    with open_session(cluster, index) as session:
      session.run(tf.global_variables_initializer())
      if index == giver:
        session.run([values.gifts[1]])
      elif index == 1:
        session.run(values.take)
      return session.run(variables)

  found = cluster.run_workers(work)
  for index in range(3):
    for value, expected in zip(found[index], VALUES, strict=True):
      has_it = index in (giver, 1)
      np.testing.assert_array_equal(value, expected * has_it)


@pytest.mark.slow
def test_the_next_session_may_take_from_another(make_cluster):
  cluster = make_cluster(0, 3)
  cluster.reset()
  all_have_left = threading.Barrier(3)

  def work(index):
    member = cluster.worker(index)
    variables, values = build(member, index)
    queues = generations.Queues(member)
    found = []
    with open_session(cluster, index) as session:
      session.run(tf.global_variables_initializer())
    for giver, name in ((1, 'first'), (2, 'second')):
      queues.begin(name)
      values.take_from(giver)
      with open_session(cluster, index) as session:
        if index == giver:
          # What nobody takes does not reach the next generation.
          session.run([x for x in values.gifts if x is not None])
        if index == 0:
          session.run(values.take)
        found.append(session.run(variables[1]))
      all_have_left.wait(60)
      queues.drop(name, cluster.servers[index])
    return found

  assert cluster.run_workers(work)[0] == [7, 14]
