"""problem_flags: what a user's file defines is known, however it is written."""

import pytest

from distmnist.common import cli
from distmnist.launching import train_flags

DEFINITIONS = {
  'broken as PEP 8 has it': "U = flags.DEFINE_integer('units', 3,\n  'It.')",
  'broken after the bracket': "U = flags.DEFINE_integer(\n  'units', 3, 'It.')",
  'with a comment': "U = flags.DEFINE_integer('units', 3, 'It.')  # Few.",
  'through TensorFlow': "tf.app.flags.DEFINE_integer('units', 3, 'It.')",
  'by its own name': "DEFINE_integer('units', 3, 'It.')",
  'with a type': "U: object = flags.DEFINE_integer('units', 3, 'It.')",
  'in a block': "if True:\n  flags.DEFINE_integer('units', 3, 'It.')",
  'in Latin-1': "# coding: latin-1\nflags.DEFINE_integer('units', 3, '\xe9')",
}


@pytest.mark.parametrize('text', DEFINITIONS.values(), ids=DEFINITIONS)
def test_a_definition_is_read_however_it_is_written(tmp_path, text):
  path = tmp_path / 'net.py'
  path.write_text(text, encoding='latin-1')
  values = train_flags.check([f'--problem={path}', '--units=4'])
  assert values['units'].value == 4
  with pytest.raises(cli.UsageError, match='expected a whole number'):
    train_flags.check([f'--problem={path}', '--units=many'])


@pytest.mark.parametrize(
  'text',
  [
    "import os\nflags.DEFINE_integer('units', os.cpu_count(), 'It.')",
    'from my_flags import UNITS',
    'def build(:',
  ],
)
def test_what_is_not_seen_in_the_file_is_left_to_train(tmp_path, text):
  path = tmp_path / 'net.py'
  path.write_text(text)
  train_flags.check([f'--problem={path}', '--units=4', '--units', '5'])
  with pytest.raises(cli.UsageError, match='value should be one of'):
    train_flags.check([f'--problem={path}', '--units=4', '--model=none'])


@pytest.mark.parametrize('named', ['none.py', 'distmnist.no.such', 'no.such'])
def test_a_problem_that_is_not_there_is_left_to_train(named):
  train_flags.check([f'--problem={named}', '--units=4'])
