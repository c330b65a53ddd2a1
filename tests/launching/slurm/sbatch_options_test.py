import pytest

from distmnist.common import cli
from distmnist.launching.slurm import sbatch_options


def make(logs_dir='/logs', components=((),), may_requeue=False):
  text = sbatch_options.make(logs_dir, [1, 2], components, may_requeue)
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
