"""worker_steps: what is fetched of each step, and what is known before."""

import types

import pytest
import tensorflow.compat.v1 as tf

from distmnist.training import worker_steps


@pytest.mark.parametrize('has_summaries', [False, True])
def test_what_differs_from_step_to_step_is_fetched(
  tf_session, set_flags, has_summaries
):
  set_flags()
  update = types.SimpleNamespace(
    train_op=tf.constant(7, tf.int64),
    staleness=tf.constant(2, tf.int64),
    bytes_pulled=40,
    bytes_pushed=20,
  )
  step = types.SimpleNamespace(
    update=update,
    loss=tf.constant(0.5),
    metrics={'accuracy': tf.constant(0.25)},
  )
  graph = types.SimpleNamespace(step=step, warmup=None)
  steps, constants = worker_steps.make_steps(None, graph, has_summaries)
  assert constants == {'bytes_pulled': 40, 'bytes_pushed': 20}
  context = types.SimpleNamespace(session=tf_session)
  fetches = steps.before_run(context).fetches
  values = tf_session.run(fetches)
  steps.after_run(context, types.SimpleNamespace(results=values))
  found = steps.last
  assert (found['global_step'], found['staleness']) == (7, 2)
  assert found.get('accuracy') == (0.25 if has_summaries else None)
