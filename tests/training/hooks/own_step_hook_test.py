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
    hook = own_step_hook.OwnStepHook(train_op, step)
    raw.run(step.initializer)
    seen = []

    def run(fetches):
      context = tf.train.SessionRunContext(
        tf.train.SessionRunArgs(fetches), raw
      )
      asked = hook.before_run(context)
      values = raw.run([fetches, asked.fetches])
      hook.after_run(context, tf.train.SessionRunValues(values[1], None, None))
      seen.append(hook.last['global_step'])

    for fetches in train_op, after, {'a': [train_op], 'b': beside}:
      run(fetches)
    for fetches in beside, [sparse], beside.name:
      run(fetches)
  assert seen == [1, 2, 3, 3, 3, 3]
