"""train_flags: train's flags are known even without TensorFlow."""

import subprocess
import sys

import pytest
from absl import flags

from distmnist import check_flags  # It imports train itself.
from distmnist.common import cli, registry
from distmnist.common.names import MODELS
from distmnist.launching import train_flags
from tests.support.paths import REPO

DEFINITIONS = {
  'broken as PEP 8 has it': "U = flags.DEFINE_integer('units', 3,\n  'It.')",
  'broken after the bracket': "U = flags.DEFINE_integer(\n  'units', 3, 'It.')",
  'with a comment': "U = flags.DEFINE_integer('units', 3, 'It.')  # Few.",
  'through TensorFlow': "tf.app.flags.DEFINE_integer('units', 3, 'It.')",
  'by its own name': "DEFINE_integer('units', 3, 'It.')",
  'with a type': "U: object = flags.DEFINE_integer('units', 3, 'It.')",
  'in a block': "if True:\n  flags.DEFINE_integer('units', 3, 'It.')",
  'within a call': "keep(flags.DEFINE_integer('units', 3, 'It.'))",
  'with a name': "U = 3\nflags.DEFINE_integer('units', U + 1, f'As {U}.')",
  'in Latin-1': "# coding: latin-1\nflags.DEFINE_integer('units', 3, '\xe9')",
}


def describe(flag):
  """What decides how a word on the command line is taken."""
  parser = {
    name: value
    for name, value in vars(flag.parser).items()
    if not callable(value)
  }
  return type(flag), type(flag.parser), parser, flag.default, flag.boolean


@pytest.mark.slow
def test_the_list_is_that_of_train_today(tasks, tmp_path):
  """In a process of its own: this one has flags of other programs."""
  path = tmp_path / 'today.json'
  task = tasks.run(tmp_path / 'log', path, module='scripts.train_flags')
  assert task.code == 0, task.output
  assert train_flags.MANIFEST.read_text() == path.read_text(), (
    'a flag of train has changed: run python -m scripts.train_flags'
  )


def test_each_flag_of_the_list_is_as_train_defines_it():
  assert check_flags.train  # All are defined.
  values = train_flags._define()
  mine = {name: describe(values[name]) for name in train_flags._read_manifest()}
  assert mine == {name: describe(flags.FLAGS[name]) for name in mine}
  assert len(mine) > 80


@pytest.mark.slow
def test_it_needs_no_tensorflow():
  code = (
    'import sys\n'
    'from distmnist.launching import train_flags\n'
    "train_flags.check(['--model=cnn', '--strategy=easgd'])\n"
    "print('tensorflow' in sys.modules, 'numpy' in sys.modules)"
  )
  done = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  assert done.stdout.split() == ['False', 'False']


@pytest.mark.parametrize(
  'path',
  sorted((REPO / 'configs').rglob('*.flags')),
  ids=lambda path: path.stem,
)
def test_all_configs_pass(path):
  train_flags.check(train_flags.expand([f'--flagfile={path}']))


@pytest.mark.parametrize(
  'word, said',
  [
    ('--strategy=magic', 'strategy=magic: value should be one of'),
    ('--optimizer=magic', 'optimizer=magic: value should be one of'),
  ],
)
def test_a_wrong_flag_is_one_line_that_names_it(word, said):
  with pytest.raises(cli.UsageError) as raised:
    train_flags.check(['--model=cnn', word])
  assert said in str(raised.value)
  assert '\n' not in str(raised.value)


def test_a_name_of_two_packages_is_refused(monkeypatch):
  found = registry._find_all(MODELS)
  monkeypatch.setitem(found, 'cnn', found['cnn'] | {'net': 'theirs'})
  with pytest.raises(cli.UsageError, match=r'net \(of theirs\)'):
    train_flags.check(['--model=cnn'])


def test_one_check_leaves_nothing_to_the_next():
  train_flags.check(['--model=cnn'])
  values = train_flags._define()
  assert not any(values[name].present for name in values)


@pytest.mark.slow
def test_what_does_not_fit_is_found_with_no_host(monkeypatch, capfd, caplog):
  monkeypatch.setattr(train_flags, '_LINE_SECS', 600.0)
  with pytest.raises(cli.UsageError, match='--lr_schedule=step needs'):
    train_flags.check_combination(['--lr_schedule=step'], 1, 2)
  assert not caplog.messages
  assert capfd.readouterr() == ('', '')


def test_a_check_that_takes_long_is_not_silent(monkeypatch, tmp_path, caplog):
  # A program that takes no time, and lines as soon as Python takes some.
  program = tmp_path / 'quick_check.py'
  program.write_text(
    "import sys; open(sys.argv[1] + '.checked', 'w').write('[null]')"
  )
  monkeypatch.setenv('PYTHONPATH', str(tmp_path))
  monkeypatch.setattr(train_flags, 'CHECK', program.stem)
  monkeypatch.setattr(train_flags, '_LINE_SECS', 1e-3)
  caplog.set_level('INFO')
  train_flags.check_combination([], 1, 2)
  assert caplog.records
  assert all('flags of train' in x.getMessage() for x in caplog.records)


@pytest.fixture
def add_net(monkeypatch):
  """Returns add(module): of another package, which adds it to the models."""

  def add(module):
    found = registry._find_all(MODELS)
    monkeypatch.setitem(found, 'theirs', {module: 'theirs'})

  return add


def test_a_module_of_another_package_that_is_not_there_is_named(add_net):
  add_net('their.gone')
  message = 'the module their.gone, which an .*no such module: mend it'
  with pytest.raises(cli.UsageError, match=message):
    train_flags.check([])


def test_the_flags_of_another_package_are_checked(
  add_net, tmp_path, monkeypatch
):
  (tmp_path / 'their_deep_net.py').write_text(
    "from their_flags import DEPTH\nflags.DEFINE_float('their_scale', 1, 'It.')"
  )
  monkeypatch.syspath_prepend(tmp_path)
  add_net('their_deep_net')
  words = ['--model=theirs', '--their_scale=2', '--their_depth=3']
  values = train_flags.check(words)
  assert (values['model'].value, values['their_scale'].value) == ('theirs', 2.0)
  assert train_flags.is_known('their_scale')
  with pytest.raises(cli.UsageError, match='expected a number'):
    train_flags.check(['--their_scale=much'])


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
    "flags.DEFINE_units('units', 3, 'It.')",
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


@pytest.mark.parametrize('words', [[], ['--problem=none.py']])
def test_a_flag_of_the_launcher_is_sent_before_the_dashes(words):
  assert 'num_workers' in flags.FLAGS  # As in a launch.
  with pytest.raises(cli.UsageError, match='before the --') as raised:
    train_flags.check([*words, '--num_workers=2'])
  assert str(raised.value).startswith('--num_workers ')


@pytest.mark.parametrize('words', [[], ['--problem=fitted'], ['--model=cnn']])
def test_a_short_name_of_a_flag_of_launch_leads_to_it(words):
  for name in ('workers', 'ps'):
    with pytest.raises(cli.UsageError, match=f'--{name}: .*--num_{name}$'):
      train_flags.check([*words, f'--{name}=2'])


def test_what_says_nothing_is_told_apart_from_what_is_not_known():
  words = '--seed=0', '--nohistory', '--gone=1', '--hidden_units=300,100'
  found = train_flags.find_idle([*words, '--lr_boundaries='])
  assert found == ({'gone'}, {'seed', 'history', 'lr_boundaries'})


@pytest.mark.parametrize('named', ['none.py', 'distmnist.no.such', 'no.such'])
def test_a_problem_that_is_not_there_is_left_to_train(named):
  train_flags.check([f'--problem={named}', '--units=4'])
