import re
import subprocess
import sys
import types

import pytest
from absl import flags

from distmnist.common import help_text


@pytest.fixture
def read_help(tasks, tmp_path):
  """Returns read(program, flag) -> what it prints."""

  def read(program, flag):
    if program == 'train':  # Without another import of TensorFlow.
      task = tasks.run(tmp_path / 'log', flag)
      assert task.code == 0
      return task.output
    done = subprocess.run(
      [sys.executable, '-m', f'distmnist.{program}', flag],
      capture_output=True,
      text=True,
      timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, '')
    return done.stdout

  return read


@pytest.fixture
def values(monkeypatch):
  """A program's flags: two of its own, one of a rule, one of a library."""
  values = flags.FlagValues()
  program = 'distmnist.help_text_program'
  monkeypatch.setattr(help_text, 'FLAGS', values)
  monkeypatch.setitem(
    sys.modules, program, types.SimpleNamespace(__doc__='What it does.\n')
  )

  def define(kind, name, default, text, module, **bounds):
    getattr(flags, f'DEFINE_{kind}')(
      name, default, text, flag_values=values, module_name=module, **bounds
    )

  define('integer', 'steps', 3, 'How many.', program, lower_bound=1)
  define('string', 'name', None, 'Its name.', program)
  define('bool', 'easy', False, 'In lock-step.', 'distmnist.strategies.easgd')
  define('float', 'rate', 0.5, 'How fast.', 'distmnist.nn.optimizers')
  define('string', 'level', 'info', 'How loud.', 'a_library')
  values.mark_as_parsed()
  return program


def test_help_explains_the_first_flags_and_names_the_others(values):
  assert help_text.make('prog', values, ['rate']) == (
    'prog: What it does.\n'
    '\n'
    'The flags that matter most:\n'
    '  --rate: How fast. (default: 0.5; a number)\n'
    '\n'
    'All others, explained by --helpfull:\n'
    '  This program\n'
    '    --name, --steps\n'
    '  Update rules\n'
    '    --[no]easy\n'
    '\n'
    '--flagfile=FILE reads flags from a file; later flags win.'
  )


def test_by_default_the_first_are_those_of_the_program(values):
  text = help_text.make('prog', values)
  assert '  --name: Its name.\n' in text
  assert '  --steps: How many. (default: 3; a positive integer)\n' in text
  assert 'This program' not in text


def test_a_program_without_flags_of_its_own_has_a_help(values, monkeypatch):
  monkeypatch.setitem(sys.modules, 'distmnist.none', sys.modules[values])
  text = help_text.make('prog', 'distmnist.none')
  assert 'prog: What it does.\n\nAll flags, explained by --helpfull' in text
  assert '--[no]easy' in text
  assert 'matter most' not in text


def test_a_flag_that_is_given_several_times_is_explained_once(values):
  flags.DEFINE_multi_integer(
    *('mbits', [1], 'Each may be given several times.'),
    flag_values=help_text.FLAGS,
    module_name='distmnist.help_text_program',
  )
  assert help_text.make('prog', values, ['mbits']).splitlines()[3:5] == [
    '  --mbits: Each may be given several times. (default: [1]; an integer)',
    '',
  ]


def test_helpfull_explains_all_by_subject(values):
  assert help_text.make('prog', values, ['rate'], is_full=True) == (
    'prog: What it does.\n'
    '\n'
    'This program:\n'
    '  --name: Its name.\n'
    '  --steps: How many. (default: 3; a positive integer)\n'
    '\n'
    'Update rules:\n'
    '  --[no]easy: In lock-step. (default: false)\n'
    '\n'
    'Optimizer, learning rate and layers:\n'
    '  --rate: How fast. (default: 0.5; a number)\n'
    '\n'
    'Library a_library:\n'
    '  --level: How loud. (default: info)\n'
    '\n'
    '--flagfile=FILE reads flags from a file; later flags win.'
  )


@pytest.mark.slow
@pytest.mark.parametrize('program', ['train', 'launch', 'sweep'])
def test_help_fits_a_screen_and_helpfull_leaves_no_flag_out(read_help, program):
  short, full = (read_help(program, f) for f in ('--help', '--helpfull'))
  # absl files the flags of __main__ under another name.
  assert short.startswith(f'distmnist.{program}: ')
  assert len(short.splitlines()) < 90
  listed = short.partition('The flags that matter most:')[2]
  assert max(map(len, listed.splitlines())) <= 80
  ours = full.partition('\nLibrary ')[0]
  flags_of_ours = set(re.findall(r'^  --(?:\[no\])?(\w+): ', ours, re.M))
  assert len(flags_of_ours) > 30
  assert flags_of_ours <= set(re.findall(r'--(?:\[no\])?(\w+)', listed))
  known = {'This program', *help_text._SUBJECTS.values()}
  # A program may have no flag of its own.
  begin = min(full.find(f'\n{subject}:\n') % len(full) for subject in known)
  assert set(re.findall(r'^(\S.*):$', ours[begin:], re.M)) <= known
