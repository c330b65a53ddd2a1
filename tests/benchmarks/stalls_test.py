"""benchmarks/stalls.py: what it plans, and what it takes for a stall."""

import random
import types

from tests.support.runner import import_benchmark

benchmark = import_benchmark('stalls')


def test_each_rule_loses_each_ps_once_twice_and_thrice():
  args = types.SimpleNamespace(rules='ssp,bmuf', in_a_row=True)
  found = list(benchmark.plan(args))
  assert len(found) == 2 * 2 * 3
  assert ('bmuf', [(0.1, 'ps 1', 3)]) in found


def test_what_is_lost_is_drawn_by_the_seed():
  names = ['ps 0', 'worker 0']
  one, same = (benchmark.draw_losses(random.Random(7), names) for _ in range(2))
  assert one == same
  assert all(0 < part < 1 and 1 <= times <= 3 for part, _, times in one)


def test_a_plan_goes_on_where_another_has_ended():
  def plan(first, runs):
    args = types.SimpleNamespace(
      rules='ssp,bmuf', in_a_row=False, first=first, runs=runs, seed=3
    )
    return list(benchmark.plan(args))

  assert plan(0, 3) + plan(3, 2) == plan(0, 5)


def test_a_stall_is_a_long_wait_with_all_tasks_there():
  log = types.SimpleNamespace(texts=[])
  run = types.SimpleNamespace(logs={'worker 0': log})
  assert not benchmark.find_stall(run, 20)
  log.texts += [
    'no step for 31 s: waiting for ps 1 at a:1',
    'no step for 9 s: all tasks answer, and none says what holds it up',
  ]
  assert not benchmark.find_stall(run, 20)
  log.texts.append('no step for 21 s: all tasks answer, and none says')
  assert benchmark.find_stall(run, 20).startswith('worker 0: no step for 21 s')
