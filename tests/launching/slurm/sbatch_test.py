import pytest

from distmnist.launching.slurm import sbatch
from tests.support import programs


@pytest.mark.parametrize(
  ('said', 'ending'),
  [
    ([], 'ended with exit code 143'),
    (
      ['job 7: cancelled: the tasks were told to leave'],
      'was cancelled, by scancel or by Slurm, exit code 143',
    ),
    (
      ['job 7: cancelled due to time limit: the tasks', 'more'],
      'was cancelled due to time limit (--slurm_time), exit code 143',
    ),
  ],
)
def test_the_last_line_says_who_has_cancelled(said, ending):
  assert sbatch.find_ending('7', 143, said) == ending


@pytest.mark.parametrize(
  ('said', 'states', 'ended', 'code'),
  [
    # What sbatch says while the script of a cancelled job still writes.
    (0, ['COMPLETING', 'CANCELLED'], '7 143', 143),
    (0, ['COMPLETING', 'COMPLETED'], '7 75', 75),
    # The end of a script is seen late where the folder is on NFS.
    (0, ['COMPLETING', 'COMPLETED'], None, 0),
    (0, ['COMPLETING', 'CANCELLED'], None, 143),
    (0, ['RUNNING', *['NODE_FAIL'] * 10], None, 1),
    (0, ['RUNNING', 'down', 'TIMEOUT'], None, 143),
    (0, ['forgotten'] * 10, None, 0),
    (3, ['FAILED'] * 10, None, 3),
    (3, ['down', *['forgotten'] * 10], None, 3),
    (1, ['forgotten', 'PENDING', 'COMPLETED'], None, 0),
    # What sbatch says of a job that Slurm takes off its nodes for another.
    (1, ['COMPLETING', 'PENDING', 'RUNNING', 'COMPLETED'], None, 0),
    (1, ['COMPLETING', 'PENDING', 'FAILED'], '7 2', 2),
    (1, ['PREEMPTED', 'PREEMPTED', 'PENDING', 'COMPLETED'], None, 0),
    (1, [*['FAILED'] * 9, 'PENDING', *['FAILED'] * 10], None, 1),
  ],
)
def test_sbatch_that_ends_is_believed_once_the_job_is_over(
  tmp_path, monkeypatch, said, states, ended, code
):
  monkeypatch.setattr(sbatch, 'ASK_SECS', 0.0)
  monkeypatch.setattr(sbatch, 'TICK_SECS', 0.01)
  path = programs.make(
    tmp_path,
    sbatch=f'echo 7; exit {said}',
    squeue=f"""cd {tmp_path}
      echo "$@" >asked
      read -r state <states
      sed -i 1d states
      case $state in
        down) echo 'error: Unable to contact slurm controller' >&2; exit 1;;
        forgotten) echo 'slurm_load_jobs error: Invalid job id specified' >&2
          exit 1;;
      esac
      echo $state
      [[ -s states || ! -f word ]] || mv word ended""",
  )
  monkeypatch.setenv('PATH', path)
  (tmp_path / 'states').write_text('\n'.join([*states, '']))
  if ended:
    (tmp_path / 'word').write_text(f'{ended}\n')
  with sbatch.Submission('job.sbatch', is_waited_for=True) as submission:
    job_id = submission.read_job_id()
    assert job_id == '7'
    found = submission.wait(job_id, tmp_path / 'ended', lambda: None)
  assert found == code
  assert (tmp_path / 'states').read_text() == ''
  assert '--jobs=7' in (tmp_path / 'asked').read_text()


@pytest.mark.parametrize('is_waited_for', [True, False])
def test_a_job_that_is_waited_for_ends_with_an_error(
  tmp_path, monkeypatch, is_waited_for
):
  asked = tmp_path / 'asked'
  path = programs.make(tmp_path, sbatch='echo 7', scancel=f'echo $1 >{asked}')
  monkeypatch.setenv('PATH', path)
  with (
    pytest.raises(ValueError, match='a port'),
    sbatch.Submission('script', is_waited_for) as submission,
  ):
    assert submission.read_job_id() == '7'
    raise ValueError('a port')
  assert asked.exists() == is_waited_for


def test_a_job_learns_nothing_of_the_job_that_submits_it():
  inside = {
    'SLURM_JOB_ID': '7',
    'SLURM_RESTART_COUNT': '1',
    'SLURM_THREADS_PER_CORE': '2',
    'SLURMD_NODENAME': 'n1',
  }
  kept = {'SLURM_CONF': '/slurm.conf', 'SBATCH_ACCOUNT': 'x', 'HOME': '/me'}
  assert sbatch.make_env(inside | kept) == kept
  outside = {'SLURM_HINT': 'nomultithread', **kept}
  assert sbatch.make_env(outside) == outside
