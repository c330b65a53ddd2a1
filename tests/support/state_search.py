"""Visits all states of a model, to find one at fault."""


def find_fault(first, find_next, find_deaths, is_wrong, num_steps, num_deaths):
  """Visits states breadth first, up to some steps and deaths.

  Args:
    first: the first state, with `step` and `num_deaths`; hashable, as all are.
    find_next, find_deaths: callables, state -> iterable of states that can come
      next without another death, and by one.
    is_wrong: callable, state -> bool.
    num_steps, num_deaths: int.

  Returns:
    (a state that is wrong, or in which nothing can happen any more; None if
    there is none; how many were seen).
  """
  seen, new = {first}, [first]
  while new:
    found = []
    for state in new:
      if is_wrong(state):
        return state, len(seen)
      if state.step >= num_steps:
        continue
      after = list(find_next(state))
      if not after:
        return state, len(seen)
      if state.num_deaths < num_deaths:
        after += find_deaths(state)
      for each in after:
        if each not in seen:
          seen.add(each)
          found.append(each)
    new = found
  return None, len(seen)
