"""A program of Spark: trains on an RDD, predicts for a DataFrame.

python tests/support/spark_program.py MASTER FOLDER
"""

import json
import subprocess
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as all of Spark says)

from distmnist.common import cli
from distmnist.data import drawn_digits
from distmnist.spark import feed as feed_lib
from distmnist.spark import prediction, training

JAVA = '-XX:TieredStopAtLevel=1 -XX:+UseSerialGC'  # starts in half the time


def main(master, folder):
  spark = (
    SparkSession.builder.master(master)
    .config('spark.driver.host', '127.0.0.1')
    .config('spark.ui.enabled', 'false')
    .config('spark.driver.extraJavaOptions', JAVA)
    .config('spark.executor.extraJavaOptions', JAVA)
    .getOrCreate()
  )
  try:
    print(json.dumps(run(spark, folder)))
  finally:
    spark.stop()


def run(spark, folder):
  sc = spark.sparkContext
  images, labels = drawn_digits.draw(1001, 0)
  # 300 and 701 in 3 and 4 partitions.
  pairs = list(zip(images, labels.tolist(), strict=True))
  data = sc.parallelize(pairs[:300], 3).union(sc.parallelize(pairs[300:], 4))
  images, labels = drawn_digits.draw(200, 0)
  rows = [
    (image.tobytes(), label)
    for image, label in zip(images, labels.tolist(), strict=True)
  ]
  test_data = spark.createDataFrame(rows, 'image binary, label bigint')
  test_data = test_data.repartition(2)
  report = training.run(
    sc,
    None,
    [
      *('--model=softmax', '--optimizer=adam', '--learning_rate=0.01'),
      *('--epochs=20', f'--logdir={folder}/run'),
    ],
    feed=feed_lib.Feed(data, test_data),
    options=training.Options(max_restarts=0),
  )
  export(f'{folder}/run', f'{folder}/model')
  predicted = prediction.predict(test_data, f'{folder}/model', batch_size=64)
  right = F.avg((F.col('classes') == F.col('label')).cast('double'))
  total = F.aggregate(
    'probabilities', F.lit(0.0).cast('float'), lambda a, b: a + b
  )
  found = predicted.select(
    right.alias('right'), F.min(total).alias('min'), F.max(total).alias('max')
  ).first()
  try:
    prediction.predict(test_data, '/no/such/model')
  except cli.RunError as error:
    no_model = str(error)
  try:
    training.run(
      sc, feed=feed_lib.Feed(sc.parallelize([(b'123', 0)]), test_data)
    )
  except cli.RunError as error:
    wrong = str(error)
  return {
    'problem': run_problem(spark, folder),
    'function': training.run(sc, train_line, {'steps': 20}, feed=make_line(sc)),
    **{
      key: report[key] for key in ('examples', 'local_steps', 'test_examples')
    },
    'test_accuracy': report['test_accuracy'],
    'columns': predicted.columns,
    'predicted_accuracy': found['right'],
    'sums': [found['min'], found['max']],
    'wrong': wrong,
    'no_model': no_model,
  }


PROBLEM = """
import tensorflow.compat.v1 as tf
def load(split):
  raise AssertionError('Spark brings the examples')
def build(x, is_training):
  weights = tf.get_variable('weights', [2, 1])
  shift = tf.get_variable('shift', [3, 1])
  shifted = x['features'] @ weights + tf.nn.embedding_lookup(shift, x['kind'])
  return shifted[:, 0]
def loss(y, outputs):
  return (y - outputs) ** 2
"""


def run_problem(spark, folder):
  """Trains a problem on the columns of a DataFrame, and predicts for it."""
  rows = [
    (i / 100, i % 7 / 7, i % 3, 2 * i / 100 - i % 7 / 7 + i % 3)
    for i in range(200)
  ]
  table = spark.createDataFrame(
    rows, 'a double, b double, kind long, target double'
  )
  with open(f'{folder}/line.py', 'w') as file:
    file.write(PROBLEM)
  report = training.run(
    spark.sparkContext,
    f'{folder}/line.py',
    [
      *('--optimizer=adam', '--learning_rate=0.05', '--batch_size=10'),
      *('--epochs=30', f'--logdir={folder}/line'),
    ],
    feed=feed_lib.Feed(
      table, table, {'features': ['a', 'b'], 'kind': 'kind'}, 'target'
    ),
    options=training.Options(max_restarts=0),
  )
  with open(f'{folder}/line.py', 'a') as file:
    file.write("""
def spec():
  return {'features': tf.TensorSpec([2]), 'kind': tf.TensorSpec([], tf.int64)}
""")
  export(f'{folder}/line', f'{folder}/line_model')
  predicted = prediction.predict(
    table, f'{folder}/line_model', {'features': ['a', 'b']}
  )
  error = F.max(F.abs(F.col('outputs') - F.col('target'))).alias('error')
  return {
    'loss': report['test_metrics']['loss'],
    'error': predicted.select(error).first()['error'],
    'columns': predicted.columns,
  }


def make_line(sc):
  return feed_lib.Feed(sc.parallelize([(i / 10, i / 5) for i in range(10)], 2))


def train_line(args, ctx):
  """y = 2 x by hand, as a user of TensorFlow 1 would write it."""
  import tensorflow.compat.v1 as tf

  x, y = ctx.data
  with tf.device(ctx.device_setter()):
    slope = tf.get_variable('slope', [], initializer=tf.zeros_initializer())
    step = tf.train.get_or_create_global_step()
    loss = tf.reduce_mean((slope * x - y) ** 2)
    train_op = tf.train.GradientDescentOptimizer(0.5).minimize(loss, step)
  value = 0  # A worker that is late has no step left to do.
  hooks = [tf.train.StopAtStepHook(last_step=args['steps'])]
  with tf.train.MonitoredTrainingSession(
    ctx.target, ctx.is_chief, hooks=hooks, config=ctx.config
  ) as session:
    while not session.should_stop():
      _, value = session.run([train_op, slope])
  return {
    'slope': float(value),
    'ps': slope.device,
    'examples': len(x),
    'workers': ctx.num_workers,
  }


def export(logdir, export_dir):
  subprocess.run(
    [
      *(sys.executable, '-m', 'distmnist.export', f'--logdir={logdir}'),
      f'--export_dir={export_dir}',
    ],
    check=True,
    stdout=sys.stderr,
  )


if __name__ == '__main__':
  main(*sys.argv[1:])
