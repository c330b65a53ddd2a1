import os
import re
import subprocess
import sys

import pytest

from distmnist.common import cli, sent_file
from distmnist.common.names import SENT_FILE
from distmnist.launching import jobs
from distmnist.launching.slurm import sbatch_script
from tests.support import programs

CANCELLED = 'slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT now'


def make_script(more=None, may_requeue=False, **job):
  options = ['--time=5', '--comment=a b']
  return sbatch_script.make(
    jobs.Job(**job),
    '/logs',
    '/a/python',
    [options] if more is None else [more, options],
    may_requeue=may_requeue,
  )


def test_the_script_is_one_that_bash_reads_and_sbatch_too():
  script = make_script(num_ps=2, num_workers=3, train_flags=('--name=a b',))
  checked = subprocess.run(
    ['bash', '-n'], input=script, capture_output=True, text=True
  )
  assert (checked.returncode, checked.stderr) == (0, '')
  lines = script.splitlines()
  assert lines[0] == '#!/bin/bash'
  assert [line for line in lines if line.startswith('#SBATCH')] == [
    '#SBATCH --job-name=distmnist',
    '#SBATCH --output=/logs/slurm.log',
    '#SBATCH --open-mode=append',
    '#SBATCH --no-requeue',
    '#SBATCH --ntasks=5',
    '#SBATCH --time=5',
    "#SBATCH '--comment=a b'",
  ]
  assert 'export DISTMNIST_NUM_PS=2 DISTMNIST_NUM_EVALUATORS=0' in lines
  assert " --stop_grace_secs=27 '--name=a b'" in script
  assert not re.search('@[A-Z_]+@', script)


def test_the_file_of_a_problem_is_in_the_script(tmp_path):
  path = tmp_path / 'mine.py'
  path.write_text("x = 'a b'")
  given = (f'--problem={path}',)
  script = make_script(num_ps=1, given=given, train_flags=given)
  line = next(x for x in script.splitlines() if SENT_FILE in x)
  shown = subprocess.run(
    ['bash', '-c', f'{line}; printf %s "${SENT_FILE}"'],
    capture_output=True,
    text=True,
  )
  assert shown.stdout == sent_file.pack(str(path), path.read_bytes())


@pytest.mark.parametrize(
  ('kill_wait_secs', 'given', 'flags'),
  [
    (30, (), '--stop_grace_secs=27 --model=cnn'),
    (12, (), '--stop_grace_secs=9 --model=cnn'),
    (3, (), '--stop_grace_secs=2 --model=cnn'),
    (30, ('--stop_grace_secs=20',), '--model=cnn'),
  ],
)
def test_the_tasks_are_to_have_saved_before_slurm_kills(
  kill_wait_secs, given, flags
):
  job = jobs.Job(train_flags=('--model=cnn',), given=given)
  script = sbatch_script.make(
    job, '/logs', '/a/python', kill_wait_secs=kill_wait_secs
  )
  assert f'/a/python -m distmnist.train {flags} \\\n' in script


def test_a_job_may_be_requeued():
  script = make_script(max_restarts=4, may_requeue=True)
  assert '#SBATCH --requeue\n' in script
  assert '\nmax_restarts=4\n' in script


def test_the_ps_of_a_heterogeneous_job_have_options_of_their_own():
  script = make_script(more=['--partition=cpu'], num_ps=2, num_workers=3)
  checked = subprocess.run(
    ['bash', '-n'], input=script, capture_output=True, text=True
  )
  assert (checked.returncode, checked.stderr) == (0, '')
  lines = [x for x in script.splitlines() if x.startswith('#SBATCH')]
  cut = lines.index('#SBATCH hetjob')
  assert lines[cut - 2 : cut] == [
    '#SBATCH --ntasks=2',
    '#SBATCH --partition=cpu',
  ]
  assert lines[cut + 5 :] == [
    '#SBATCH --ntasks=3',
    '#SBATCH --time=5',
    "#SBATCH '--comment=a b'",
  ]
  assert '--het-group=0' in script and '--het-group=1' in script
  assert not re.search('@[A-Z_]+@', script)


def run_script(script, srun, **environ):
  """Runs what sbatch gets, as job 7, with bash of ours in place of srun."""
  folder = script.parent
  with open(folder / 'slurm.log', 'a') as log:
    return subprocess.run(
      ['bash', script],
      env={
        'PATH': programs.make(folder, srun=srun),
        'SLURM_JOB_ID': '7',
        'SLURM_JOB_NODELIST': 'n1',
        **environ,
      },
      stdout=log,
      timeout=60,
    )


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
  ],
)
def test_a_cancelled_script_says_why_and_that_it_has_ended(
  tmp_path, of_slurm, said, ended
):
  job = jobs.Job(module='fake_train')
  script = tmp_path / 'job.sbatch'
  script.write_text(sbatch_script.make(job, str(tmp_path), sys.executable))
  # Slurm signals the script and the step; the step ends first.
  cancel = f"echo '{of_slurm}'\nkill -TERM $PPID\nexit 143"
  done = run_script(script, cancel)
  assert done.returncode == 143
  lines = (tmp_path / 'slurm.log').read_text().splitlines()
  assert lines[-1] == f'job 7: {said} tasks were told to leave'
  found = tmp_path / 'job_7.ended'
  assert (found.read_text() if found.exists() else None) == ended


def test_why_an_earlier_job_in_the_folder_was_cancelled_is_not_repeated(
  tmp_path,
):
  (tmp_path / 'slurm.log').write_text(f'{CANCELLED} DUE TO TIME LIMIT ***\n')
  script = tmp_path / 'job.sbatch'
  job = jobs.Job(module='fake_train')
  script.write_text(sbatch_script.make(job, str(tmp_path), sys.executable))
  run_script(script, f"echo '{CANCELLED} ***'\nkill -TERM $PPID\nexit 143")
  lines = (tmp_path / 'slurm.log').read_text().splitlines()
  assert lines[-1] == 'job 7: cancelled: the tasks were told to leave'


def test_a_job_that_ends_well_is_not_taken_for_another_in_its_folder(tmp_path):
  for state in ('told_to_leave', 'not_saved', 'failed'):
    (tmp_path / f'job_6.{state}').write_text('9 n1 worker 0\n')
  script = tmp_path / 'job.sbatch'
  job = jobs.Job(num_ps=0, num_workers=1, module='fake_train')
  script.write_text(sbatch_script.make(job, str(tmp_path), '/bin/true'))
  # Job 6 is cancelled while job 7 runs.
  task = f'bash -c task; touch {tmp_path}/told_to_leave {tmp_path}/job_6.ended'
  done = run_script(script, task, SLURM_PROCID='0', SLURMD_NODENAME='n1')
  assert done.returncode == 0, (tmp_path / 'slurm.log').read_text()
  assert (tmp_path / 'job_7.ended').read_text() == '7 0\n'
  assert (tmp_path / 'job_6.failed').exists()


def test_the_last_lines_are_not_those_of_an_earlier_job(tmp_path):
  (tmp_path / 'worker_0.log').write_text('no space left')
  script = tmp_path / 'job.sbatch'
  job = jobs.Job(num_ps=0, num_workers=1, module='fake_train')
  script.write_text(sbatch_script.make(job, str(tmp_path), '/bin/false'))
  run_script(script, 'bash -c task', SLURM_PROCID='0', SLURMD_NODENAME='n1')
  said = (tmp_path / 'slurm.log').read_text().splitlines()
  assert said[1:3] == [
    'job 7: the last lines of worker 0:',
    '  | (it has written nothing)',
  ]
  log = (tmp_path / 'worker_0.log').read_text()
  assert log == 'no space left\n--- job 7 ---\n'


def test_the_tasks_get_what_the_script_sets_whatever_sbatch_was_told(tmp_path):
  # With sbatch --export=NONE, a site's default, srun passes nothing on.
  script = tmp_path / 'job.sbatch'
  job = jobs.Job(module='fake_train')
  script.write_text(sbatch_script.make(job, str(tmp_path), sys.executable))
  done = run_script(script, '[[ " $* " == *" --export=ALL "* ]]')
  assert done.returncode == 0


def test_a_cancelled_script_whose_chief_could_not_save_says_so(tmp_path):
  job = jobs.Job(num_ps=0, num_workers=1, module='fake_train')
  script = tmp_path / 'job.sbatch'
  python = tmp_path / 'python'
  python.write_text('#!/bin/sh\nexit 75\n')
  python.chmod(0o755)
  script.write_text(sbatch_script.make(job, str(tmp_path), str(python)))
  step = 'bash -c task\nkill -TERM $PPID\nexit 143'
  done = run_script(script, step, SLURM_PROCID='0', SLURMD_NODENAME='n1')
  said = (tmp_path / 'slurm.log').read_text()
  assert done.returncode == 75, said
  assert 'job 7: not all is saved' in said


def test_a_notice_of_the_time_limit_is_no_failure_to_restart_from(tmp_path):
  job = jobs.Job(num_ps=0, num_workers=1, module='fake_train', max_restarts=3)
  script = tmp_path / 'job.sbatch'
  python = tmp_path / 'python'
  # Slurm signals all processes of the step.
  python.write_text('#!/bin/sh\ntrap "exit 138" USR1\nkill -USR1 0\nexit 1\n')
  python.chmod(0o755)
  script.write_text(sbatch_script.make(job, str(tmp_path), str(python)))
  step = 'set -m\nbash -c task & wait $!'
  done = run_script(script, step, SLURM_PROCID='0', SLURMD_NODENAME='n1')
  said = (tmp_path / 'slurm.log').read_text()
  assert done.returncode == 143, said
  assert 'cancelled: the tasks were told to leave' in said
  assert 'restart' not in said
  assert not list(tmp_path.glob('*.noticed'))


@pytest.mark.parametrize('given', ['USR1@60', 'SIGXCPU', '10@5', 'R:TERM@60'])
def test_a_signal_that_saves_may_come_before_the_limit(given):
  assert f'--signal={given}' in make_script([f'--signal={given}'])


@pytest.mark.parametrize('given', ['B:USR1@60', 'QUIT@60', 'RB:TERM', '9'])
def test_a_signal_that_would_not_save_is_refused(given):
  with pytest.raises(cli.UsageError, match='such as --signal=TERM@60'):
    make_script([f'--signal={given}'])


def choose_ports(num_tasks, job, num_moves=0):
  """Returns the first port that the script of a job would choose."""
  script = make_script(num_ps=1, num_workers=num_tasks - 1)
  start = script.index('ports_per_job=')
  end = script.index('choose_ports\n', script.index('}\n', start))
  code = script[start:end] + f'num_moves={num_moves}; choose_ports; '
  code += 'echo $DISTMNIST_FIRST_PORT'
  done = subprocess.run(
    ['bash', '-c', code],
    env={**os.environ, 'SLURM_JOB_ID': str(job)},
    capture_output=True,
    text=True,
    check=True,
  )
  return int(done.stdout)


@pytest.mark.parametrize('num_tasks', [3, 32, 33, 100, 1000])
def test_jobs_in_a_row_have_ports_of_their_own_also_with_many_tasks(num_tasks):
  first = [choose_ports(num_tasks, job) for job in (699, 700, 701, 123456)]
  assert len(set(first)) == 4
  assert all(p >= 10000 and p + num_tasks <= 32768 for p in first)
  gaps = [abs(a - b) for a in first for b in first if a != b]
  assert min(gaps) >= num_tasks


def test_a_job_that_finds_a_port_taken_moves():
  first = [choose_ports(3, 1), choose_ports(3, 701)]
  assert first[0] == first[1]  # 700 jobs later
  moved = {choose_ports(3, 701, moves) for moves in range(20)}
  assert len(moved) == 20


def make(logs_dir='/logs', components=((),), may_requeue=False):
  text = sbatch_script.make_options(logs_dir, [1, 2], components, may_requeue)
  return text.splitlines()


def test_one_part_has_all_tasks_and_two_have_their_own():
  assert '#SBATCH --ntasks=3' in make()
  lines = make(components=[['--time=5'], ["--comment=it's"]])
  cut = lines.index('#SBATCH hetjob')
  assert lines[cut - 2 : cut] == ['#SBATCH --ntasks=1', '#SBATCH --time=5']
  assert lines[-2:] == [
    '#SBATCH --ntasks=2',
    """#SBATCH '--comment=it'"'"'s'""",
  ]


def test_a_job_is_requeued_only_if_it_may():
  assert '#SBATCH --no-requeue' in make()
  assert '#SBATCH --requeue' in make(may_requeue=True)


@pytest.mark.parametrize(
  ('folder', 'written'),
  [
    ('/logs', '/logs'),
    ('/a%j', '/a%%j'),
    # Seen with Slurm 22.05: sbatch and the node each take one level, and the
    # node then leaves each % alone.
    ('/a\\b%j', '/a\\\\\\\\b%j'),
  ],
)
def test_the_log_of_the_job_is_in_the_folder_whatever_its_name(folder, written):
  (line,) = [line for line in make(folder) if '--output=' in line]
  assert line.replace("'", '') == f'#SBATCH --output={written}/slurm.log'


def test_an_option_of_two_lines_is_refused():
  with pytest.raises(cli.UsageError, match='leave the line break out'):
    make('/a\nb')
  with pytest.raises(cli.UsageError, match='--comment=a'):
    make(components=[['--comment=a\nb']])
