"""What must hold in the history of a run, whatever was done to it.

The history is what distmnist.logdir.history.read returns: one dict per event of
each life of each worker, ordered by `time`:

  start      host, pid             the process has started
  took       tickets, stream, per_push   batches were given to this life;
                                   per_push of them make a push
  ran        tickets, stream, step   they were used; global step after that
  undone     tickets, stream       these had no effect; they come again
  session    step                  a session begins, at this global step
  saving     step                  a checkpoint is about to be written
  saved      step                  it is complete and has its name
  restoring  step                  the center is about to be set
  restored   step                  the center was set from this checkpoint
  validating                       the center is about to be evaluated
  evaluated  step, value           the metric on the validation split
  noted      step, value           it was taken into account for the best
  end                              the life ends in order
  evaluating                       the chief is about to evaluate the outcome

A ticket is the number of a batch, from 0, in its stream: the stream of the
whole training or of one worker. Each check is a pure function that checks one
thing only and returns what it found broken, a list of str; `check` does them
all. Reads are checked by fault_reads.py.
"""

import collections
import itertools
import math

from lib import fault_reads

# How long a worker may be silent before it has to say what it waits for.
SILENT_SECS = 10.0


def of_kind(events, *kinds):
  return [e for e in events if e['event'] in kinds]


def by_life(events):
  """Returns {(worker, life): events}, in the order of their starts."""
  found = collections.defaultdict(list)
  for event in events:
    found[event['worker'], event['life']].append(event)
  return found


def check(events, may_leave=False, logs=None, frozen=()):
  """Runs all checks on a history; see each for its arguments."""
  return [
    *check_lives(events),
    *check_steps(events),
    *check_restores(events),
    *check_writers(events),
    *fault_reads.check(events, may_leave),
    *(check_waits(events, logs, frozen) if logs is not None else []),
  ]


def check_lives(events):
  """A worker has one life at a time: it is over when the next one starts.

  What was in flight when it was paused may still arrive, once.
  """
  broken, starts = [], of_kind(events, 'start')
  for start in starts:
    worker, life = start['worker'], start['life']
    later = [
      e['time']
      for e in starts
      if e['worker'] == worker and e['time'] > start['time']
    ]
    if not later:
      continue
    after = [
      e
      for e in of_kind(events, 'ran', 'saved')
      if (e['worker'], e['life']) == (worker, life) and e['time'] > min(later)
    ]
    if len(after) > 1 or of_kind(after, 'saved'):
      broken.append(
        f'worker {worker}: life {life} did {len(after)} things more after '
        'the next one had begun'
      )
  return broken


def check_steps(events):
  """Within a session the global steps that a life sees never fall.

  Except the last one of a session: a worker that waits while the center is
  restored is released with the step at that time.
  """
  broken, last, restored = [], {}, {}
  for event in of_kind(events, 'session', 'ran', 'restored'):
    life, step = (event['worker'], event['life']), event['step']
    if event['event'] == 'restored':
      restored = dict.fromkeys(last, step)
      continue
    if event['event'] == 'session':
      restored.pop(life, None)
    elif step < last.get(life, step) and restored.pop(life, math.inf) > step:
      broken.append(
        'worker {}, life {}: '.format(*life)
        + f'step {step} came after {last[life]}'
      )
    last[life] = step
  return broken


def check_restores(events):
  """What is restored is the newest checkpoint complete at that time."""
  broken, saved, begun = [], None, set()
  for event in of_kind(events, 'saving', 'saved', 'restored'):
    step = event['step']
    if event['event'] == 'saving':
      begun.add(step)
    elif event['event'] == 'saved':
      saved = step
    else:
      # A killed chief may have written one without saying so.
      is_later = saved is not None and step > saved and step in begun
      if saved is not None and step != saved and not is_later:
        broken.append(f'step {step} was restored, but {saved} was saved last')
      saved = step
  return broken


def check_writers(events):
  """The lives that save do so one after another, and none saves again."""
  lives = [e['life'] for e in of_kind(events, 'saved')]
  blocks = [life for life, _ in itertools.groupby(lives)]
  return [
    f'life {life} saved again after another life had'
    for life, count in collections.Counter(blocks).items()
    if count > 1
  ]


def check_best(events, best_step, best_accuracy, kept_step):
  """The best that is reported and kept is the best of all evaluations.

  Args:
    best_step, best_accuracy: int and float, from the report.
    kept_step: int, of the checkpoint in best/.
  """
  evaluated = [(e['step'], e['value']) for e in of_kind(events, 'evaluated')]
  noted = of_kind(events, 'noted')
  if not evaluated:
    return []
  broken = []
  # A killed chief may have kept one without saying so.
  if noted and (best_step, best_accuracy) not in evaluated:
    broken.append(
      f'step {best_step} is told as the best, with {best_accuracy}, and was '
      'never evaluated so'
    )
  best = max(noted, key=lambda e: e['value'], default=None)
  if best and (best_accuracy or 0) < best['value']:
    broken.append(
      f'the best accuracy was {best["value"]} at step {best["step"]}, and '
      f'{best_accuracy} is told'
    )
  if best_step != kept_step:
    broken.append(f'step {best_step} is the best, and {kept_step} is kept')
  return broken


def check_waits(events, logs, frozen=()):
  """A life that does nothing for long says so in its log.

  Args:
    logs: {worker: [(time, line), ...]}.
    frozen: list of (worker, from, until), when it could not log anything.
  """
  broken = []
  for (worker, life), mine in by_life(events).items():
    for before, after in itertools.pairwise(mine):
      start, end = before['time'], after['time']
      stood = sum(
        max(0.0, min(end, until) - max(start, since))
        for who, since, until in frozen
        if who == worker
      )
      lines = [t for t, _ in logs.get(worker, []) if start <= t <= end]
      if end - start - stood > SILENT_SECS and not lines:
        broken.append(
          f'worker {worker}, life {life}: {end - start:.0f} s without a word '
          f'after {before["event"]}'
        )
  return broken
