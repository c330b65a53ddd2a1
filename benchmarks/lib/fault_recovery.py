"""What all faults have in common: the hit, and the recovery."""

import time


class Recovery:
  """A fault in a run: the state before it, and what came of it.

  Attributes:
    time: float, when it came.
    step: int, the last one before it.
    num_starts: {task: int}, how often each had been restarted by then.
  """

  def __init__(self, run, fault):
    """
    Args:
      run: fault_run.Run.
      fault: fault_kinds.Fault, to be filled in.
    """
    run.look()
    self._run, self._fault = run, fault
    self.time, self._saved = time.time(), run.find_saved_step()
    self.step = run.step
    self.num_starts = {t: len(log.start_times) for t, log in run.logs.items()}

  def hit(self, tasks, signum):
    """Signals those of `tasks` that still run; returns whether any did."""
    hit = [name for name in tasks if self._run.signal(name, signum)]
    if not hit:
      self.note_gone()
    return bool(hit)

  def note_gone(self):
    """Notes that the task was already gone; waits for the run's end."""
    run = self._run
    self._fault.is_survived = run.wait_until(lambda: not run.is_running)
    self._fault.note = 'gone before its fault'

  def wait_for_tasks(self, tasks):
    """Waits until `tasks`, which were ended, are back and all go on."""
    logs = self._run.logs

    def are_started():
      return all(len(logs[t].start_times) > self.num_starts[t] for t in tasks)

    if not self._run.wait_until(are_started):
      self.give_up('not started again')
      return
    backs = {t: logs[t].start_times[self.num_starts[t]] for t in tasks}
    lost_ps = any(task.startswith('ps') for task in tasks)

    def is_well():
      for name, log in logs.items():
        if name in backs and name.startswith('worker'):
          if log.step_time <= backs[name]:
            return False
        elif lost_ps and name.startswith('worker'):
          # It has to notice, and to make a step from the checkpoint.
          if not any(t > self.time for t, _, _ in log.recoveries):
            return False
          if log.step_time <= log.recoveries[-1][0]:
            return False
      return True

    self._wait_until_well(max(backs.values()), is_well)

  def wait_for_steps(self, logs):
    """Waits until each of `logs` reports a new step."""
    back = time.time()
    self._wait_until_well(
      back, lambda: all(log.step_time > back for log in logs)
    )

  def give_up(self, note):
    """Notes what did not happen; how the run ended is checked later."""
    self._fault.is_survived = not self._run.is_running
    self._fault.note = note

  def _wait_until_well(self, back, is_well):
    """Waits, then fills in what was lost and the seconds since `back`."""
    run, fault = self._run, self._fault
    if not run.wait_until(is_well):
      over = '' if run.is_running else ', as the training was over'
      self.give_up(f'no next step{over}')
      return
    fault.recover_secs = time.time() - back
    since = [r for w in run.workers for r in w.recoveries if r[0] > self.time]
    fault.steps_lost = max([0, *(lost for _, _, lost in since)])
    chief = run.logs['worker 0']
    if len(chief.start_times) > self.num_starts['worker 0']:
      fault.steps_lost = max(fault.steps_lost, self.step - chief.step)
    oldest = min([run.step, *(step for _, step, _ in since)])
    if oldest < self._saved:
      fault.note = f'step {self._saved} was saved, but {oldest} came back'
    else:
      fault.is_survived = True
