"""One task of a training cluster, or the whole training in one process.

Every host runs the same command with its own --job_name and --task_index:

  python -m distmnist.train --job_name=ps --task_index=0 \\
      --ps_hosts=a:2222 --worker_hosts=b:2222,c:2222 --logdir=/shared/run

Without hosts TF_CONFIG, or Slurm's variables and DISTMNIST_NUM_PS, say who is
who; --print_cluster shows it. Without these, too, one process trains alone, on
the same path. On one machine `python -m distmnist.launch` starts a whole
cluster.
"""

import distmnist.runtime  # noqa: F401  TensorFlow, quiet and in graph mode.

# isort: split
import contextlib
import fractions
import functools
import math
import os
import socket
import time
from typing import NamedTuple

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist import (
  accuracy,
  batch_source,
  cli,
  consistency,
  dispatcher,
  divergence,
  draws,
  fed_rows,
  files,
  hooks,
  input_pipeline,
  layers,
  lives,
  logdirs,
  lost_workers,
  nonfinite,
  optimizers,
  placement,
  preemption,
  registry,
  report,
  run_data,
  stalls,
  summaries,
  tasks,
  workload,
)
from distmnist import chief as chief_lib
from distmnist import cluster as cluster_lib
from distmnist import evaluator as evaluator_lib
from distmnist import history as history_lib
from distmnist import owner as owner_lib
from distmnist import rehearsal as rehearsal_lib
from distmnist import restart as restart_lib
from distmnist import session as session_lib
from distmnist import steps as steps_lib
from distmnist import strategy as strategy_lib
from distmnist import watchdog as watchdog_lib
from distmnist.console import Console

_STRATEGY = flags.DEFINE_enum(
  'strategy',
  'async_sgd',
  registry.names('distmnist.strategies'),
  'The distributed update rule.',
)
_SYNC_REPLICAS = flags.DEFINE_bool(
  'sync_replicas', False, 'Short for --strategy=sync_sgd.'
)
_BATCH_SIZE = flags.DEFINE_integer(
  'batch_size', 100, 'Images in one batch of one worker.', lower_bound=1
)
_TRAIN_STEPS = flags.DEFINE_integer(
  'train_steps',
  None,
  'Global steps (updates of the center, by all workers) at which training '
  'ends. With --epochs as well, what comes first.',
  lower_bound=1,
)
_EPOCHS = flags.DEFINE_float(
  'epochs',
  None,
  'Passes over the training images, in which each is read exactly once; see '
  '--epochs_over. The work is shared: a fast worker does more of it. By '
  'default 1, if there are no --train_steps.',
  lower_bound=0,
  upper_bound=1e9,
)
_EPOCHS_OVER = flags.DEFINE_enum(
  'epochs_over',
  'shard',
  ['shard', 'dataset'],
  'What an epoch is. shard: one pass of all workers together, each taking '
  'batches of it; dataset: each worker passes over the whole set, in an order '
  'of its own, so that n workers make n passes in an epoch.',
)
_SEED = flags.DEFINE_integer(
  'seed', 0, 'Of the first weights and of the order of images.', lower_bound=0
)
_DOWNLOAD_ONLY = flags.DEFINE_bool(
  'download_only', False, 'Make sure that the data set is there, and end.'
)
_SUMMARY_STEPS = flags.DEFINE_integer(
  'summary_steps',
  100,
  'Local steps from one summary of a worker to the next.',
  lower_bound=1,
)
_TRACE_STEPS = flags.DEFINE_list(
  'trace_steps',
  [],
  'Local steps of each worker, such as 100,200, of which a Chrome timeline of '
  'worker and ps is written to --logdir.',
)
_LOG_SECS = flags.DEFINE_float(
  'log_secs', 2, 'Seconds from one progress line to the next.', lower_bound=0
)
_PRINT_CLUSTER = flags.DEFINE_bool(
  'print_cluster',
  False,
  'Check and print who is who and who this task is, and exit.',
)

_NAN_ADVICE = (
  'try a lower --learning_rate, --clip_norm=1 or, for an asynchronous strategy '
  'with many workers, the rate divided by their number'
)

registry.load_all('distmnist.strategies')


def main():
  """Runs this task and returns its exit code."""
  with contextlib.ExitStack() as at_end:
    return run_task(at_end)


def run_task(at_end):
  """Runs this task and returns its exit code.

  Args:
    at_end: contextlib.ExitStack, takes what must be let go of at the end.
  """
  start = time.monotonic()
  if _DOWNLOAD_ONLY.value:
    workload.prepare_data()
    print(f'{workload.describe()[1]} is in {workload.data_dir_from_flags()}')
    return 0
  console = Console(_LOG_SECS.value)
  stop = preemption.StopRequest(console.say, preemption.STOP_GRACE_SECS.value)
  cluster = cluster_lib.from_flags(os.environ, console.say)
  if _PRINT_CLUSTER.value:
    console.say(cluster.describe())
    return 0
  if cluster.told_by not in ('', 'flags'):
    there = cluster.name_there(cluster.name)
    console.say(
      f'told by {cluster.told_by}: this task is {cluster.name}'
      + (f', there {there}' if there else '')
    )
  server_config = cluster_lib.make_server_config(cluster.num_gpus)
  if cluster.job_name == 'evaluator':
    return evaluator_lib.run_task(cluster, server_config, stop, console.say)
  if cluster.job_name == 'ps':
    server = cluster_lib.make_server(cluster, server_config)
    watchdog = watchdog_lib.from_flags(cluster, server, stop, console.say)
    return session_lib.run_ps(cluster, server, stop, watchdog, console.say)

  # What a user may have got wrong comes before the server: once it answers,
  # the other tasks count on this one.
  train_split, validation_split = workload.load_training_splits()
  name, strategy, build_model, plan, traced = check_flags(
    cluster, len(train_split.images), len(validation_split.images)
  )
  logdir = logdirs.from_flags()
  restart = restart_lib.from_flags(logdir, plan.last_step, console.say)
  if session_lib.has_ended(cluster, restart):
    console.say('the run has ended')
    return 0
  if cluster.is_chief:
    its_images = run_data.describe(train_split, validation_split)
    restart.check(
      divergence.CostCheck(build_model, train_split, server_config).find,
      its_images,
    )
  owner = None
  if logdir:
    logdirs.make(logdir)
    if cluster.is_chief:
      files.warn_of_owner('logdir', logdir, console.say)
      owner = owner_lib.Owner('--logdir', logdir, console.say)
      try:
        restart.take(at_end.enter_context(owner), cluster, stop.wait)
      except preemption.StoppedError:
        return session_lib.end(stop)
  if cluster.is_chief:
    restart.prepare()
  server = cluster_lib.make_server(cluster, server_config)
  watchdog = watchdog_lib.from_flags(cluster, server, stop, console.say)
  if owner:
    logdirs.sign(logdir, watchdog.life)
    owner.keep(stop.give_up, lambda: chief_lib.write_run(logdir, its_images))
  history = history_lib.from_flags(logdir, cluster.task_index, watchdog.life)
  history.write('start', host=socket.gethostname(), pid=os.getpid())
  console.say(
    f'{cluster.name} at {cluster.address}: {name}, {cluster.num_ps} ps, '
    f'{cluster.num_workers} workers; {" on ".join(workload.describe())}, '
    f'{plan.num_images} training images here; {plan.last_step} global steps'
  )

  with session_lib.telling_ps(cluster, server, stop), tf.Graph().as_default():
    draws.set_seed(_SEED.value, cluster.task_index)
    rehearsal = None
    if strategy.is_rehearsed:
      rehearsal = rehearsal_lib.Rehearsal(cluster.cpu_device)
    images, labels = input_pipeline.build_batches(
      *train_split, plan.batch_size, cluster.cpu_device, rehearsal
    )
    step = build_step(
      cluster,
      strategy,
      build_model,
      images,
      labels,
      plan.images_per_update / len(train_split.images),
      plan.dealing,
    )
    if logdir and cluster.is_chief:
      # Of one step: copies of it are to come.
      summaries.write_graph(logdir, console.say)
    if cluster.num_ps:
      shared = [
        v for v in tf.global_variables() if v is not step.table.variable
      ]
      placement.check_center_is_on_ps(shared)
      console.say(placement.format_bytes_per_ps(shared, cluster.num_ps))
    if cluster.is_distributed:
      console.say(
        placement.compute_traffic(
          cluster, strategy, tf.trainable_variables()
        ).format()
      )

    if cluster.is_chief and (
      caveat := layers.describe_averages(name, strategy.has_local_steps)
    ):
      console.say(caveat)

    config = cluster.session_config(server_config)
    strategy_hooks = [*strategy.hooks(stop), step.table.hook()]
    watchdog.stalls.describe_wait = functools.partial(
      strategy_lib.describe_wait, strategy_hooks
    )
    scaffold = session_lib.ClusterScaffold(
      cluster,
      server,
      config,
      stop,
      watchdog,
      restart,
      tf.train.Saver(),
      strategy_hooks,
      console.say,
    )
    others = session_lib.Others(cluster, server, watchdog.secs_silent)
    numbers = {
      'global_step': step.train_op,
      'cost': step.loss,
      'staleness': strategy.staleness,
      'bytes_pulled': strategy.bytes_pulled,
      'bytes_pushed': strategy.bytes_pushed,
    }
    [batches] = tf.get_collection(fed_rows.COLLECTION)
    source = batch_source.BatchSource(
      plan.dealing,
      plan.num_images,
      _SEED.value,
      cluster.task_index,
      batches.fed,
      history,
    )
    steps = steps_lib.make(
      {n: x for n, x in numbers.items() if tf.is_tensor(x)},
      source,
      {'accuracy': step.num_correct / plan.batch_size} if logdir else {},
      rehearsal,
    )
    stats = report.WorkerStats(
      cluster.task_index, life=watchdog.life, start=time.time()
    )
    progress = hooks.ProgressHook(
      stats,
      steps,
      {n: x for n, x in numbers.items() if isinstance(x, int)},
      step.learning_rate,
      plan,
      console,
      logdir and os.path.join(logdir, f'worker_{cluster.task_index}'),
      _SUMMARY_STEPS.value,
    )
    # Their order counts. At the start the strategy may set the variables, the
    # global step too; at the end it lets go of the workers that wait before
    # the chief waits for them.
    stop_hook = hooks.StopHook(
      steps,
      step.global_step,
      plan.last_step,
      stop,
      others.is_stop_for_all,
      strategy.request_stop,
      console.say,
    )
    stats.sessions = stop_hook.sessions
    life = at_end.enter_context(
      contextlib.closing(lives.LifeHook(stats, logdir, console.say))
    )
    session_hooks = [
      stalls.StallHook(watchdog.stalls),
      *([rehearsal.hook(steps)] if rehearsal else []),
      *strategy_hooks,
      steps,
      stop_hook,
      hooks.NanHook(steps, _NAN_ADVICE),
      batch_source.BatchHook(
        source,
        step.table,
        steps,
        strategy,
        lost_workers.LostWorkers(cluster, watchdog),
        others.is_stop_for_all,
        watchdog,
        stop,
      ),
      progress,
      nonfinite.NonfiniteHook(stats, console.say),
      life,
    ]
    if traced:
      folder = os.path.join(logdir, f'worker_{cluster.task_index}')
      session_hooks.append(hooks.TraceHook(traced, steps, folder, console.say))
    if logdir and not cluster.is_chief:
      session_hooks.append(
        consistency.LogdirHook(watchdog, logdir, console.say)
      )
    if cluster.is_chief:
      chief = chief_lib.Chief(
        build_model,
        step.center,
        validation_split,
        its_images,
        owner,
        server_config,
      )
      session_hooks += chief.hooks(
        steps, scaffold, others, strategy, stop, console.say
      )
    cluster_lib.log_placement(tf.get_default_graph(), console.say)

    with session_lib.make_session(
      cluster, server, config, scaffold, session_hooks, console.say
    ) as session:
      while not session.should_stop():
        session.run([])
    history.write('end')

    if not (cluster.is_chief or stop.is_requested):
      others.send_stats(stats)

  watchdog.close()
  if stop.is_requested:
    console.say(
      'stopped before the first step'
      if progress.final_step is None
      else f'stopped at step {progress.final_step}'
    )
  elif cluster.is_chief:
    chief.report(
      stats,
      progress,
      strategy,
      cluster.num_workers,
      start,
      console.say,
    )
  return session_lib.end(stop)


def check_flags(cluster, num_images, num_validation_images):
  """Checks the flags of a worker; `distmnist.check` does it for many at once.

  Args:
    cluster: cluster.Cluster.
    num_images: int, the size of the training split.
    num_validation_images: int, that of the validation split.

  Returns:
    (name, strategy, build_model, plan, traced): the strategy's name, a
    strategy.Strategy, build(images, is_training) -> logits, an
    input_pipeline.Plan and the list of int of --trace_steps.

  Raises:
    cli.UsageError: a flag does not fit the others, the cluster or the data.
  """
  name, strategy, build_model, traced = check_rule_and_model(cluster)
  plan = make_plan(cluster, strategy, num_images)
  chief_lib.check_flags(logdirs.from_flags(), num_validation_images)
  return name, strategy, build_model, plan, traced


def check_rule_and_model(cluster):
  """Checks what needs no data: the part of `check_flags` for a launcher.

  Returns:
    (name, strategy, build_model, traced), as `check_flags`.

  Raises:
    cli.UsageError: a flag does not fit the others or the cluster.
  """
  name, strategy = make_strategy(cluster)
  check_min_workers(name, strategy, os.environ)
  build_model = workload.make_model()
  logdir = logdirs.from_flags()
  traced = parse_trace_steps(_TRACE_STEPS.value, logdir)
  if _EPOCHS.value == 0:
    raise cli.UsageError('--epochs=0: expected more than 0, such as 0.5')
  history_lib.check_flags(logdir)
  optimizers.check_flags()
  input_pipeline.check_flags(workload.image_shape())
  return name, strategy, build_model, traced


def parse_trace_steps(words, logdir):
  """Returns the list of int of --trace_steps; raises cli.UsageError."""
  given = f'--trace_steps={",".join(words)}'
  if not all(w.isascii() and w.isdigit() and int(w) for w in words):
    raise cli.UsageError(f'{given}: expected local steps >= 1, such as 100,200')
  if words and not logdir:
    raise cli.UsageError(f'{given} needs a --logdir to write to')
  return [int(word) for word in words]


def check_min_workers(name, strategy, environ):
  """Raises cli.UsageError if a lost worker would hold up all others.

  Args:
    name: str, the strategy's.
    strategy: strategy.Strategy.
    environ: dict, in which a launcher says that fewer workers are enough.
  """
  if strategy.waits_for_all and environ.get(tasks.MIN_WORKERS):
    raise cli.UsageError(
      f'--min_workers={environ[tasks.MIN_WORKERS]} of the launcher, but under'
      f' {name} all workers wait for one that is lost: leave it out, or take'
      ' an asynchronous rule such as async_sgd'
    )


def make_strategy(cluster):
  """Returns (name, strategy.Strategy) of the flags."""
  name = _STRATEGY.value
  if _SYNC_REPLICAS.value:
    if flags.FLAGS['strategy'].present and name != 'sync_sgd':
      raise cli.UsageError(
        f'--sync_replicas is --strategy=sync_sgd, and --strategy={name} is '
        'given, too: leave one of them out'
      )
    name = 'sync_sgd'
  return name, registry.load('distmnist.strategies', name).make(cluster)


class Step(NamedTuple):
  """The graph of a training step.

  Attributes:
    train_op: int64 scalar tensor, global_step after the step.
    global_step: int64 scalar variable.
    loss: float32 scalar tensor, the mean over the batch.
    num_correct: int32 scalar tensor, right answers in the batch.
    learning_rate: float32 scalar tensor.
    center: list of tf.Variable, the model's, without the optimizer's.
    table: dispatcher.Table, or None.
  """

  train_op: tf.Tensor
  global_step: tf.Variable
  loss: tf.Tensor
  num_correct: tf.Tensor
  learning_rate: tf.Tensor
  center: list
  table: dispatcher.Table | None


def build_step(
  cluster,
  strategy,
  build_model,
  images,
  labels,
  epochs_per_update=1.0,
  dealing=None,
):
  """Builds the Step of a worker.

  Args:
    cluster: cluster.Cluster.
    strategy: strategy.Strategy.
    build_model: build(images, is_training) -> logits.
    images: float32 [batch, height, width, channels].
    labels: int32 [batch].
    epochs_per_update: see optimizers.from_flags.
    dealing: dispatcher.Dealing, how batches are dealt, or None.
  """
  table = None
  ps_strategy = placement.ps_strategy_from_flags(cluster.num_ps)
  with tf.device(cluster.device_setter(ps_strategy)):
    global_step = tf.train.get_or_create_global_step()
    with placement.sharded_by_flags(cluster.num_ps), strategy.scope():
      loss, num_correct = build_towers(cluster, build_model, images, labels)
    center = [v for v in tf.global_variables() if v is not global_step]
    if dealing:
      table = dispatcher.Table(global_step, dealing, cluster.task_index)
      if not dealing.is_lock_step:
        strategy.build_mark = table.build_mark
    make_optimizer, learning_rate = optimizers.from_flags(
      global_step, cluster.num_workers, epochs_per_update
    )
    train_op = layers.after_updates(
      strategy.minimize(loss, make_optimizer, global_step)
    )
  if table and not table.is_marked:
    raise NotImplementedError(
      f'{type(strategy).__name__}.minimize does not call mark_done: which '
      'batches were pushed would not be known'
    )
  return Step(
    train_op, global_step, loss, num_correct, learning_rate, center, table
  )


def build_towers(cluster, build_model, images, labels):
  """Builds the model once a device; each takes its part of the batch.

  All read the same variables, which are pulled once, and the gradient of the
  mean of their losses is pushed once.

  Returns:
    (loss, num_correct), of the whole batch; see Step.
  """
  devices, losses, correct = cluster.tower_devices, [], []
  image_parts, label_parts = [images], [labels]
  if len(devices) > 1:
    with tf.device(cluster.cpu_device):
      image_parts = tf.split(images, len(devices))
      label_parts = tf.split(labels, len(devices))
  for i, device in enumerate(devices):
    with contextlib.ExitStack() as stack:
      if i:
        # The variables are there. Under a device of its own the first tower
        # would have them there, and not on the ps.
        stack.enter_context(tf.device(device))
        stack.enter_context(tf.name_scope(f'tower_{i}'))
        stack.enter_context(
          tf.variable_scope(tf.get_variable_scope(), reuse=True)
        )
      logits = build_model(image_parts[i], is_training=True)
      losses.append(
        tf.losses.sparse_softmax_cross_entropy(label_parts[i], logits)
      )
      correct.append(accuracy.build_num_correct(logits, label_parts[i]))
  if len(devices) == 1:
    return losses[0], correct[0]
  return tf.add_n(losses) / len(losses), tf.add_n(correct)


def make_plan(cluster, strategy, num_images):
  """Returns the input_pipeline.Plan that the flags ask for.

  Args:
    cluster: cluster.Cluster.
    strategy: strategy.Strategy.
    num_images: int, the size of the training split.

  Raises:
    cli.UsageError: a batch is larger than the training split.
  """
  num_towers = len(cluster.tower_devices)
  batch_size = _BATCH_SIZE.value * num_towers
  if batch_size > num_images:
    times = f' on each of {num_towers} GPUs' if num_towers > 1 else ''
    raise cli.UsageError(
      f'--batch_size={_BATCH_SIZE.value}{times} is larger than the '
      f'{num_images} training images'
    )
  has_own_streams = _EPOCHS_OVER.value == 'dataset'
  images_per_epoch = num_images * (
    cluster.num_workers if has_own_streams else 1
  )
  images_per_update = strategy.batches_per_update * batch_size
  steps = [] if _TRAIN_STEPS.value is None else [_TRAIN_STEPS.value]
  epochs = _EPOCHS.value
  if epochs is None and not steps:
    epochs = 1
  if epochs is not None:
    # What was typed, and not the float next to it: 1.1 times 10 is 11.
    images = fractions.Fraction(repr(epochs)) * images_per_epoch
    steps.append(max(1, math.ceil(images / images_per_update)))
  unit = strategy.push_period
  pushes_per_step = strategy.batches_per_update // unit
  return input_pipeline.Plan(
    num_images=num_images,
    images_per_epoch=images_per_epoch,
    images_per_update=images_per_update,
    dealing=dispatcher.Dealing(
      num_workers=cluster.num_workers,
      batch_size=batch_size,
      batches_per_push=unit,
      last_step=min(steps),
      is_lock_step=strategy.is_lock_step
      or cluster.num_workers == pushes_per_step == 1,
      pushes_per_step=pushes_per_step,
      has_own_streams=has_own_streams,
      steps_per_run=steps_lib.steps_per_run_from_flags(),
    ),
  )


def run():
  # The interpreter's own end takes a second where TensorFlow has threads.
  cli.run(main, leave=os._exit)


if __name__ == '__main__':
  run()
