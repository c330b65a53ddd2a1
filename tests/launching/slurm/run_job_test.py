"""The program that a job's script becomes, on scripts in place of Slurm."""

import os
import subprocess
import sys

import pytest

from distmnist.launching import jobs
from distmnist.launching.slurm import run_job, sbatch_script
from tests.support import fake_srun, programs
from tests.support.paths import PYTHONPATH

CANCELLED = 'slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT now'
# What Slurm does: it says so, and signals the tasks and the script.
CANCEL = """echo '{}' >&2
  kill -TERM $PPID
  exit 143"""

# Signals the tasks once they have said that they run, as Slurm does.
TELL = """while [[ ! -f {{folder}}/worker0.ready || ! -f {{folder}}/ps0.ready ]]
  do sleep 0.05
  done
  for pid in $(<groups); do kill -{} -- -$pid; done"""


@pytest.fixture
def run(tmp_path):
  """Returns a function that runs the script of job 7 to its end."""
  folder = tmp_path / 'logs'
  folder.mkdir()
  (tmp_path / 'bin').mkdir()

  def run(do='', srun=None, then=':', more=None, **job):
    path = fake_srun.make(tmp_path / 'bin', then.format(folder=folder))
    if srun:
      programs.make(tmp_path / 'bin', srun=srun)
    flags = f'--do={do}', f'--folder={folder}'
    script = tmp_path / 'job.sbatch'
    script.write_text(
      sbatch_script.make(
        jobs.Job(module='fake_train', train_flags=flags, **job),
        str(folder),
        sys.executable,
      )
    )
    with open(folder / 'slurm.log', 'a') as log:
      done = subprocess.run(
        ['bash', script],
        env={
          **os.environ,
          'PATH': path,
          'PYTHONPATH': PYTHONPATH,
          'SLURM_JOB_ID': '7',
          'SLURM_JOB_NODELIST': 'n[0-2]',
          **(more or {}),
        },
        stdout=log,
        stderr=log,
        timeout=200,
      )
    said = (folder / 'slurm.log').read_text().splitlines()
    return Done(folder, done.returncode, said)

  return run


class Done:
  """A job that has ended: its exit code, and the lines of slurm.log."""

  def __init__(self, folder, code, said):
    self.code, self.said = code, said
    self._folder = folder

  def log(self, name):
    return (self._folder / f'{name}.log').read_text()

  @property
  def ended(self):
    """What tells the launcher that job 7 has ended (str), or None."""
    path = self._folder / 'job_7.ended'
    return path.read_text() if path.exists() else None

  @property
  def left(self):
    """The names (list) of the files of this job's state."""
    return [path.name for path in self._folder.glob('job_7.*')]


@pytest.mark.slow
def test_a_job_that_ends_well_says_little(run):
  done = run('all:count=1')
  assert (done.code, done.ended) == (0, '7 0\n')
  assert done.said == ['job 7: runs on n[0-2]']
  assert done.left == ['job_7.ended']
  for name in ('ps', 'worker'):
    assert done.log(f'{name}_0') == f'{name}0 line 0\n'


@pytest.mark.slow
def test_the_root_cause_comes_last(run):
  done = run('worker1:wait=worker0.ready,wait=ps0.ready,exit=4;all:leave')
  assert (done.code, done.ended) == (4, '7 4\n')
  assert done.said[-1].startswith(
    'job 7: error: worker 1 (n2) failed first: exit code 4; log: '
  )
  assert done.log('ps_0') == 'leaving on 15\n'


@pytest.mark.slow
def test_tasks_start_again_together_and_are_told_so(run):
  done = run(
    'worker1@1:wait=worker0.ready,wait=ps0.ready,exit=4;all@1:leave;'
    'all@2:env=DISTMNIST_ATTEMPT',
    max_restarts=1,
  )
  assert done.code == 0
  assert done.said[-1] == (
    'job 7: worker 1 (n2) ended with exit code 4: restart 1 of 1 in 0.1 s, with'
    ' all other tasks'
  )
  again = "--- restart 1 of 1 ---\nDISTMNIST_ATTEMPT='2'\n"
  assert done.log('worker_0') == f'leaving on 15\n{again}'
  assert done.log('worker_1') == again


@pytest.mark.slow
def test_an_evaluator_starts_again_with_all_others(run):
  done = run(
    'worker0@1:wait=evaluator0.ready,wait=ps0.ready,exit=4;all@1:leave;'
    'all@2:count=1',
    num_workers=1,
    evaluator=True,
    max_restarts=1,
  )
  assert done.code == 0
  assert [line for line in done.said if 'restart' in line] == [
    'job 7: worker 0 (n1) ended with exit code 4: restart 1 of 1 in 0.1 s, with'
    ' all other tasks'
  ]
  for name in ('ps0', 'worker0', 'evaluator0'):
    assert done.log(f'{name[:-1]}_0').endswith(f'---\n{name} line 0\n')


@pytest.mark.slow
def test_a_chief_that_is_done_ends_a_run_with_restarts(run):
  done = run(
    'worker1:wait=worker0.ready,gone=worker0.ready,exit=4;worker0:touch=ready',
    max_restarts=1,
  )
  assert done.code == 0
  assert 'not restarted, as the training is complete' in done.said[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
  ('of_slurm', 'said', 'ended'),
  [
    (f'{CANCELLED} ***', 'cancelled: the', '7 143\n'),
    (
      f'{CANCELLED} DUE TO TIME LIMIT ***',
      'cancelled due to time limit: the',
      '7 143\n',
    ),
    # It may come again, so its launcher has to go on waiting.
    (
      f'{CANCELLED} DUE TO PREEMPTION ***',
      'cancelled due to preemption: the',
      None,
    ),
    (
      f'{CANCELLED} DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***',
      'cancelled due to node failure: the',
      None,
    ),
  ],
)
def test_a_cancelled_job_says_why_and_that_it_has_ended(
  run, of_slurm, said, ended
):
  done = run(srun=CANCEL.format(of_slurm))
  assert (done.code, done.ended) == (143, ended)
  assert done.said[-1] == f'job 7: {said} tasks were told to leave'


@pytest.mark.slow
def test_why_an_earlier_job_in_the_folder_was_cancelled_is_not_repeated(run):
  run(srun=CANCEL.format(f'{CANCELLED} DUE TO TIME LIMIT ***'))
  done = run(srun=CANCEL.format(f'{CANCELLED} ***'))
  assert done.said[-1] == 'job 7: cancelled: the tasks were told to leave'


@pytest.mark.slow
def test_a_cancelled_job_whose_chief_could_not_save_says_so(run):
  done = run(
    'worker0:lose;ps0:leave',
    then=TELL.format('TERM'),
    num_workers=1,
  )
  assert (done.code, done.ended) == (75, '7 75\n')
  assert done.said[-1] == 'distmnist.train: error: step 9 is not saved'


@pytest.mark.slow
def test_a_notice_of_the_time_limit_is_no_failure_to_restart_from(run):
  done = run(
    'all:leave', then=TELL.format('USR1'), num_workers=1, max_restarts=3
  )
  assert (done.code, done.ended) == (143, '7 143\n')
  assert done.said[1:] == ['job 7: cancelled: the tasks were told to leave']
  # Of its own accord it is one.
  done = run('worker0:kill=10', num_workers=1, max_restarts=1)
  assert done.code == 138
  assert 'failed after 1 restart: exit code 138;' in done.said[-1]


@pytest.mark.daily
@pytest.mark.slow
def test_jobs_that_share_a_folder_mark_where_their_lines_begin(run):
  run('worker0:write=no_space_left')
  done = run('worker0:count=1')
  assert done.log('worker_0') == (
    'no_space_left\n--- job 7 ---\nworker0 line 0\n'
  )
  done = run('worker0:env=DISTMNIST_ATTEMPT', more={'SLURM_RESTART_COUNT': '2'})
  assert done.log('worker_0').endswith(
    "line 0\n--- requeued by Slurm ---\nDISTMNIST_ATTEMPT='3'\n"
  )


@pytest.mark.slow
def test_the_last_lines_are_not_those_of_an_earlier_job(run):
  run('worker0:count=1')
  done = run('worker0:exit=3')
  assert done.said[-3:-1] == [
    'job 7: the last lines of worker 0:',
    '  | (it has written nothing)',
  ]


@pytest.mark.slow
def test_a_step_that_does_not_start_is_an_error(run):
  done = run(srun='echo srun: error: no step >&2; exit 1', max_restarts=3)
  assert (done.code, done.ended) == (1, '7 1\n')
  assert done.said[1:] == [
    'srun: error: no step',
    'job 7: error: srun ended with exit code 1 and has started no task; log: '
    + str(done._folder / 'slurm.log'),
  ]


def test_the_gpus_are_for_the_workers():
  request = run_job.Request('/logs', 1, 2, True, 0, 8.0, True)
  tasks = run_job.make_tasks(request, ['-m', 'x', '--a'])
  assert [task.name for task in tasks] == [
    'ps 0',
    'worker 0',
    'worker 1',
    'evaluator 0',
  ]
  assert {task.argv for task in tasks} == {('python', '-m', 'x', '--a')}
  hidden = {task.name for task in tasks if task.env}
  assert hidden == {'ps 0', 'evaluator 0'}
