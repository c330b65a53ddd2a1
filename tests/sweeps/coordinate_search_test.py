import pytest

from distmnist.launching import train_flags
from distmnist.sweeps import coordinate_search
from distmnist.sweeps.coordinate_search import Setting

A = Setting('a', ('1', '2'), 'it costs')
B = Setting('b', ('x',))


def climb(speeds, mistakes=()):
  """Returns (rows, taken, the trials) where `speeds` is {words: speed}."""
  trials = []

  def measure(words):
    trials.append(' '.join(words))
    return speeds.get(trials[-1]), '' if trials[-1] in speeds else 'it broke'

  return *coordinate_search.climb([A, B], measure, mistakes), trials


def test_each_knob_is_tried_on_top_of_what_was_taken():
  speeds = {'': 100, '--a=1': 120, '--a=2': 150, '--a=2 --b=x': 300}
  rows, taken, trials = climb(speeds)
  assert trials == list(speeds)
  assert taken == ['--a=2', '--b=x']
  assert [(r.word, r.gain, r.is_taken) for r in rows] == [
    ('', 1.0, False),
    ('--a=1', 1.2, False),
    ('--a=2', 1.5, True),
    ('--b=x', 2.0, True),
  ]


def test_what_brings_little_is_left():
  rows, taken, _ = climb({'': 100, '--a=1': 109, '--a=2': 50, '--b=x': 109.9})
  assert taken == []
  assert not any(row.is_taken for row in rows)


def test_a_trial_that_fails_is_not_taken_and_the_others_go_on():
  rows, taken, trials = climb({'': 100, '--a=2': 130, '--a=2 --b=x': 131})
  assert taken == ['--a=2']
  assert rows[1].speed is None and rows[1].note == 'it broke'
  assert trials[-1] == '--a=2 --b=x'


def test_what_train_refuses_is_not_tried():
  rows, taken, trials = climb(
    {'': 100, '--a=1': 200}, {'--a=2': 'no', '--b=x': 'no'}
  )
  assert trials == ['', '--a=1']
  assert taken == ['--a=1']
  assert [row.note for row in rows] == ['', 'no', 'it costs', 'no']
  assert coordinate_search.count_trials([A, B], {'--a=2': 'no'}) == 3


def test_a_run_that_does_not_start_is_tried_once():
  rows, taken, trials = climb({})
  assert (taken, trials) == ([], [''])
  assert rows[0].note == 'it broke'


@pytest.mark.parametrize(
  ('words', 'num_ps', 'expected'),
  [
    ([], 0, ['steps_per_run']),
    ([], 1, ['steps_per_run', 'wire_dtype']),
    ([], 2, ['steps_per_run', 'wire_dtype', 'partitioner']),
    (['--steps_per_run=1'], 1, ['wire_dtype']),
    (
      ['--strategy=easgd'],
      1,
      ['steps_per_run', 'communication_period', 'wire_dtype'],
    ),
  ],
)
def test_what_the_user_has_set_stays_and_what_does_nothing_is_left(
  words, num_ps, expected
):
  known = [
    k
    for k in coordinate_search.SETTINGS
    if k.flag not in ('pull_ahead', 'sync_barrier')
  ]
  found = coordinate_search.select(train_flags.check(words), num_ps, known)
  assert [setting.flag for setting in found] == expected


def test_each_value_is_one_that_train_takes():
  values = train_flags.check([])
  for setting in coordinate_search.SETTINGS:
    if setting.flag in values:
      for word in setting.words:
        train_flags.check([word])
    for rule in setting.rules:
      train_flags.check([f'--strategy={rule}'])


def test_the_rows_are_a_table():
  rows, _, _ = climb({'': 1000, '--a=1': 900, '--a=2': 2500})
  assert coordinate_search.format_rows(rows, 'images') == [
    'flag      images/s    gain  over the flags taken before it',
    'as given     1,000',
    '--a=1          900   -10 %',
    '--a=2        2,500  +150 %  taken: it costs',
    '--b=x            -          it broke',
  ]
