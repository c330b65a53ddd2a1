"""refusals: the first row that is wrong, with its flag as it was given."""

import pytest
from absl import flags

from distmnist.common import cli, refusals


@pytest.fixture(autouse=True)
def values(monkeypatch):
  values = flags.FlagValues()
  for define, name, value in (
    (flags.DEFINE_float, 'rate', 0.1),
    (flags.DEFINE_bool, 'fast', False),
    (flags.DEFINE_list, 'words', ['a', 'b']),
    (flags.DEFINE_string, 'folder', None),
    (flags.DEFINE_integer, 'steps', 3),
  ):
    define(name, value, 'A flag.', flag_values=values)
  values.mark_as_parsed()
  monkeypatch.setattr(refusals, 'FLAGS', values)
  return values


@pytest.mark.parametrize(
  'name, shown',
  [
    ('rate', '--rate=0.1'),
    ('fast', '--nofast'),
    ('words', '--words=a,b'),
    ('folder', '--folder'),
    ('steps', '--steps=3'),
  ],
)
def test_a_flag_is_shown_as_it_was_given(name, shown):
  assert refusals.show(name) == shown


def test_the_first_row_that_is_wrong_is_said(values):
  rows = [
    refusals.Refusal('steps', lambda f: values.steps > f.most, ' is too many'),
    refusals.Refusal(
      lambda f: f'--most={f.most}',
      lambda f: f.most < 5,
      lambda f: f' is {5 - f.most} too few',
    ),
  ]
  refusals.refuse(rows, most=5)
  assert refusals.find(rows, most=5) == ''
  with pytest.raises(cli.UsageError, match='^--steps=3 is too many$'):
    refusals.refuse(rows, most=2)
  assert refusals.find(rows, most=4) == '--most=4 is 1 too few'
