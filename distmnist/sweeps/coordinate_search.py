"""Settings that may make a run faster, tried one after another. Pure."""

import dataclasses

# A smaller gain may be noise, and a setting has a price.
MIN_GAIN = 1.1


@dataclasses.dataclass(frozen=True)
class Setting:
  """A flag of train and the values to try.

  Attributes:
    flag: str.
    values: tuple of str.
    price: str, what it costs in return, or ''.
    rules: tuple of --strategy values that use it; () for all.
    min_ps: int, the number of ps below which it does nothing.
  """

  flag: str
  values: tuple[str, ...]
  price: str = ''
  rules: tuple[str, ...] = ()
  min_ps: int = 0

  @property
  def words(self):
    return [f'--{self.flag}={value}' for value in self.values]


# In the order in which they are tried, each on top of those taken before. A
# flag that this train does not have is left out.
SETTINGS = (
  Setting(
    'steps_per_run',
    ('4', '16'),
    'checkpoints and signals wait for the end of a run',
  ),
  Setting(
    'communication_period',
    ('4', '16', '64'),
    'the workers drift farther apart: compare the accuracy',
    rules=('ad_psgd', 'agn', 'sagn', 'easgd', 'dynsgd', 'bmuf'),
  ),
  Setting(
    'wire_dtype', ('bfloat16',), 'what travels has 8 bits of mantissa', min_ps=1
  ),
  Setting('partitioner', ('min_max', 'none'), min_ps=2),
  Setting(
    'pull_ahead',
    ('1',),
    'gradients are of older variables',
    rules=('async_sgd', 'ssp', 'downpour'),
    min_ps=1,
  ),
  Setting('sync_barrier', ('shard',), rules=('sync_sgd',), min_ps=2),
)


@dataclasses.dataclass
class Row:
  """A trial: one more flag on top of those taken before.

  Attributes:
    word: str, --flag=value; '' for the flags as they were given.
    speed: float, examples per second; None if it could not be measured.
    gain: float, its speed over that of the flags it was added to.
    is_taken: bool.
    note: str, why it has no speed, or what it costs.
  """

  word: str
  speed: float | None = None
  gain: float = 1.0
  is_taken: bool = False
  note: str = ''


def select(given, num_ps, settings=SETTINGS):
  """Returns the list of Settings that are worth trying.

  Args:
    given: flags.FlagValues of train. What the user has set stays as it is.
    num_ps: int.
    settings: sequence of Setting.
  """
  rule = given['strategy'].value
  return [
    setting
    for setting in settings
    if setting.flag in given
    and not given[setting.flag].present
    and rule in (setting.rules or (rule,))
    and num_ps >= setting.min_ps
  ]


def climb(settings, measure, mistakes=()):
  """Tries one setting after another and keeps what makes the run faster.

  Args:
    settings: list of Setting.
    measure: callable(list of words) -> (speed or None, note), one trial.
    mistakes: dict of word -> why it cannot be tried.

  Returns:
    The list of Rows in the order of the trials, and the list of words to take:
    [] if the flags as they were given could not be measured.
  """
  mistakes = dict(mistakes)
  speed, note = measure([])
  rows, taken = [Row('', speed, note=note)], []
  for setting in settings if speed else ():
    tried = []
    for word in setting.words:
      if mistakes.get(word):
        rows.append(Row(word, note=mistakes[word]))
        continue
      found, note = measure([*taken, word])
      row = Row(word, found, (found or 0) / speed, note=note or setting.price)
      tried.append(row)
    rows += tried
    best = max(tried, key=lambda row: row.gain, default=None)
    if best and best.gain >= MIN_GAIN:
      best.is_taken = True
      taken.append(best.word)
      speed = best.speed
  return rows, taken


def count_trials(settings, mistakes=()):
  """Returns how many trials `climb` makes (int)."""
  words = [word for setting in settings for word in setting.words]
  return 1 + sum(not dict(mistakes).get(word) for word in words)


def format_rows(rows, unit):
  """Returns the results as a list of lines (str), in `unit` a second."""
  table = [('flag', f'{unit}/s', 'gain', 'over the flags taken before it')]
  for row in rows:
    is_first = not row.word
    gain = '' if is_first or not row.speed else f'{100 * (row.gain - 1):+.0f} %'
    note = f'taken: {row.note}' if row.is_taken and row.note else row.note
    if not row.is_taken and row.speed:
      note = ''
    table.append(
      (
        row.word or 'as given',
        f'{row.speed:,.0f}' if row.speed else '-',
        gain,
        note or ('taken' if row.is_taken else ''),
      )
    )
  widths = [max(map(len, column)) for column in zip(*table, strict=True)]
  return [
    f'{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}  {d}'.rstrip()
    for a, b, c, d in table
  ]
