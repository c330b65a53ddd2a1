"""TensorFlow 2's ParameterServerStrategy: a coordinator, a ps, two workers.

The coordinator schedules tf.functions of --steps_per_call steps; each step
reads the variables from the ps and sends its gradients there. The servers of
ps and workers join for ever, as in TensorFlow's guide, and have to be killed.
"""

import os

# The guide's setting: a call to a task that is not up yet waits for it.
os.environ['GRPC_FAIL_FAST'] = 'use_caller'

# isort: split
import common
import tensorflow as tf
import tf_nets

# Before the time that counts; by then both workers have traced and run a step.
NUM_WARM_UP_CALLS = 20


def serve(args, cluster):
  config = tf.compat.v1.ConfigProto(
    intra_op_parallelism_threads=tf_nets.INTRA_OP_THREADS,
    # The guide's number: fewer can block where there are few cores.
    inter_op_parallelism_threads=len(args.workers) + 1,
  )
  tf.distribute.Server(cluster, args.job, args.task, config=config).join()


def main():
  args = common.parse_args()
  cluster = tf.train.ClusterSpec(
    {
      'ps': args.ps,
      'worker': args.workers,
      'chief': [args.coordinator],
    }
  )
  if args.job in ('ps', 'worker'):
    serve(args, cluster)

  tf_nets.set_threads()
  net, num_workers = common.NETS[args.net], len(args.workers)
  strategy = tf.distribute.ParameterServerStrategy(
    tf.distribute.cluster_resolver.SimpleClusterResolver(
      cluster, task_type='chief', task_id=0, rpc_layer='grpc'
    )
  )
  with strategy.scope():
    variables = tf_nets.make_variables(args.net)
    values = list(variables.values())
    optimizer = tf_nets.Adam(values, net.learning_rate)

  def replica_step(images, labels):
    with tf.GradientTape() as tape:
      loss = tf_nets.build_loss(args.net, variables, images, labels)
    optimizer.apply(tape.gradient(loss, values), values)

  @tf.function
  def train(iterator):
    for _ in tf.range(args.steps_per_call):
      strategy.run(replica_step, args=next(iterator))

  def make_dataset():
    # One function for all workers: the shard cannot depend on the worker.
    # Each has the whole set in an order of its own.
    return tf_nets.make_dataset(args.data, 0, 1, net.batch_size)

  coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
  iterator = iter(coordinator.create_per_worker_dataset(make_dataset))
  recorder = common.Recorder(args)

  def run(num_steps):
    """Runs `num_steps` steps of all workers, rounded up to whole calls."""
    num_calls = -(-num_steps // args.steps_per_call)
    for _ in range(num_calls):
      coordinator.schedule(train, args=(iterator,))
    coordinator.join()
    recorder.step(num_calls * args.steps_per_call)
    return num_calls * args.steps_per_call

  def get_weights():
    return {name: v.numpy() for name, v in variables.items()}

  done = run(1)
  total_steps = args.steps * num_workers
  if args.snapshot_steps:
    while done < total_steps:
      done += run(args.snapshot_steps)
      recorder.snapshot_if_due(done, get_weights)
  else:
    run(NUM_WARM_UP_CALLS * args.steps_per_call)
    recorder.start_window()
    run(total_steps)
  predict = tf_nets.make_predict(
    args.net, {name: tf.constant(v) for name, v in get_weights().items()}
  )
  recorder.save(test_accuracy=common.compute_accuracy(predict, args.data))


if __name__ == '__main__':
  main()
