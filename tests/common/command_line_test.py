"""command_line: flag files as people write them, and words that are clear."""

import pytest
from absl import flags

from distmnist.common import command_line


@pytest.fixture
def values():
  """A flags.FlagValues of its own, one flag of each kind."""
  found = flags.FlagValues()
  of_test = {'flag_values': found}
  flags.DEFINE_integer('count', 1, '', lower_bound=1, **of_test)
  flags.DEFINE_float('rate', 1, '', **of_test)
  flags.DEFINE_bool('sync', False, '', **of_test)
  flags.DEFINE_enum('rule', 'a', ['a', 'b'], '', **of_test)
  for name in ('logdir', 'master', 'data_dir'):
    flags.DEFINE_string(name, None, '', **of_test)
  flags.DEFINE_list('images', [], '', **of_test)
  return found


@pytest.mark.parametrize(
  'word, said',
  [
    ('--count=x', '--count=x: expected a whole number'),
    ('--count=0', '--count=0'),
    (f'--count={2**63}', '--count'),
    ('--count=' + '1' * 5000, '--count'),
    ('--rate=x', '--rate=x: expected a number'),
    ('--rate=nan', '--rate=nan: expected a finite number'),
    ('--sync=maybe', '--sync=maybe: expected true or false'),
    ('--nosync=1', '--nosync=1'),
    ('--rule=c', '--rule=c'),
    ('--rule', '--rule'),
    ('--ruel=a', "'ruel'. Did you mean: rule ?"),
    ('--logdir=foo://b/x', '--logdir=foo://b/x'),
    ('--data_dir=s3:///x', 's3://BUCKET/FOLDER'),
    ('--images=a.png,s3://b', '--images'),
    ('--logdir=a\0b', 'NUL'),
    ('--logdir=a\udcffb', r"--logdir='a\udcffb'"),
    ('--flagfile', '--flagfile'),
    ('--flagfile=/no.flags', '--flagfile=/no.flags'),
  ],
)
def test_a_wrong_word_is_named_with_what_was_expected(values, word, said):
  with pytest.raises(flags.Error) as raised:
    command_line.parse(values, ['program', word])
  assert said in str(raised.value)
  assert len(str(raised.value)) < 400


def test_a_url_is_fine_where_no_path_is_expected(values):
  command_line.parse(values, ['program', '--master=spark://host:7077'])
  assert values.master == 'spark://host:7077'


def test_words_that_are_no_flags_are_returned(values):
  words = ['program', 'a', '--count', '3', 'b']
  assert command_line.parse(values, words) == ['a', 'b']
  assert values.count == 3


def test_unknown_flags_may_be_let_pass(values):
  words = ['program', '--of_another=1', '--count=2']
  command_line.parse(values, words, known_only=True)
  assert values.count == 2


def test_a_flag_file_is_read_as_people_write_it(tmp_path):
  other = tmp_path / 'other.flags'
  other.write_text('-rate 0.5\n')
  path = tmp_path / 'x.flags'
  path.write_bytes(
    b'\xef\xbb\xbf--model=softmax\r\n'
    b'# All of it.\n'
    b'// Likewise.\n'
    b'\n'
    b'  --count 3  # why three\n'
    b'--sync\n'
    b'--logdir=/a b/c#d\n' + f'--flagfile={other}\n'.encode()
  )
  assert command_line.expand(['-x', '--flagfile', str(path), '--y=1']) == [
    '-x',
    '--model=softmax',
    '--count=3',
    '--sync',
    '--logdir=/a b/c#d',
    '-rate=0.5',
    '--y=1',
  ]


def test_what_follows_two_dashes_is_left_alone():
  words = ['--a', '--', '--flagfile=/no.flags']
  assert command_line.expand(words) == words


@pytest.mark.parametrize(
  'content, said',
  [
    (b'\x89PNG\r\n\x1a\n\0\0', 'UTF-8'),
    (b'learning_rate=0.1\n', "'learning_rate=0.1'"),
    (b'--a=1\n--\n--b=2\n', "'--'"),
    (b'--a=1\n--b=\0\n', '--b='),
    (b'--flagfile=%s\n', 'itself'),
  ],
)
def test_a_flag_file_that_is_none_is_one_line(tmp_path, content, said):
  path = tmp_path / 'x.flags'
  path.write_bytes(content.replace(b'%s', str(path).encode()))
  with pytest.raises(command_line.FlagFileError) as raised:
    command_line.expand([f'--flagfile={path}'])
  assert f'--flagfile={path}' in str(raised.value)
  assert said in str(raised.value)
  assert '\n' not in str(raised.value)


def test_the_configs_come_with_the_package(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  words = ['--flagfile=configs/quickstart.flags']
  assert '--model=mlp' in command_line.expand(words)


def test_a_config_of_ones_own_comes_first(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'configs').mkdir()
  (tmp_path / 'configs' / 'quickstart.flags').write_text('--mine')
  words = ['--flagfile=configs/quickstart.flags']
  assert command_line.expand(words) == ['--mine']


@pytest.mark.parametrize(
  'line, found',
  [
    ('--setup="load #2; # go" # why', '--setup="load #2; # go"'),
    ("--patch={'a': '# b'}  # it's so", "--patch={'a': '# b'}"),
    ("--title=it's # not 'mine'", "--title=it's"),
    ('--a="b # no end', '--a="b'),
    ('--a  # a "b" c', '--a'),
  ],
)
def test_what_is_in_quotes_is_no_comment(tmp_path, line, found):
  path = tmp_path / 'x.flags'
  path.write_text(f'{line}\n')
  assert command_line.expand([f'--flagfile={path}']) == [found]
  assert command_line.fits_in_file(found)
  assert command_line.fits_in_file(line) == (line == found)


@pytest.mark.parametrize(
  ('words', 'value'),
  [
    (['--logdir=a'], 'a'),
    (['-logdir', 'a'], 'a'),
    (['--logdir=a', '--logdir=b'], 'b'),
    (['--logdir='], ''),
    (['--logdir'], ''),
    (['--logdirs=a', 'logdir=b'], None),
    ([], None),
  ],
)
def test_the_last_of_equal_flags_counts(words, value):
  assert command_line.find_value(words, 'logdir') == value
