import json
import shlex
import subprocess

import pytest

from distmnist.common import cli, names, sent_file
from distmnist.common.names import SENT_FILE
from distmnist.launching import jobs
from distmnist.launching.slurm import sbatch_script


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
  task = lines[-1].lstrip()
  assert task == "-m distmnist.train --stop_grace_secs=27 '--name=a b'"
  *words, request = shlex.split(lines[-2].removesuffix(' \\'))
  assert words == ['exec', '/a/python', '-m', names.SLURM_JOB]
  assert json.loads(request) == {
    'logs_dir': '/logs',
    'num_ps': 2,
    'num_workers': 3,
    'evaluator': False,
    'max_restarts': 0,
    'stop_grace_secs': 27,
    'share_gpus': True,
  }


def test_other_programs_have_the_time_that_slurm_allows():
  job = jobs.Job(module='mine', given=('--stop_grace_secs=5',))
  script = sbatch_script.make(job, '/logs', 'python', kill_wait_secs=40)
  assert '"stop_grace_secs": 37' in script


@pytest.mark.parametrize(
  ('given', 'share'),
  [((), True), (('--num_gpus=1',), True), (('--num_gpus=2',), False)],
)
def test_a_worker_gets_one_gpu_unless_it_asks_for_several(given, share):
  assert f'"share_gpus": {str(share).lower()}' in make_script(given=given)


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
  assert script.endswith(f'\n  -m distmnist.train {flags}\n')


def test_a_job_may_be_requeued():
  script = make_script(max_restarts=4, may_requeue=True)
  assert '#SBATCH --requeue\n' in script
  assert '"max_restarts": 4' in script


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


@pytest.mark.parametrize('given', ['USR1@60', 'SIGXCPU', '10@5', 'R:TERM@60'])
def test_a_signal_that_saves_may_come_before_the_limit(given):
  assert f'--signal={given}' in make_script([f'--signal={given}'])


@pytest.mark.parametrize('given', ['B:USR1@60', 'QUIT@60', 'RB:TERM', '9'])
def test_a_signal_that_would_not_save_is_refused(given):
  with pytest.raises(cli.UsageError, match='such as --signal=TERM@60'):
    make_script([f'--signal={given}'])


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
