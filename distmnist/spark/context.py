"""Spark itself: its start and its end, and which of its settings are secret."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from distmnist.common import cli, command_line, files
from distmnist.spark import spark_job

if TYPE_CHECKING:
  import pyspark

_END_SECS = 10.0


@contextlib.contextmanager
def opened(
  conf: Mapping[str, str], logs_dir: str
) -> Iterator[pyspark.SparkContext]:
  """Yields a new SparkContext; ends it and its JVM on leaving.

  Raises:
    cli.RunError: Spark does not start.
  """
  import pyspark
  from pyspark import java_gateway

  log = os.path.join(logs_dir, 'spark.log')
  if conf['spark.master'].startswith('local'):
    os.environ.setdefault('SPARK_LOCAL_IP', '127.0.0.1')
    os.environ.setdefault('PYSPARK_PYTHON', sys.executable)
  context, is_done = None, False
  # pyspark sets its own SIGINT handler.
  handler = signal.getsignal(signal.SIGINT)
  try:
    try:
      # pyspark would put all settings on the command line of the JVM.
      public = [
        pair for pair in conf.items() if not command_line.is_secret(pair[0])
      ]
      with open(log, 'ab', opener=files.no_follow) as stderr:
        gateway = java_gateway.launch_gateway(
          pyspark.SparkConf(False).setAll(public), {'stderr': stderr}
        )
      context = pyspark.SparkContext(
        conf=pyspark.SparkConf(False).setAll(list(conf.items())),
        gateway=gateway,
      )
    except Exception as error:
      raise cli.RunError(
        f'Spark does not start: {spark_job.explain(error)}; log: {log}'
      ) from error
    finally:
      signal.signal(signal.SIGINT, handler)
    yield context
    is_done = True
  finally:
    app_id = context.applicationId if context else ''
    _end_spark(pyspark, context)
    if is_done and conf['spark.master'].startswith('local-cluster'):
      # Otherwise each run leaves its executors' folders in pyspark's own.
      home = os.environ.get('SPARK_HOME') or os.path.dirname(
        pyspark.__file__ or ''
      )
      shutil.rmtree(os.path.join(home, 'work', app_id), ignore_errors=True)


def _end_spark(pyspark: ModuleType, context: Any) -> None:
  """Ends Spark and its JVM, which would stay until this program ends."""
  if context:
    with contextlib.suppress(Exception):  # Its JVM may be dead.
      context.stop()
  gateway = pyspark.SparkContext._gateway
  process = getattr(gateway, 'proc', None)
  if process:
    gateway.shutdown()
    process.stdin.close()
    with contextlib.suppress(Exception):
      process.wait(_END_SECS)
    process.kill()
    process.wait()
