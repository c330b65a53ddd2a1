"""own_step_hook: which runs need a step, and which do not."""

import tensorflow.compat.v1 as tf

from distmnist.training.hooks import own_step_hook


def test_a_run_that_needs_a_step_gives_the_step_that_it_has_made():
  with tf.Graph().as_default(), tf.Session() as raw:
    step = tf.train.get_or_create_global_step()
    train_op = step.assign_add(1, read_value=True)
    beside = tf.constant(7)
    after = tf.group(tf.identity(train_op) * 2)
    sparse = tf.sparse.from_dense([0, 1])
    hook = own_step_hook.OwnStepHook(
      {'global_step': train_op, 'loss': tf.constant(0.5)}, step
    )
    raw.run(step.initializer)
    seen = []

    def run(fetches):
      context = tf.train.SessionRunContext(
        tf.train.SessionRunArgs(fetches), raw
      )
      asked = hook.before_run(context)
      values = raw.run([fetches, asked.fetches])
      hook.after_run(context, tf.train.SessionRunValues(values[1], None, None))
      seen.append((hook.last['global_step'], len(hook.done)))
      if hook.done:
        assert hook.done == [{**hook.last, 'loss': 0.5}]

    for fetches in train_op, after, {'a': [train_op], 'b': beside}:
      run(fetches)
    for fetches in beside, [sparse], beside.name:
      run(fetches)
  assert seen == [(1, 1), (2, 1), (3, 1), (3, 0), (3, 0), (3, 0)]


def test_a_summary_is_fetched_with_the_steps_where_it_is_due():
  with tf.Graph().as_default(), tf.Session() as raw:
    step = tf.train.get_or_create_global_step()
    train_op = step.assign_add(1, read_value=True)
    hook = own_step_hook.OwnStepHook(
      {'global_step': train_op, 'summary': tf.constant(0.5)},
      step,
      summary=tf.constant('written'),
      is_summary_due=lambda: hook.last.get('global_step') == 1,
    )
    raw.run(step.initializer)
    found = []
    for fetches in train_op, tf.constant(7), train_op, train_op:
      context = tf.train.SessionRunContext(
        tf.train.SessionRunArgs(fetches), raw
      )
      values = raw.run(hook.before_run(context).fetches)
      hook.after_run(context, tf.train.SessionRunValues(values, None, None))
      found.append(hook.own_summary)
      # A number of the script's that is called so.
      assert [done['summary'] for done in hook.done] == [0.5] * len(hook.done)
  assert found == [None, None, b'written', None]


def test_what_needs_another_input_is_not_fetched_with_a_step():
  with tf.Graph().as_default():
    x, other = tf.placeholder(tf.float32), tf.placeholder(tf.float32)
    data = tf.data.Dataset.from_tensor_slices([1.0, 2.0])
    batch, test = (
      tf.data.make_one_shot_iterator(data).get_next() for _ in range(2)
    )
    loss = x * batch
    kept = [loss * 2, tf.constant(1.0), x]
    tensors = [kept[0], other + x, kept[1], test, kept[2]]
    found = own_step_hook.keep_runnable(tensors, [loss])
  assert [x.name for x in found] == [x.name for x in kept]
