"""Runs the tasks on the executors of Spark, in one barrier stage.

  python -m distmnist.launch --launcher=spark --master=spark://host:7077 \\
      --num_ps=1 --num_workers=2 -- --flagfile=... --logdir=/shared/run

Spark's own lines go to spark.log beside the logs of the tasks. To run from
within a Spark program, see spark/training.py.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
from collections.abc import Mapping, Sequence

from absl import flags

from distmnist.common import cli, command_line, ports, signals
from distmnist.common.names import FIRST_PORT
from distmnist.launching import jobs
from distmnist.launching.screen import screens, task_logs
from distmnist.launching.supervisor import endings
from distmnist.spark import context as context_lib
from distmnist.spark import executors, training

_log = logging.getLogger(__name__)

_MASTER = flags.DEFINE_string(
  'master',
  None,
  "Spark's master: spark://host:7077, yarn, k8s://..., or for a trial on this"
  ' machine local-cluster[3,1,1024] (executors, cores and MB of each).',
)
_CONF = flags.DEFINE_multi_string(
  'spark_conf',
  [],
  'A setting of Spark, as name=value; may be given several times. The value of '
  'one whose name contains password, secret, token or key is never printed, '
  'nor put on the command line of a process. Keep it off your own command line '
  'with a --flagfile that only you can read.',
)
_WAIT_SECS = flags.DEFINE_float(
  'spark_wait_secs',
  120,
  'Seconds to wait for executors, and for Spark to start the tasks.',
  lower_bound=0,
)

# Four JVMs that start on one machine take 18 s of processor time, not 32 s.
_LEAN_JAVA = '-XX:TieredStopAtLevel=1 -XX:+UseSerialGC'


def launch(job: jobs.Job) -> int:
  """Runs the jobs.Job; returns its exit code."""
  master = get_master()
  num_tasks = job.num_ps + job.num_workers
  executors.check_paths(job.given)
  executors.check_fixed_slots(master, num_tasks)
  conf = make_conf(master, num_tasks, _CONF.value)
  cluster = training.make_tasks(
    job.num_ps, job.num_workers, job.given, job.module
  )
  if job.dry_run:
    print(*(task.command for task in cluster), sep='\n')
    settings = ' '.join(
      command_line.hide_secret(f'{name}={value}')
      for name, value in conf.items()
    )
    _log.info(
      'not to be pasted: Spark chooses the hosts and the ports, and '
      f'executor-0:{FIRST_PORT} and so on stand in for them; its settings: '
      f'{settings}'
    )
    return 0
  check_ready(master)
  logs_dir = task_logs.make_logs_dir(
    job.logs_dir, job.flag('logdir'), job.record
  )
  screen = screens.make(logs_dir, cluster, job.show_logs, job.record)

  try:
    with signals.raising(), context_lib.opened(conf, logs_dir) as context:
      training.run(
        context,
        None,
        job.given,
        job.num_ps,
        job.num_workers,
        options=training.Options(
          max_restarts=job.max_restarts,
          logs_dir=logs_dir,
          wait_secs=_WAIT_SECS.value,
          module=job.module,
          show=lambda *_: screen.update(),
          say=screen.print_line,
          record=job.record,
        ),
      )
  except training.TaskError as error:
    _log.info(f'error: {error}')
    return error.exit_code
  except signals.SignalError as error:
    endings.say_stopped(error.name, logs_dir)
    endings.end_logs(error.exit_code, logs_dir)
    return error.exit_code
  finally:
    screen.finish()
  endings.end_logs(0, logs_dir)
  return 0


def get_master() -> str:
  """Returns --master.

  Raises:
    cli.UsageError: it is missing.
  """
  if not _MASTER.value:
    raise cli.UsageError(
      '--master is missing: give spark://host:7077, yarn, k8s://..., or'
      ' local-cluster[3,1,1024] for a trial on this machine'
    )
  return _MASTER.value


def check_ready(master: str | None = None) -> None:
  """Checks that Spark can start here, and that a standalone `master` answers.

  Args:
    master: by default --master.

  Raises:
    cli.RunError: one of the two fails.
  """
  check_installed(os.environ)
  check_answers(master or get_master())


def check_installed(environ: Mapping[str, str]) -> None:
  """Checks that Spark can start on this machine.

  Raises:
    cli.RunError: this machine lacks pyspark or Java.
  """
  if importlib.util.find_spec('pyspark') is None:
    raise cli.RunError(
      'pyspark is not installed: pip install distmnist[spark], or'
      ' pip install pyspark'
    )
  home = environ.get('JAVA_HOME')
  java = os.path.join(home, 'bin', 'java') if home else 'java'
  if not shutil.which(java):
    where = f'JAVA_HOME={home} has no bin/java' if home else 'no java on PATH'
    raise cli.RunError(
      f'{where}: install Java 17, such as apt-get install'
      ' openjdk-17-jre-headless, or set JAVA_HOME'
    )


def check_answers(master: str) -> None:
  """Checks that a master of Spark's own kind (spark://) answers.

  Raises:
    cli.RunError: nothing answers; Spark itself would try for a minute.
  """
  if not master.startswith('spark://'):
    return
  addresses = master.removeprefix('spark://').split(',')
  if any(map(ports.answers, addresses)):
    return
  raise cli.RunError(
    f'no Spark master answers at {", ".join(addresses)}: start it, or check '
    'the host and the port of --master'
  )


def make_conf(
  master: str, num_tasks: int, settings: Sequence[str]
) -> dict[str, str]:
  """Returns the settings of Spark; `settings` (name=value) override.

  Raises:
    cli.UsageError: one of `settings` is not a setting of Spark.
  """
  for each in settings:
    # Not in an absl validator, which would print the values of all of them.
    if not re.fullmatch(r'spark\.[\w.-]+=.*', each, re.DOTALL):
      raise cli.UsageError(
        f'--spark_conf={command_line.hide_secret(each)}: expected name=value,'
        ' such as spark.task.cpus=2'
      )
  conf = {
    'spark.master': master,
    'spark.app.name': 'distmnist',
    'spark.executor.instances': str(num_tasks),
    'spark.ui.showConsoleProgress': 'false',
  }
  if master.startswith('local'):
    # Neither the tasks of a trial nor its web page is for other machines.
    conf['spark.driver.host'] = '127.0.0.1'
    conf['spark.ui.enabled'] = 'false'
  if match := re.fullmatch(r'local-cluster\[.*, *(\d+) *\]', master):
    conf['spark.executor.memory'] = f'{match[1]}m'
    for which in ('driver', 'executor'):
      conf[f'spark.{which}.extraJavaOptions'] = _LEAN_JAVA
  return conf | dict(each.split('=', 1) for each in settings)
