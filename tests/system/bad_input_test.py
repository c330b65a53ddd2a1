"""Each bad input is one line that says what is wrong, and nothing else happens.

bad_inputs.txt has the inputs, a line each, and below it what the message begins
with. {S} stands for a small training, {F} for the folder of bad_files.py, {W}
for an empty one, where the program runs.
"""

import pathlib
import shlex

import pytest

from tests.support import bad_files
from tests.support import programs as programs_lib

_TABLE = pathlib.Path(__file__).with_name('bad_inputs.txt')


def read_table():
  """Returns a list of (input, beginning of its message)."""
  lines = [
    line
    for line in _TABLE.read_text().splitlines()
    if line and not line.startswith('#')
  ]
  return list(zip(lines[::2], map(str.strip, lines[1::2]), strict=True))


CASES = read_table()


@pytest.fixture(scope='module')
def programs():
  return programs_lib.start_forked()


@pytest.fixture(scope='module')
def files(programs, tmp_path_factory):
  folder = tmp_path_factory.mktemp('files')
  bad_files.make(folder, programs)
  return folder


@pytest.fixture
def run(programs, files, tmp_path):
  """Returns run(input) -> (code, stdout, lines of stderr)."""

  def run_input(text):
    def fill(word):
      return word.replace('{F}', str(files)).replace('{W}', str(tmp_path))

    env, words = bad_files.read_environment(shlex.split(text))
    if '{S}' in words:
      at = words.index('{S}')
      words[at : at + 1] = bad_files.SMALL.split()
    program, *words = map(fill, words)
    # What it leaves among the temporary files is seen, too.
    env['TMPDIR'] = str(tmp_path)
    done = programs.run(program, words, tmp_path, **env)
    assert not done['left'], 'a process has outlived it'
    return done['code'], done['out'], done['err'].splitlines()

  return run_input


def test_there_are_as_many_inputs_as_the_review_had_and_a_hundred_more():
  assert len(CASES) >= 209 + 100
  assert len({text for text, _ in CASES}) == len(CASES)


def _mark(i):
  """Every eighth is enough for a quick look, and every fourth for a run."""
  if i % 4:
    return [pytest.mark.slow, pytest.mark.daily]
  return [pytest.mark.slow] if i % 8 else []


@pytest.mark.slow
@pytest.mark.parametrize(
  'text, said',
  [
    pytest.param(*case, id=case[0], marks=_mark(i))
    for i, case in enumerate(CASES)
  ],
)
def test_it_is_one_line_and_1_or_2(run, files, tmp_path, text, said):
  before = bad_files.take_snapshot(files)
  code, _, lines = run(text)
  assert len(lines) == 1, lines
  (line,) = lines
  _, _, message = line.partition('error: ')
  said = said.replace('{F}', str(files)).replace('{W}', str(tmp_path))
  assert message.startswith(said), line
  # Who is told to see the --help has mistyped.
  assert code == (2 if line.endswith('--help)') else 1)
  assert list(tmp_path.iterdir()) == []
  assert bad_files.take_snapshot(files) == before


@pytest.mark.slow
def test_a_checkpoint_that_is_torn_is_named_and_the_one_before_is_taken(run):
  for text in (
    'evaluate --logdir={F}/torn',
    'export --logdir={F}/flipped --export_dir={W}/model',
  ):
    code, out, lines = run(text)
    assert code == 0, lines
    assert out.startswith('step 0 ')
    (line,) = lines
    assert 'model.ckpt-3 is not whole' in line


@pytest.mark.slow
def test_no_checkpoint_at_all_is_whole(run):
  code, out, lines = run('evaluate --logdir={F}/alltorn')
  assert (code, out) == (1, '')
  assert lines[-1].startswith('distmnist.evaluate: error: none of the checkp')


@pytest.mark.slow
def test_a_flag_file_with_a_bom_and_comments_trains(run, tmp_path):
  path = tmp_path / 'x.flags'
  path.write_text('\ufeff--model softmax  # a line\n--seed=3\n')
  code, _, lines = run('train {S} --flagfile={W}/x.flags')
  assert (code, lines) == (0, [])
