"""A SparkContext for tests that have no Spark."""


class FakeSparkContext:
  """Has settings; the RDD of a trial is its spec."""

  pythonExec = 'python3'  # noqa: N815 (as Spark says)

  def __init__(self, **conf):
    self.conf = {'spark.driver.host': '127.0.0.1', 'spark.master': 'local'}
    self.conf |= {name.replace('_', '.'): conf[name] for name in conf}

  def getConf(self):  # noqa: N802 (as Spark says)
    return self.conf

  def parallelize(self, *_):
    return self

  def mapPartitions(self, task):  # noqa: N802
    return task.args[0]
