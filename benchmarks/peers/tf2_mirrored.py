"""TensorFlow 2's MultiWorkerMirroredStrategy: two workers in lock-step.

Each call is a tf.function of --steps_per_call steps; the gradients of a step
are averaged by one collective over all of them.
"""

import json
import os

import common
import tensorflow as tf
import tf_nets


def main():
  args = common.parse_args()
  os.environ['TF_CONFIG'] = json.dumps(
    {
      'cluster': {'worker': args.workers},
      'task': {'type': 'worker', 'index': args.task},
    }
  )
  tf_nets.set_threads()
  net, num_workers = common.NETS[args.net], len(args.workers)
  strategy = tf.distribute.MultiWorkerMirroredStrategy()
  with strategy.scope():
    variables = tf_nets.make_variables(args.net)
    values = list(variables.values())
    optimizer = tf_nets.Adam(values, net.learning_rate)

  def get_own(variable):
    [own] = strategy.experimental_local_results(variable)
    return own

  def replica_step(images, labels):
    with tf.GradientTape() as tape:
      loss = tf_nets.build_loss(args.net, variables, images, labels)
    context = tf.distribute.get_replica_context()
    gradients = context.all_reduce(
      tf.distribute.ReduceOp.MEAN, tape.gradient(loss, values)
    )
    optimizer.apply(gradients, values, get_own)

  @tf.function
  def train(iterator):
    for _ in tf.range(args.steps_per_call):
      strategy.run(replica_step, args=next(iterator))

  dataset = tf_nets.make_dataset(
    args.data, args.task, num_workers, net.batch_size
  )
  iterator = iter(dataset)
  recorder = common.Recorder(args)
  own = {name: get_own(v) for name, v in variables.items()}
  for done in range(args.steps_per_call, args.steps + 1, args.steps_per_call):
    train(iterator)
    recorder.step(args.steps_per_call)
    if args.task == 0:
      recorder.snapshot_if_due(
        done * num_workers, lambda: {n: v.numpy() for n, v in own.items()}
      )
  facts = {}
  if args.task == 0:
    predict = tf_nets.make_predict(args.net, own)
    facts['test_accuracy'] = common.compute_accuracy(predict, args.data)
  recorder.save(**facts)


if __name__ == '__main__':
  main()
