"""Each task a job of a scheduler: here of the shell, in both its ways.

The tasks are support/fake_train.py; one test runs the real one.
"""

import os
import signal
import sys

import pytest

from distmnist.launchers import command
from tests.support import background
from tests.support.background import DEADLINE_SECS, assert_gone, last_line
from tests.support.paths import PYTHONPATH
from tests.support.runner import SMALL, read_report

pytestmark = pytest.mark.usefixtures('heed_signals')

# A command that waits for its job, and one that returns once it is queued.
WAITS = 'sh -c {command}'
QUEUES = 'setsid sh {script} </dev/null >{log} 2>&1 & echo queued {name}'


class Here(background.Here):
  """A folder to launch from."""

  def __init__(self, folder):
    folder.mkdir()
    self.folder = folder
    self.logs = folder / 'logs'
    self.env = {**os.environ, 'PYTHONPATH': PYTHONPATH}

  def command(self, *words, template=WAITS, **flags):
    flags = {'module': 'fake_train', 'logs_dir': self.logs, **flags}
    return [
      *(sys.executable, '-m', 'distmnist.launch', '--launcher=command'),
      *([f'--template={template}'] if template is not None else []),
      *(f'--{name}={value}' for name, value in flags.items() if value != ''),
      *words,
    ]


@pytest.fixture
def here(tmp_path):
  return Here(tmp_path / "it's mine")


def list_logs(here):
  return sorted(path.name for path in here.logs.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize('template', [WAITS, QUEUES])
def test_the_jobs_find_each_other_and_end_as_their_tasks(here, template):
  do = '--do=all:env=DISTMNIST_ATTEMPT;ps:serve;worker:serve'
  done = here.run(
    *('--', do, f'--logdir={here.folder}/run'),
    template=template,
    num_workers=1,
    evaluator='true',
  )
  assert done.returncode == 0, done.stderr
  lines = done.stdout.splitlines()
  assert lines[-3:-1] == ['DISTMNIST_ATTEMPT=None', 'the port was held']
  assert lines[-1].startswith('serving on ')
  assert here.log('evaluator_0').endswith('DISTMNIST_ATTEMPT=None\n')
  # Nothing is left of the folder in which they met.
  assert list_logs(here) == ['evaluator_0.log', 'ps_0.log', 'worker_0.log']


@pytest.mark.slow
def test_the_first_failure_ends_all_and_with_restarts_all_begin_again(here):
  do = (
    'ps0@1:leave;worker0@1:leave;'
    'worker1@1:wait=worker0.ready,wait=ps0.ready,kill=9;'
    'all@2:env=DISTMNIST_ATTEMPT'
  )
  done = here.do(do, template=QUEUES)
  assert done.returncode == 137
  assert 'worker 1 (its job) failed first: killed by SIGKILL' in last_line(
    done.stderr
  )
  assert 'leaving on 15' in here.log('ps_0')
  for name in ('ps0.ready', 'worker0.ready'):
    (here.folder / name).unlink()
  done = here.do(do, template=QUEUES, max_restarts=1)
  assert done.returncode == 0, done.stderr
  for name in ('ps_0', 'worker_0', 'worker_1'):
    assert here.log(name).endswith("DISTMNIST_ATTEMPT='2'\n")


@pytest.mark.daily(but=['sh -c {command}'])
@pytest.mark.slow
@pytest.mark.parametrize('template', [WAITS, QUEUES])
def test_ctrl_c_has_the_tasks_save_and_leaves_no_process(here, template):
  with here.start('all:leave', template=template) as running:
    tasks = running.wait_for('worker0.ready', 'worker1.ready', 'ps0.ready')
    processes = running.all_processes(tasks)
    running.send(signal.SIGINT)
    assert running.process.wait(DEADLINE_SECS) == 130
    assert_gone(processes)
  assert last_line(running.stderr.read_text()) == (
    f'distmnist.launch: stopped by SIGINT, logs in {here.logs}'
  )
  for name, signum in (('worker_0', 2), ('ps_0', 2)):
    assert here.log(name).endswith(f'leaving on {signum}\n')
  background.assert_ps_left_last(here.folder)
  assert list_logs(here) == ['ps_0.log', 'worker_0.log', 'worker_1.log']


@pytest.mark.slow
def test_a_job_that_still_waits_for_its_turn_holds_up_no_ctrl_c(here):
  with here.start('all:leave', template='echo 7 # {script}') as running:
    running.wait_until(lambda: [*here.logs.glob('jobs_*/1/worker_1.submit')])
    running.send(signal.SIGINT)
    assert running.process.wait(DEADLINE_SECS) == 130


@pytest.mark.daily
@pytest.mark.slow
def test_the_real_program_trains_as_jobs(here):
  done = here.run(
    *('--', *SMALL, '--train_steps=40', f'--logdir={here.folder}/run'),
    module='distmnist.train',
    logs_dir='',
    num_workers=1,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  assert read_report(here.folder / 'run')['global_step'] >= 40


def test_dry_run_prints_what_would_be_submitted(launch_here, tmp_path):
  code, out, err = launch_here(
    *('--launcher=command', f'--logs_dir={tmp_path}/logs', '--dry_run'),
    *('--template=q {name} {command}', '--ps_template=q -P cpu {script}', '--'),
  )
  assert code == 0, err
  assert out == (
    'q -P cpu ps_0.sh\n'
    'q worker_0 COMMAND-worker_0\n'
    'q worker_1 COMMAND-worker_1\n'
  )


@pytest.mark.parametrize(
  'template, missing',
  [
    ('nosuchsub -N {name} {script}', 'nosuchsub'),
    ('/no/such/sub {script}', '/no/such/sub'),
    (WAITS, None),
    ('cd . && nosuchsub {script}', None),
    ('A=b nosuchsub {script}', None),
    ("it's {script}", None),
  ],
)
def test_a_command_that_is_not_here_is_known(template, missing):
  assert command.find_missing(template) == missing


def test_without_its_command_no_task_is_begun(launch_here, tmp_path):
  code, out, err = launch_here(
    *('--launcher=command', f'--logs_dir={tmp_path}/logs'),
    *('--template=nosuchsub {script}', '--'),
  )
  assert (code, out) == (1, '')
  (line,) = err.splitlines()
  assert '--template=nosuchsub' in line
  assert not (tmp_path / 'logs').exists()
