"""saved_problem: a run's program runs if it is this user's, or is named."""

import os

import pytest
from absl import flags

from distmnist.common import cli, command_line
from distmnist.logdir import run_flags
from distmnist.training.problems import saved_problem
from tests.support import problems


@pytest.fixture
def run(set_flags, tmp_path, monkeypatch):
  """A run that has kept its flags, and no checkpoint."""
  monkeypatch.setattr('sys.argv', ['test'])
  folder = tmp_path / 'run'
  folder.mkdir()
  set_flags('--dataset=synthetic')
  run_flags.write(str(folder))
  set_flags()
  return folder


def parse(*words):
  """Does what evaluate and export do with their command lines."""
  saved_problem.import_named(words)
  command_line.parse(flags.FLAGS, ['evaluate', *words])


@pytest.fixture(params=['.', 'train.flags', 'problem.py'])
def strange_run(request, run, tmp_path):
  """A run with a program, of which one part belongs to another user."""
  if os.geteuid():
    pytest.skip('only root can give a file away')
  with open(run / 'train.flags', 'a', encoding='utf-8') as file:
    file.write('--problem=theirs.py\n')
  text = f'open({str(tmp_path / "ran")!r}, "w").close()'
  problems.write(run / 'problem.py', text)
  os.chown(run / request.param, 12345, 12345)
  return run


def test_no_program_of_another_users_run_runs_unless_it_is_named(
  set_flags, strange_run, tmp_path, monkeypatch
):
  refusal = r'.* belongs to another user \(uid 12345\): .* --problem=\S+/probl'
  ran = tmp_path / 'ran'
  words = ['evaluate', f'--logdir={strange_run}']
  with pytest.raises(cli.UsageError, match=refusal):
    parse(*words[1:])
  monkeypatch.setattr('sys.argv', words)
  set_flags(*words[1:])
  with pytest.raises(cli.UsageError, match=refusal):
    saved_problem.load()
  assert not ran.exists()
  words.append(f'--problem={strange_run}/problem.py')
  monkeypatch.setattr('sys.argv', words)
  parse(*words[1:])
  with pytest.raises(cli.UsageError, match='problem.py has no function load'):
    saved_problem.load()
  assert ran.exists()
  assert flags.FLAGS.problem == f'{strange_run}/problem.py'


@pytest.mark.parametrize('help_flag', ['--help', '-helpfull', '--help=true'])
def test_help_imports_no_problem_of_a_run(set_flags, run, tmp_path, help_flag):
  path = problems.write(tmp_path / 'fails.py', 'raise ValueError')
  with open(run / 'train.flags', 'a', encoding='utf-8') as file:
    file.write(f'--problem={path}\n')
  set_flags()
  parse(f'--logdir={run}', help_flag)


@pytest.mark.slow
@pytest.mark.parametrize(
  'words', [['--logdir={run}'], ['--checkpoint={run}/best/model.ckpt-3']]
)
def test_flags_of_the_problem_of_a_run_are_known(
  set_flags, run, tmp_path, words
):
  source = "flags.DEFINE_integer('units_of_mine', 1, 'Units.')"
  path = problems.write(
    tmp_path / 'with_units.py', f'from absl import flags\n{source}'
  )
  with open(run / 'train.flags', 'a', encoding='utf-8') as file:
    file.write(f'--problem={path}\n')
  set_flags()
  words = [word.format(run=run) for word in words]
  parse(*words, '--units_of_mine=3')
  assert flags.FLAGS.units_of_mine == 3
  with pytest.raises(flags.UnrecognizedFlagError, match='unts_of_mine'):
    parse(*words, '--unts_of_mine=3')


def test_a_run_has_its_problem_and_says_if_that_has_changed(
  set_flags, run, tmp_path, monkeypatch, capsys
):
  source = 'load = build = loss = print'
  path = problems.write(tmp_path / 'net_of_mine.py', source)
  with open(run / 'train.flags', 'a', encoding='utf-8') as file:
    file.write(f'--problem={path}\n')
  (run / 'problem.py').write_text('load = build = loss = len')
  monkeypatch.setattr('sys.argv', ['test', f'--logdir={run}'])
  set_flags(f'--logdir={run}')
  logdir, problem = saved_problem.load()
  assert (logdir, problem.describe()) == (str(run), path)
  assert flags.FLAGS.dataset == 'synthetic'
  assert 'has changed since the run' in capsys.readouterr().err
