import shlex

import pytest

from distmnist.common import cli
from distmnist.launching.scheduler import job_template


@pytest.mark.parametrize(
  'template',
  [
    *('qsub -N {name} -o {log} {script}', 'bsub -J {name} {command}'),
    *('sbatch --parsable --wrap={command}', 'condor_run {command}'),
    "awk '{{print}}' {script}",
  ],
)
def test_a_template_says_how_a_task_is_submitted(template):
  job_template.check('template', template)


@pytest.mark.parametrize(
  ('template', 'error'),
  [
    ('', r'expected \{command\} or \{script\} once, as in --template='),
    ('qsub job.sh', r'expected \{command\} or \{script\} once'),
    ('qsub {script} {command}', r'expected \{command\} or \{script\} once'),
    ('qsub {script} {script}', r'expected \{command\} or \{script\} once'),
    ('qsub {cmd}', r'\{cmd\} is not known: expected \{command\}, \{script\}'),
    ('qsub {} {script}', r'\{\} is not known'),
    ('qsub {script', 'expected .* write {{ and }}'),
    ('qsub {script!x}', r'\{script\} takes no conversion or format'),
    ('qsub {script!r}', r'\{script\} takes no conversion or format'),
    ('qsub {script:d}', r'\{script\} takes no conversion or format'),
    ('qsub -N {name:{log}} {script}', r'\{name\} takes no conversion or'),
    ('qsub } {script}', 'Single .*write {{ and }}'),
  ],
)
def test_one_with_which_no_task_would_run_is_refused(template, error):
  with pytest.raises(cli.UsageError, match=error) as found:
    job_template.check('ps_template', template)
  assert str(found.value).startswith(f'--ps_template={template}: ')


def test_what_is_filled_in_is_one_word_for_a_shell():
  text = job_template.fill(
    'q {name} {log} {script} {command}', "a 'b'", '/x y/s', 'ps 0', '/x y/l'
  )
  assert shlex.split(text) == ['q', 'ps_0', '/x y/l', '/x y/s', "a 'b'"]
