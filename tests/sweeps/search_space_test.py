"""search_space: words in, combinations out."""

import collections
import math

import pytest

from distmnist.common import cli
from distmnist.sweeps import search_space


def parse(*words):
  return search_space.parse(words)


def test_a_product_has_each_with_each_and_the_last_name_fastest():
  choices = parse('learning_rate=0.1,0.01', 'strategy=easgd,ssp,bmuf')
  found = search_space.make_product(choices)
  assert [search_space.describe(each) for each in found] == [
    *('learning_rate=0.1 strategy=easgd', 'learning_rate=0.1 strategy=ssp'),
    *('learning_rate=0.1 strategy=bmuf', 'learning_rate=0.01 strategy=easgd'),
    *('learning_rate=0.01 strategy=ssp', 'learning_rate=0.01 strategy=bmuf'),
  ]
  assert search_space.to_flags(found[0]) == [
    '--learning_rate=0.1',
    '--strategy=easgd',
  ]


def test_a_zip_has_the_first_of_all_then_the_second():
  found = search_space.make_zip(parse('a=1,2,3', 'b=x,y,z'))
  assert found == [
    {'a': '1', 'b': 'x'},
    {'a': '2', 'b': 'y'},
    {'a': '3', 'b': 'z'},
  ]


def test_values_that_have_commas_are_parted_by_semicolons():
  found = search_space.make_product(parse('hidden_units=300,100;50'))
  assert found == [{'hidden_units': '300,100'}, {'hidden_units': '50'}]
  assert parse('hidden_units=300,100;')['hidden_units'].values == ['300,100']
  with pytest.raises(cli.UsageError, match='a value is empty'):
    parse('hidden_units=300;;')


def test_dots_make_no_range_of_a_path_or_what_ends_in_a_semicolon():
  for text, values in (
    ('../a,../b', ['../a', '../b']),
    ('..', ['..']),
    ('a..b;', ['a..b']),
  ):
    assert parse(f'data_dir={text}')['data_dir'].values == values


@pytest.mark.parametrize(
  'words, message',
  [
    (['a=0.0..1'], "'a=0.0..1' is sampled evenly by the logarithm"),
    (['a=log:0..8'], 'write lin:0..8 to sample evenly'),
    *(
      ([f'a={text}'], 'a range is two finite numbers')
      for text in ('nan..1', '0.1..inf', '1..1e999', '1..2..3', 'lin:a..b')
    ),
  ],
)
def test_a_word_that_is_none_is_refused(words, message):
  with pytest.raises(cli.UsageError, match='.') as error:
    parse(*words)
  assert message in str(error.value)


def test_a_range_needs_random():
  with pytest.raises(cli.UsageError, match='b is a range to sample from'):
    search_space.make_zip(parse('a=1,2', 'b=0.1..1'))


def draw(word, number=400):
  found = search_space.make_random(parse(word), number, seed=1)
  return [each['x'] for each in found]


def test_numbers_are_drawn_evenly_by_their_logarithm():
  drawn = [float(text) for text in draw('x=1e-4..1e-1')]
  assert 1e-4 <= min(drawn) < 2e-4 and 0.05 < max(drawn) <= 1e-1
  decades = collections.Counter(math.floor(math.log10(x)) for x in drawn)
  # Binomial: 133 with a standard deviation of 9.4.
  assert all(95 < decades[decade] < 172 for decade in (-4, -3, -2)), decades


def test_lin_draws_evenly():
  drawn = [float(text) for text in draw('x=lin:0.0..1.0')]
  assert 160 < sum(x < 0.5 for x in drawn) < 240


def test_whole_numbers_stay_whole_and_come_evenly():
  drawn = draw('x=1..4', number=4)
  assert sorted(drawn) == ['1', '2', '3', '4']
  large = [int(text) for text in draw('x=1..4000000', number=200)]
  assert 70 < sum(x < 2000000 for x in large) < 130


def test_log_draws_whole_numbers_by_their_logarithm():
  drawn = [int(text) for text in draw('x=log:10..100000', number=300)]
  assert min(drawn) >= 10 and max(drawn) <= 100000
  assert 115 < sum(x < 1000 for x in drawn) < 185


def test_a_draw_is_that_of_its_seed_and_has_no_combination_twice():
  choices = parse('x=0.1..1', 'y=a,b,c')
  first, again, other = (
    search_space.make_random(choices, 20, seed) for seed in (3, 3, 4)
  )
  assert first == again != other
  assert len({tuple(each.items()) for each in first}) == 20
