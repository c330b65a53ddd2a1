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
    [
      *('--model=softmax', '--optimizer=adam', '--learning_rate=0.01'),
      *('--epochs=20', f'--logdir={folder}/run'),
    ],
    num_ps=1,
    num_workers=2,
    input_mode=training.InputMode.RDD,
    data=data,
    test_data=test_data,
    max_restarts=0,
  )
  subprocess.run(
    [
      *(sys.executable, '-m', 'distmnist.export', f'--logdir={folder}/run'),
      f'--export_dir={folder}/model',
    ],
    check=True,
    stdout=sys.stderr,
  )
  predicted = prediction.predict(test_data, f'{folder}/model', batch_size=64)
  right = F.avg((F.col('class') == F.col('label')).cast('double'))
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
      sc,
      num_workers=2,
      input_mode=training.InputMode.RDD,
      data=sc.parallelize([(b'123', 0)]),
      test_data=test_data,
    )
  except cli.RunError as error:
    wrong = str(error)
  return {
    **{key: report[key] for key in ('images', 'local_steps', 'test_images')},
    'test_accuracy': report['test_accuracy'],
    'columns': predicted.columns,
    'predicted_accuracy': found['right'],
    'sums': [found['min'], found['max']],
    'wrong': wrong,
    'no_model': no_model,
  }


if __name__ == '__main__':
  main(*sys.argv[1:])
