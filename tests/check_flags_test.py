"""check_flags: what train would say of many trainings, running none."""

import json

import pytest

from distmnist import check_flags
from distmnist.common import cli

DATA = ('--dataset=synthetic', '--synthetic_train_images=300')
SMALL = (*DATA, '--validation_images=100')


@pytest.fixture
def find(set_flags):
  """Returns find(*words, num_ps=, num_workers=) -> the mistake or None."""

  def find_mistake(*words, num_ps=0, num_workers=1):
    checker = check_flags.Checker(num_ps, num_workers)
    return checker.find_mistake([*SMALL, *words])

  return find_mistake


@pytest.mark.parametrize(
  'words',
  [
    ['--learning_rate=0.1', '--strategy=easgd'],
    ['--trace_steps=3', '--logdir=/nowhere'],
    ['--lr_schedule=step', '--lr_boundaries=10,20'],
    ['--lr_schedule=plateau', '--validation_steps=5'],
  ],
)
def test_what_can_work_has_no_mistake(find, words):
  assert find(*words) is None


@pytest.mark.parametrize(
  'words, mistake',
  [
    (['--learning_rat=1'], 'learning_rate'),
    (['--batch_size=x'], 'expected a whole number'),
    (['--batch_size=201'], '--batch_size=201'),
    (['--lr_schedule=step'], '--lr_boundaries'),
    (['--early_stopping_patience=2'], '--logdir'),
    (['--lr_schedule=plateau'], '--lr_schedule=plateau'),
    (['--lr_patience=0'], '--lr_patience=0'),
    (['--validation_images=300'], '--validation_images=300'),
    (['--num_gpus=64'], '--num_gpus=64'),
    (['word'], "'word'"),
  ],
)
def test_a_mistake_is_one_line(find, words, mistake):
  found = find(*words)
  assert mistake in found
  assert '\n' not in found


def test_the_shape_of_the_cluster_counts(find):
  words = ['--strategy=ring_allreduce']
  assert 'has no ps' in find(*words, num_ps=1, num_workers=2)
  assert find(*words, num_workers=2) is None
  assert '2 workers but no ps' in find('--strategy=ssp', num_workers=2)
  # However many workers there are, a batch may hold all images.
  words = ['--batch_size=200']
  assert find(*words) is None
  assert find(*words, num_ps=1, num_workers=2) is None


@pytest.mark.slow
def test_one_training_leaves_nothing_to_the_next(set_flags):
  checker = check_flags.Checker(0, 1)
  wrong = [*SMALL, '--lr_schedule=step', '--batch_size=7']
  assert checker.find_mistake(wrong)
  assert checker.find_mistake([*SMALL]) is None
  fewer = [*SMALL, '--synthetic_train_images=150', '--batch_size=60']
  assert 'the 50 training images' in checker.find_mistake(fewer)


@pytest.mark.slow
def test_the_data_are_loaded_once(set_flags, monkeypatch):
  loaded = []
  load = check_flags.problem_data.load_training_splits
  monkeypatch.setattr(
    check_flags.problem_data,
    'load_training_splits',
    lambda problem: loaded.append(1) or load(problem),
  )
  checker = check_flags.Checker(0, 1)
  for rate in range(1, 5):
    assert checker.find_mistake([*SMALL, f'--learning_rate={rate}']) is None
  assert len(loaded) == 1


def test_missing_data_end_the_check(set_flags, monkeypatch):
  def fail(problem):
    raise cli.RunError('no mirror has it')

  monkeypatch.setattr(check_flags.problem_data, 'load_training_splits', fail)
  with pytest.raises(cli.RunError, match='no mirror'):
    check_flags.Checker(0, 1).find_mistake([*SMALL])


def test_the_answers_are_in_a_file(set_flags, tmp_path):
  path = tmp_path / 'check.json'
  words = [[*SMALL], [*SMALL, '--batch_size=0']]
  asked = {'num_ps': 0, 'num_workers': 1, 'flags': words, 'needs_data': True}
  path.write_text(json.dumps(asked))
  check_flags.main([str(path)])
  first, second = json.loads((tmp_path / 'check.json.checked').read_text())
  assert first is None
  assert 'batch_size=0' in second


@pytest.mark.parametrize(
  'text, mistake',
  [
    (None, 'check.json: No such file'),
    ('{', 'check.json is not the JSON object expected'),
    ('{"num_ps": 1}', "check.json lacks 'num_workers'"),
  ],
)
def test_a_file_that_asks_nothing_is_a_usage_error(tmp_path, text, mistake):
  path = tmp_path / 'check.json'
  if text:
    path.write_text(text)
  with pytest.raises(cli.UsageError, match=mistake):
    check_flags.main([str(path)])


def test_there_is_one_file():
  with pytest.raises(cli.UsageError, match='2 files'):
    check_flags.main(['a', 'b'])


def test_without_data_nothing_of_this_machine_is_looked_at(set_flags):
  checker = check_flags.Checker(1, 2, needs_data=False)
  words = ['--dataset=mnist', '--data_dir=/no', '--num_gpus=64', '--logdir=/no']
  assert checker.find_mistake(words) is None
  assert checker.find_mistake(['--trace_steps=5']) is None
  assert 'needs --lr_b' in checker.find_mistake(['--lr_schedule=step'])
  assert 'has no ps' in checker.find_mistake(['--strategy=ring_allreduce'])
