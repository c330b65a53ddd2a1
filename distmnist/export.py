"""A SavedModel from a checkpoint, whatever cluster has written it.

  python -m distmnist.export --logdir=logs/run --export_dir=logs/model

takes the latest checkpoint of a run. Model and data set are those that the run
was started with; flags given here win over them. What comes out serves images
as bytes and needs no cluster and no distmnist; see serving/saved_model.py for
its signature. `python -m distmnist.predict` runs it.
"""

import distmnist.runtime  # noqa: F401  TensorFlow, quiet and in graph mode.

# isort: split
import tensorflow.compat.v1 as tf

from distmnist.cluster import errors
from distmnist.common import cli, console
from distmnist.logdir import checkpoints, saved_run
from distmnist.problems import images
from distmnist.serving import saved_model
from distmnist.training import divergence
from distmnist.training import problem as problem_lib


def main():
  console.print_logs(console.print_to_stderr)
  export_dir = saved_model.export_dir_from_flags()
  logdir = saved_run.logdir_from_flags()
  saved_model.check_free(export_dir)
  saved_run.take_flags(logdir)
  problem = problem_lib.from_flags()
  if problem.is_custom:
    raise cli.UsageError(
      f'--problem={problem.describe()} cannot be exported: so far only the '
      'images of --dataset can; evaluate takes any problem'
    )
  shape = images.image_shape()
  check = divergence.without_data(problem, shape)
  path = saved_run.find_checkpoint(logdir, check.find)
  num_classes, num_bytes = export(problem, shape, path, export_dir)
  height, width, channels = shape
  print(
    f'step {checkpoints.read_step(path)}  {problem.describe()}, '
    f'images [n, {height}, {width}, {channels}] -> {num_classes} classes, '
    f'{num_bytes / 1e6:,.1f} MB  {export_dir}'
  )


def export(problem, image_shape, path, export_dir):
  """Writes the SavedModel of a checkpoint.

  The graph is built anew, as for an evaluation: no shards, no device, no
  optimizer, and batch norm by its averages.

  Args:
    problem: problem.Problem of images.
    image_shape: (height, width, channels).
    path: str, a checkpoint.
    export_dir: str, new or empty.

  Returns:
    (number of classes, bytes written), int.

  Raises:
    cli.RunError: the checkpoint is not whole or of another model, or the
      SavedModel cannot be written.
  """
  # Nothing is computed: a GPU may be in use by the training.
  config = tf.ConfigProto(device_count={'GPU': 0})
  with tf.Graph().as_default(), tf.Session(config=config) as session:
    fed = tf.placeholder(tf.uint8, [None, *image_shape], 'images')
    x, _ = problem.preprocess(fed, None, is_training=False)
    logits = problem.build(x, is_training=False)
    classes = tf.argmax(logits, axis=1, name='classes')
    probabilities = tf.nn.softmax(logits, name='probabilities')
    variables = tf.global_variables()
    checkpoints.check_fits(path, variables)
    if damage := checkpoints.find_damage(path):
      raise cli.RunError(
        f'checkpoint {path} is not whole: {damage}; give another one by '
        '--checkpoint'
      )
    saver = tf.train.Saver(variables)
    saver.restore(session, path)
    try:
      num_bytes = saved_model.write(
        export_dir, session, saver, fed, classes, probabilities
      )
    except (tf.errors.OpError, OSError) as error:
      is_ops = isinstance(error, tf.errors.OpError)
      reason = errors.explain(error) if is_ops else error.strerror
      raise cli.RunError(
        f'--export_dir={export_dir} cannot be written: {reason}; make room '
        'there, or give a folder of your own'
      ) from error
  return logits.shape.as_list()[1], num_bytes


def run():
  cli.run(main)


if __name__ == '__main__':
  run()
