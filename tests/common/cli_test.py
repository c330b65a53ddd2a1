"""cli: flags in, one line and an exit code out.

Flags of the program under test are those of this file.
"""

import errno
import os
import subprocess
import sys

import pytest
from absl import flags

from distmnist.common import cli

_COUNT = flags.DEFINE_integer(
  'cli_test_count', 1, 'A count for the tests of cli.', lower_bound=1
)


@pytest.fixture
def run(set_flags, capsys):
  """Returns run(main, *words) -> (exit code, stdout, stderr)."""

  def run_main(main, *words, **settings):
    codes = []
    cli.run(main, ['program', *words], leave=codes.append, **settings)
    (code,) = codes
    return code, *capsys.readouterr()

  return run_main


def test_main_finds_the_flags_parsed(run):
  assert run(lambda: _COUNT.value, '--cli_test_count=7')[0] == 7


def never(*_):
  raise AssertionError('main was called')


@pytest.mark.parametrize(
  'word, message',
  [
    (
      '--cli_test_coumt=2',
      "flag 'cli_test_coumt'. Did you mean: cli_test_count",
    ),
    ('--cli_test_count=0', 'cli_test_count=0'),
    ('--nohelpfull=1', 'nohelpfull'),
    ('cli_test_count=2', "'cli_test_count=2' is not a flag: flags start with"),
    ('--flagfile=/nowhere.flags', '/nowhere.flags'),
  ],
)
def test_a_bad_flag_fails_before_main(run, word, message):
  code, out, err = run(never, word)
  assert (code, out) == (2, '')
  assert message in err
  assert err.count('\n') == 1


@pytest.mark.parametrize(
  'end, code, said',
  [
    (None, 0, ''),
    (143, 143, ''),
    (cli.RunError('the disk\n  is full'), 1, 'error: the disk is full\n'),
    (
      cli.UsageError('two chiefs'),
      *(2, 'error: two chiefs (see cli_test.py --help)\n'),
    ),
    (cli.CodeError('mine.py:7: a'), 2, 'error: mine.py:7: a\n'),
    (cli.LostError('worker 1 is gone'), 3, 'error: worker 1 is gone\n'),
    (KeyboardInterrupt(), 130, ''),
  ],
)
def test_the_end_of_main_is_a_code_and_at_most_one_line(run, end, code, said):
  def main():
    if isinstance(end, BaseException):
      raise end
    return end

  assert run(main) == (code, '', said and f'cli_test.py: {said}')


@pytest.mark.parametrize('error', [ZeroDivisionError, BrokenPipeError])
def test_a_mistake_of_ours_keeps_its_traceback(run, error):
  def main():
    raise error('ours')  # Or a socket, of the broken pipe.

  code, _, err = run(main)
  assert code == 70
  assert err.startswith('Traceback')
  assert err.endswith(f'{error.__name__}: ours\n')


def test_words_after_two_dashes_go_to_main_untouched(run):
  seen = []

  def main(rest):
    seen.extend(rest)

  words = ['--cli_test_count=3', '--', '--model=cnn', '--', 'x']
  assert run(main, *words, passthrough=True) == (0, '', '')
  assert seen == ['--model=cnn', '--', 'x']
  assert _COUNT.value == 3


def test_words_that_are_no_flags_go_to_a_main_that_takes_them(run):
  seen = []

  def main(words, rest):
    seen.extend([words, rest])

  words = ['a=1', '--cli_test_count=3', 'b=2', '--', 'c=3', '--d']
  settings = {'takes_words': True, 'passthrough': True}
  assert run(main, *words, **settings) == (0, '', '')
  assert seen == [['a=1', 'b=2'], ['c=3', '--d']]
  assert _COUNT.value == 3


@pytest.mark.slow
def test_a_main_that_takes_words_takes_no_misspelt_flag(run):
  code, _, err = run(never, 'a=1', '--cli_test_coumt=3', takes_words=True)
  assert code == 2
  assert "Unknown command line flag 'cli_test_coumt'" in err


def test_a_flagfile_is_read_and_later_flags_win(run, tmp_path):
  path = tmp_path / 'x.flags'
  path.write_text('# What it is for.\n\n--cli_test_count=5\n')
  flagfile = f'--flagfile={path}'
  assert run(lambda: _COUNT.value, flagfile)[0] == 5
  assert run(lambda: _COUNT.value, flagfile, '--cli_test_count=6')[0] == 6
  assert run(lambda: _COUNT.value, '--cli_test_count=6', flagfile)[0] == 5


def test_help_prints_the_story_and_the_flags_and_leaves_main_alone(run):
  code, out, err = run(never, '--help')
  assert (code, err) == (0, '')
  assert out.startswith('cli_test.py: cli: flags in, one line')
  assert 'A count for the tests of cli.' in out
  assert '--flagfile=FILE reads flags from a file; later flags win.' in out
  assert 'absl.logging' not in out


def test_helpfull_has_the_flags_of_libraries_too(run):
  out = run(never, '--helpfull')[1]
  assert 'A count for the tests of cli.' in out
  assert 'Library absl.logging:' in out


@pytest.mark.slow
def test_nobody_reads_what_is_printed():
  """As with `... | head -1`."""
  done = subprocess.run(
    'python -m distmnist.launch --help | true; echo ${PIPESTATUS[0]}',
    shell=True,
    executable='bash',
    env={**os.environ, 'PATH': f'{os.path.dirname(sys.executable)}:/bin'},
    capture_output=True,
    text=True,
    timeout=200,
  )
  # Whether `true` is gone before the first line is a race.
  assert (done.stdout.strip(), done.stderr) in (('141', ''), ('0', ''))


def test_the_help_is_that_of_the_command_that_was_typed(run, monkeypatch):
  def main():
    raise cli.UsageError('two chiefs')

  monkeypatch.setattr(sys, 'argv', ['/usr/bin/distmnist-launch'])
  assert run(main)[2] == (
    'distmnist-launch: error: two chiefs (see distmnist-launch --help)\n'
  )


def test_another_program_is_named_as_this_one_was_typed(monkeypatch):
  monkeypatch.setattr(sys, 'argv', ['/x/distmnist/launch.py'])
  assert cli.name_command('report') == 'python -m distmnist.report'
  monkeypatch.setenv('DISTMNIST_BY_COMMAND', '1')  # Of a task.
  assert cli.name_command('report') == 'distmnist report'
  monkeypatch.delenv('DISTMNIST_BY_COMMAND')
  monkeypatch.setattr(sys, 'argv', ['distmnist-launch'])
  assert cli.name_command('report') == 'distmnist report'


def test_the_help_may_be_that_of_another_program(run, monkeypatch):
  def main():
    raise cli.UsageError('--x=1', 'train')

  assert run(main)[2].endswith('--x=1 (see distmnist.train --help)\n')
  monkeypatch.setattr(sys, 'argv', ['/usr/bin/distmnist-launch'])
  assert run(main)[2].endswith('--x=1 (see distmnist-train --help)\n')


class Held:
  """Stands for a session that a local variable of `main` holds."""

  def __init__(self, freed):
    self.freed = freed

  def __del__(self):
    self.freed.append(True)


@pytest.mark.parametrize('error', [cli.RunError('lost'), ValueError('bug')])
def test_what_main_holds_is_not_freed_before_the_end(capsys, error):
  freed, seen = [], []

  def main():
    held = Held(freed)
    raise type(error)(*error.args) from (held and None)

  cli.run(main, ['train'], leave=lambda code: seen.append(list(freed)))
  assert seen == [[]]
  capsys.readouterr()


@pytest.mark.parametrize(
  'number',
  [
    *(errno.ENOSPC, errno.EROFS, errno.EACCES),
    *(errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG),
  ],
)
def test_a_disk_that_takes_nothing_is_one_line(run, number):
  def main():
    raise OSError(number, os.strerror(number), 'a/b')

  code, _, err = run(main)
  assert (code, err) == (
    1,
    f'cli_test.py: error: a/b: {os.strerror(number)}\n',
  )


def test_too_many_open_files_are_one_line(run):
  def main():
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), 'a/b')

  code, _, err = run(main)
  assert (code, err) == (
    1,
    'cli_test.py: error: Too many open files: see ulimit -n\n',
  )


def fail_with(number, path):
  def main():
    raise OSError(number, os.strerror(number), path)

  return main


PASSING = (
  *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EMFILE),
  *(errno.EAGAIN, errno.ETIMEDOUT, errno.ECONNREFUSED, errno.EHOSTUNREACH),
)
OF_THE_USER = errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG


@pytest.mark.parametrize('number', [*PASSING, *OF_THE_USER])
def test_the_error_of_the_system_decides_whether_a_restart_may_help(
  run, monkeypatch, number
):
  main = fail_with(number, '/data/x')
  assert run(main)[0] == 1
  monkeypatch.setenv('DISTMNIST_ATTEMPT', '2')
  code, _, err = run(main)
  assert code == (3 if number in PASSING else 1)
  assert err.count('\n') == 1


def raise_passing():
  raise cli.PassingError('ps 0 does not answer')


def test_what_may_pass_is_final_only_before_anything_has_begun(
  run, monkeypatch
):
  def amid_run(main):
    with cli.amid_run():
      main()

  assert run(raise_passing)[0] == 1
  assert run(lambda: amid_run(raise_passing))[0] == 3
  for number in (errno.EIO, errno.EACCES):
    code, _, err = run(lambda n=number: amid_run(fail_with(n, '/data/x')))
    assert code == (3 if number in PASSING else 1)
    assert err.count('\n') == 1
  monkeypatch.setenv('DISTMNIST_ATTEMPT', '2')
  assert run(raise_passing)[0] == 3


@pytest.mark.parametrize(
  'error, is_passing',
  [
    (FileNotFoundError(errno.ENOENT, 'no such file'), False),
    (OSError('cannot identify image file'), False),
    (ConnectionResetError('cut off'), True),
    (TimeoutError('timed out'), True),
    (type('UnknownError', (Exception,), {})('x; Input/output error'), True),
    (type('UnknownError', (Exception,), {})('ValueError: too short'), False),
    (type('ResourceExhaustedError', (Exception,), {})('x'), True),
    (type('NotFoundError', (Exception,), {})('x'), False),
  ],
)
def test_what_may_pass_goes_by_the_kind_of_error(error, is_passing):
  assert cli.is_passing(error) == is_passing
  expected = cli.PassingError if is_passing else cli.RunError
  assert cli.choose_error(error) is expected
