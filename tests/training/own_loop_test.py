"""own_loop: a script's loss and loop under each kind of rule, and kills."""

import json
import os
import re
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import cli
from distmnist.logdir import checkpoints
from distmnist.training import own_loop
from distmnist.watching import metrics_file, run_state
from tests.support import background, in_process, programs
from tests.support.paths import PYTHONPATH, REPO
from tests.support.runner import SMALL, import_benchmark

runs = import_benchmark('lib.runs')

pytestmark = pytest.mark.usefixtures('forked_launches')

EXAMPLE = '--module=examples.own_loop'
ADAM = '--optimizer=adam', '--learning_rate=0.01'


# Of each way in which workers wait for each other, or do not.
STEPS = {
  'async_sgd': 800,
  'dc_asgd': 800,
  'easgd': 100,
  'ring_allreduce': 300,
  'ssp': 800,
  'sync_sgd': 300,
}


def launch(*words, num_ps=1, num_workers=2):
  """Runs a launch to its end; returns all that it prints."""
  shape = f'--num_ps={num_ps}', f'--num_workers={num_workers}'
  return ''.join(programs.run_forked('launch', *shape, *words))


@pytest.fixture
def run_script(tmp_path):
  """Returns run(text, *words, num_ps, num_workers, code), a launch of it."""

  def run(text, *words, num_ps=1, num_workers=2, code=0):
    (tmp_path / 'mine.py').write_text(text)
    return programs.run_forked(
      *('launch', '--module=mine', f'--num_ps={num_ps}'),
      *(f'--num_workers={num_workers}', '--', *words),
      code=code,
      PYTHONPATH=str(tmp_path),
    )

  return run


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize('rule', STEPS)
def test_the_example_learns_under_each_rule(tmp_path, rule):
  steps = STEPS[rule]
  launch(
    *(f'--logs_dir={tmp_path}', EXAMPLE, '--', f'--strategy={rule}'),
    *(f'--last_step={steps}', *ADAM),
    num_ps=0 if rule == 'ring_allreduce' else 2,
  )
  # Under an asynchronous rule one worker may have made them all.
  text = ''.join(log.read_text() for log in tmp_path.glob('worker_*.log'))
  found = re.findall(r'^worker \d: loss (\S+) at step (\d+)', text, re.M)
  for loss, step in found:
    assert float(loss) < 0.1  # It begins with 0.5 and more.
    assert steps <= int(step) <= steps + 2
  assert found, text


@pytest.mark.daily
@pytest.mark.slow
def test_the_code_of_the_page_runs_as_it_is_copied(tmp_path):
  page = (REPO / 'docs' / 'own_loop.md').read_text()
  code = page.split('```python\n')[1].split('```')[0]
  (tmp_path / 'mine.py').write_text(code)
  done = subprocess.run(
    [sys.executable, 'mine.py', '--last_step=300', *ADAM],
    cwd=tmp_path,
    env={**os.environ, 'PYTHONPATH': PYTHONPATH},
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 0, done.stderr
  # On a full machine.
  lines = [x for x in done.stderr.splitlines() if 'been loading for' not in x]
  assert lines == []
  [error] = re.findall(r'^worker 0: largest error (\S+)$', done.stdout, re.M)
  assert float(error) < 0.6


_SHARED = """
import os

import distmnist
import numpy as np
import tensorflow.compat.v1 as tf

def train(task):
  x = tf.placeholder(tf.float32, [None, 3])

  def build_loss():
    w = tf.get_variable('w', [3], initializer=tf.ones_initializer())
    return tf.reduce_mean((tf.linalg.matvec(x, w) - x[:, 0] * x[:, 1]) ** 2)

  train_op, _ = task.minimize(build_loss)
  numbers = np.random.default_rng(5)
  with task.session(20) as session:
    while not session.should_stop():
      whole = numbers.normal(size=[40, 3])
      session.run(train_op, {x: whole[task.index :: task.num_workers]})

def run():
  distmnist.run_task(train)
"""


@pytest.mark.daily
@pytest.mark.slow
def test_workers_in_lock_step_are_one_process(run_script, tmp_path):
  found = {}
  for num_ps, num_workers in (0, 1), (1, 2):
    logdir = tmp_path / f'{num_workers}'
    run_script(
      *(_SHARED, '--strategy=sync_sgd', f'--logdir={logdir}'),
      *('--optimizer=sgd', '--learning_rate=0.1'),
      num_ps=num_ps,
      num_workers=num_workers,
    )
    path = checkpoints.find_latest(str(logdir))
    assert checkpoints.parse_step(path) == 20
    found[num_workers] = tf.train.load_checkpoint(path).get_tensor('w')
  np.testing.assert_allclose(found[2], found[1], rtol=0, atol=1e-6)
  assert abs(found[1] - 1).max() > 0.1


_SUMMARIES = _SHARED.replace(
  '  train_op, _',
  "  tf.summary.scalar('mean_x', tf.reduce_mean(x))\n"
  "  tf.summary.scalar('loss', tf.reduce_mean(x))\n"
  "  tf.summary.scalar('other', tf.placeholder(tf.float32, []))\n"
  '  train_op, _',
)


@pytest.mark.slow
def test_a_run_leaves_what_one_of_train_leaves(run_script, tmp_path):
  logdir = tmp_path / 'run'
  words = f'--logdir={logdir}', '--strategy=sync_sgd', '--summary_steps=5'
  output, _ = run_script(_SUMMARIES, *words, f'--report_file={tmp_path}/r.json')
  assert re.search(r'^step 20/20  loss \d', output, re.M)
  assert re.search(r"summary 'other\w*' is not written", output)
  found = json.loads((logdir / 'report.json').read_text())
  assert found == json.loads((tmp_path / 'r.json').read_text())
  assert (found['global_step'], found['local_steps']) == (20, 40)
  assert (found['examples'], found['unit']) == (40, 'batches')
  assert found['staleness_max'] == 0 and found['bytes_pushed'] == 40 * 3 * 4
  assert found['workers_not_heard_of'] == []
  assert found['test_metrics'] is None
  assert f'final loss          {found["final_loss"]:.4f}' in output
  kept = (logdir / 'train.flags').read_text()
  assert '--strategy=sync_sgd' in kept
  assert found['flags']['strategy'] == 'sync_sgd'
  for name in ('dataset', 'model', 'batch_size', 'train_steps'):
    assert name not in found['flags'] and f'--{name}=' not in kept
  state = run_state.RunState().take(metrics_file.iterate(str(logdir)))
  assert (state.step, state.last_step, state.unit) == (20, 20, 'batches')
  rows = {row.task: row for row in state.make_rows()}
  assert [row.state for row in rows.values()] == ['ended'] * 3
  last = [
    line
    for line in metrics_file.iterate(str(logdir))
    if line['task'] == 'worker 1' and line['kind'] == 'sample'
  ][-1]
  assert (last['local_steps'], last['step']) == (20, 20)
  assert last['loss'] > 0
  steps = {}
  for path in (logdir / 'metrics' / 'worker_0').glob('events*'):
    for event in tf.train.summary_iterator(str(path)):
      for value in event.summary.value:
        steps.setdefault(value.tag, []).append(event.step)
  assert steps['mean_x'] == steps['loss'] == [1, 5, 10, 15, 20]
  assert 'other' not in steps and 'staleness_mean' in steps
  # Once more: nothing is left to do, and what is there stays.
  output, _ = run_script(_SUMMARIES, *words)
  assert 'last_step' in output
  assert json.loads((logdir / 'report.json').read_text()) == found
  like = tmp_path / 'like'
  programs.run_forked(
    *('launch', f'--like={logdir}', '--', f'--logdir={like}'),
    PYTHONPATH=str(tmp_path),
  )
  again = json.loads((like / 'report.json').read_text())
  assert again['global_step'] == 20
  assert {*again['flags']} == {*found['flags']} - {'report_file'}


_CLASSIC = _SHARED.replace(
  '  with task.session(20) as session:',
  '  class Seen(tf.train.SessionRunHook):\n'
  '    def end(self, session):\n'
  "      print('seen', task.index, flush=True)\n\n"
  '  hooks = [tf.train.StopAtStepHook(last_step=20)]\n'
  '  with tf.train.MonitoredTrainingSession(\n'
  "    '', task.is_chief, hooks=hooks, chief_only_hooks=[Seen()],\n"
  "    checkpoint_dir='none', config=tf.ConfigProto()\n"
  '  ) as session:',
)


@pytest.mark.slow
def test_a_session_of_tensorflows_is_that_of_the_task(run_script, tmp_path):
  logdir = tmp_path / 'run'
  words = f'--logdir={logdir}', '--strategy=sync_sgd'
  output, _ = run_script(_CLASSIC, *words)
  assert 'checkpoint_dir) has no effect' in output
  log = (logdir / 'logs' / 'worker_1.log').read_text()
  assert 'seen 0' in output and 'seen' not in log
  path = checkpoints.find_latest(str(logdir))
  assert checkpoints.parse_step(path) == 20


@pytest.mark.slow
def test_a_server_of_the_scripts_own_is_one_line(run_script):
  text = _SHARED.replace(
    '  x = tf.pl', "  tf.train.Server({'worker': ['a:1']})\n  x = tf.pl", 1
  )
  _, errors = run_script(text, num_workers=1, num_ps=0, code=1)
  assert re.search(r'mine\.py:\d+, in train\(\).*tf\.train\.Server', errors)
  assert 'Traceback' not in errors


# A worker of its own for 20 steps, and then all of its center.
_EVALUATES = """
import distmnist
import tensorflow.compat.v1 as tf

def train(task):
  x, more = tf.placeholder(tf.float32, [3]), tf.placeholder(tf.float32, [])

  def build_loss():
    w = tf.get_variable('w', [3], initializer=tf.ones_initializer())
    with tf.variable_scope('rows', partitioner=tf.fixed_size_partitioner(2)):
      v = tf.get_variable('v', [2, 3], initializer=tf.zeros_initializer())
    outputs = {'w': tf.identity(w), 'v': tf.convert_to_tensor(v)}
    loss = tf.reduce_mean((w * x - 3) ** 2 + (v + 1) ** 2)
    return loss, {**outputs, 'summary': loss * 2, 'other': loss + more}

  train_op, loss, outputs = task.minimize(build_loss)
  fed = {x: [1.0, 1.0, 1.0]}
  with task.session(20) as session:
    made = 0
    while not session.should_stop():
      made += 1
      if made % 5 == 0:
        found = task.evaluate({'w': outputs['w'], 'v': outputs['v']})
        assert set(found) == {'w', 'v'}
      before = session.run(outputs['w'])
      task.evaluate(outputs['other'], {**fed, more: 1.0})
      assert (session.run(outputs['w']) == before).all() or not IS_COPY
      _, loss_v = session.run([train_op, loss], fed)
      if made == 20 and IS_COPY:
        break
    center = task.evaluate(outputs['w'])
    print('center', center[0], flush=True)
    print('loss', task.evaluate(loss, fed), flush=True)
  if hasattr(task, 'evaluate'):
    task.evaluate(loss)

if __name__ == '__main__':
  distmnist.run_task(train)
"""


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize(
  'rule, num_ps',
  [('async_sgd', 2), ('easgd', 2), ('sync_sgd', 2), ('async_sgd', 0)],
)
def test_an_evaluation_reads_the_center(run_script, tmp_path, rule, num_ps):
  is_copy, name = rule == 'easgd', 'w'
  logdir = tmp_path / 'run'
  words = [f'--strategy={rule}', f'--logdir={logdir}', '--optimizer=sgd']
  words += ['--learning_rate=0.1'] + ['--communication_period=1000'] * is_copy
  text = _EVALUATES.replace('IS_COPY', str(is_copy))
  if not num_ps:
    text = text.replace('tf.fixed_size_partitioner(2)', 'None')
    words.append('--ema_decay=0.9')
    name += '/ExponentialMovingAverage'
  output, errors = run_script(
    text,
    *words,
    num_ps=num_ps,
    num_workers=1,
    code=2,
  )
  [center] = re.findall(r'^center (\S+)', output, re.M)
  path = checkpoints.find_latest(str(logdir))
  saved = tf.train.load_checkpoint(path).get_tensor(name)
  assert float(center) == pytest.approx(saved[0], abs=1e-6)
  assert (saved[0] == 1) == is_copy  # Its copy has moved, the center has not.
  assert 'evaluate() outside of session()' in output + errors
  last = list(metrics_file.iterate(str(logdir)))
  samples = [x for x in last if x['kind'] == 'sample' and 'metrics' in x]
  assert set(samples[-1]['metrics']) == {'summary'}
  assert samples[-1]['metrics']['summary'] == pytest.approx(
    2 * samples[-1]['loss'], rel=1e-5
  )


def find_step(logdir):
  path = checkpoints.find_latest(str(logdir)) if logdir.exists() else None
  return checkpoints.parse_step(path) if path else 0


@pytest.mark.daily
@pytest.mark.slow
def test_what_is_killed_is_started_again_and_all_reach_the_last_step(tmp_path):
  logdir, shape = tmp_path / 'run', (1, 2)
  flags = '--last_step=5000', '--save_steps=50', f'--logdir={logdir}', *ADAM

  with runs.Launch(
    tmp_path, shape, flags, ['--max_restarts=5', EXAMPLE]
  ) as run:
    step = 0
    for name in 'ps 0', 'worker 1', 'worker 0':
      wanted = step + 50
      assert run.wait_until(lambda least=wanted: find_step(logdir) >= least)
      assert run.signal(name, signal.SIGKILL)
      step = find_step(logdir) + 50
    run.end()
    text = run.screen
  for name in 'ps 0', 'worker 1', 'worker 0':
    assert re.search(rf'{name} \S+ killed by SIGKILL: restart 1', text)
  assert 'recovered at step' in text
  path = checkpoints.find_latest(str(logdir))
  assert checkpoints.parse_step(path) >= 5000
  # Once more, there is nothing left to do.
  launch(EXAMPLE, '--', *flags)
  assert checkpoints.find_latest(str(logdir)) == path


def find_progress(log):
  return log.path.exists() and 'step ' in log.path.read_text()


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize('is_script', [True, False])
def test_a_stop_amid_the_return_of_a_killed_chief_says_what_is_lost(
  tmp_path, is_script
):
  logdir = tmp_path / 'run'
  words, flags = ['--max_restarts=3'], [f'--logdir={logdir}', '--log_secs=0']
  if is_script:
    words, flags = [*words, EXAMPLE], [*flags, '--last_step=10000000', *ADAM]
  else:
    flags += [*SMALL, '--train_steps=10000000']

  with runs.Launch(tmp_path, (1, 2), flags, words) as run:
    assert run.wait_until(lambda: find_progress(run.logs['worker 0']))
    assert run.signal('worker 0', signal.SIGKILL)
    assert run.wait_until(lambda: 'restart 1' in run.screen)
    assert run.wait_until(lambda: 'worker 0' in run.find_pids())
    with pytest.raises(runs.processes.ProcessError):
      run.end(signal.SIGINT)
    assert run.code == cli.NOT_SAVED
    assert 'Traceback' not in run.screen
    assert 'Traceback' not in run.logs['worker 0'].path.read_text()
  assert find_step(logdir) == 0


def test_what_is_wrong_is_told_before_anything_is_built(set_flags):
  set_flags('--optimizer=ftrl', '--strategy=easgd')
  task = in_process.make_task(cluster_lib.Cluster())
  with pytest.raises(cli.UsageError, match='--optimizer=ftrl'):
    own_loop.WorkerTask(task)
  set_flags('--optimizer=sgd', '--lr_schedule=plateau')
  with pytest.raises(cli.UsageError, match='^--lr_schedule=plateau goes by'):
    own_loop.WorkerTask(task)


def build_two():
  with tf.variable_scope('head'):
    head = tf.get_variable('w', [2], initializer=tf.ones_initializer())
  body = tf.get_variable('body', [2], initializer=tf.ones_initializer())
  return tf.reduce_sum(head * body)


def test_a_group_is_moved_as_it_says(tf_session, set_flags):
  set_flags('--optimizer=sgd', '--learning_rate=0.1')
  train_op, _ = minimize({'head/w': {'learning_rate': 2}})
  tf_session.run(tf.global_variables_initializer())
  tf_session.run(train_op)
  found = [tf_session.run(v) for v in tf.trainable_variables()]
  np.testing.assert_allclose(found, [[0.8, 0.8], [0.9, 0.9]])


@pytest.mark.slow
def test_a_flag_is_for_a_group_too(tf_session, set_flags):
  set_flags('--ftrl_l1=1')
  minimize({'body': {'optimizer': 'ftrl'}})
  with (
    pytest.raises(cli.UsageError, match='--ftrl_l1=1 needs'),
    tf.Graph().as_default(),
  ):
    minimize({'body': {'optimizer': 'adam'}})


def test_a_loop_trains_to_its_last_step_and_saves_it(set_flags, tmp_path):
  set_flags('--optimizer=sgd', '--learning_rate=0.1', f'--logdir={tmp_path}')
  losses = []
  with tf.Graph().as_default():
    task = own_loop.WorkerTask(in_process.make_task(cluster_lib.Cluster()))
    train_op, loss = task.minimize(build_two)
    with task.session(last_step=3) as session:
      while not session.should_stop():
        step, found = session.run([train_op, loss])
        losses.append(found)
  assert step == find_step(tmp_path) == 3
  # Each step makes all four values 0.9 times what they were.
  np.testing.assert_allclose(losses, [2, 2 * 0.81, 2 * 0.81**2], rtol=1e-5)


@pytest.mark.parametrize(
  'given, named',
  [
    ({'tail': {'learning_rate': 2}}, "groups['tail'] matches the whole name"),
    ({'body': {'rate': 2}}, "groups['body'] has 'rate'"),
    (['body'], 'groups is of type list'),
  ],
)
def test_wrong_groups_are_one_line(tf_session, set_flags, given, named):
  set_flags()
  with pytest.raises(cli.UsageError) as refused:
    minimize(given)
  assert str(refused.value).startswith(f'minimize(): {named}')
  assert '\n' not in str(refused.value)


def minimize(groups):
  task = own_loop.WorkerTask(in_process.make_task(cluster_lib.Cluster()))
  return task.minimize(build_two, groups=groups)


@pytest.mark.daily
@pytest.mark.slow
def test_what_is_wrong_is_one_line():
  for word, said in (
    ('--job_name=evaluator', 'expected ps or worker'),
    ('--train_steps=9', '--train_steps=9 has no effect'),
    ('--download_only', "'download_only'"),  # The program train's alone.
  ):
    output, errors = programs.run('examples.own_loop', word, code=2)
    [*_, line] = errors.splitlines()
    assert said in line
    assert 'Traceback' not in output + errors


@pytest.mark.daily
@pytest.mark.slow
def test_help_tells_of_the_flags_that_are_read_and_no_others():
  for word in '--help', '--helpfull':
    output, _ = programs.run('examples.own_loop', word)
    for name in 'last_step', 'strategy', 'optimizer', 'logdir', 'seed':
      assert f'--{name}' in output
    for name in 'train_steps', 'batch_size', 'model', 'dataset', 'problem':
      assert not re.search(rf'--{name}\b[,:]', output)


@pytest.mark.slow
def test_a_session_without_a_step_is_refused(run_script):
  text = _SHARED.replace('train_op, _ = task.minimize(build_loss)', '')
  _, errors = run_script(text, num_workers=1, num_ps=0, code=2)
  assert 'session() before minimize()' in errors


@pytest.mark.slow
def test_a_step_of_two_minimizes_is_refused(run_script):
  twice = 'task.minimize(build_loss)\n  ' * 2
  text = _SHARED.replace('task.minimize(build_loss)', twice)
  _, errors = run_script(text, num_workers=1, num_ps=0, code=2)
  assert 'minimize() a second time' in errors


@pytest.mark.slow
def test_a_global_step_asked_for_first_is_the_one_of_all(run_script, tmp_path):
  first = 'step = tf.train.get_or_create_global_step()\n  train_op'
  text = _SHARED.replace('train_op', first, 1)
  text = text.replace('run(train_op', 'run([train_op, step]')
  run_script(text, '--strategy=async_sgd', f'--logdir={tmp_path / "run"}')
  path = checkpoints.find_latest(str(tmp_path / 'run'))
  assert checkpoints.parse_step(path) >= 20


@pytest.mark.slow
def test_an_input_that_ends_is_told(run_script):
  text = _SHARED.replace(
    '      whole =',
    '      if numbers.random() < 0.2: next(iter(()))\n      whole =',
  )
  output, errors = run_script(text, '--strategy=sync_sgd')
  assert re.search(r'input of worker 0 ends at step \d+ of 20', output + errors)


# What a worker whose data are fewer does in its seventh step.
_LEAVES = {
  'return': 'return',
  'exit': 'import sys; sys.exit()',
  'data': 'next(iter(()))',
}


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize(
  'rule, num_ps', [('sync_sgd', 1), ('ring_allreduce', 0)]
)
@pytest.mark.parametrize('who, how', [(0, 'exit'), *((1, h) for h in _LEAVES)])
def test_in_lock_step_all_end_with_the_first_that_leaves(
  run_script, tmp_path, who, how, rule, num_ps
):
  text = _leave_after_six(f'task.index == {who}', how)
  logdir = tmp_path / 'run'
  words = f'--strategy={rule}', f'--logdir={logdir}', '--stall_fail_secs=40'
  output, errors = run_script(text, *words, num_ps=num_ps)
  said = 'another worker has left its loop' in output + errors
  assert said == (who == 1)
  path = checkpoints.find_latest(str(logdir))
  # In the ring the others make one more, with its zeros.
  assert checkpoints.parse_step(path) == 6 + (who == 1 and not num_ps)


_APART = 'async_sgd', 'easgd', 'ssp'


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize('rule', _APART)
@pytest.mark.parametrize('how', ['return', 'exit'])
def test_where_none_waits_all_end_with_the_chief(
  run_script, tmp_path, rule, how
):
  # Not before the other one has begun.
  begun = str(tmp_path / 'begun')
  text = _leave_after_six(f'task.is_chief and os.path.exists({begun!r})', how)
  text = text.replace('session(20)', 'session(10**9)').replace(
    '      whole =',
    f'      if not task.is_chief: open({begun!r}, "w").close()\n      whole =',
  )
  logdir = tmp_path / 'run'
  words = f'--strategy={rule}', f'--logdir={logdir}'
  output, errors = run_script(text, *words)
  assert re.search(r'the loop of worker 0 has ended at step \d+', output)
  log = (logdir / 'logs' / 'worker_1.log').read_text()
  assert 'worker 0 has ended the training: this loop ends, too' in log
  assert 'waiting at the end' not in output + errors + log
  assert _count_steps(log) > 0


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize('rule', _APART)
def test_a_chief_whose_input_ends_waits_for_the_steps_of_the_others(
  run_script, tmp_path, rule
):
  logdir = tmp_path / 'run'
  words = f'--strategy={rule}', f'--logdir={logdir}', '--end_timeout_secs=2'
  # The other makes more steps than fit into --end_timeout_secs.
  text = _leave_after_six('task.is_chief', 'data')
  text = text.replace('session(20)', 'session(10**9)').replace(
    '      whole =',
    '      if made == 300 and not task.is_chief: next(iter(()))\n'
    '      if not task.is_chief: threading.Event().wait(0.02)\n'
    '      whole =',
  )
  output, _ = run_script('import threading\n' + text, *words)
  assert 'worker 0 has no more input, and waits for worker 1' in output
  log = (logdir / 'logs' / 'worker_1.log').read_text()
  assert _count_steps(log) == 301  # It leaves as it begins the last of them.
  if rule != 'easgd':  # It counts exchanges.
    path = checkpoints.find_latest(str(logdir))
    assert checkpoints.parse_step(path) == 306


@pytest.mark.daily
@pytest.mark.slow
def test_a_chief_that_waits_for_the_others_survives_a_lost_ps(tmp_path):
  logdir = tmp_path / 'run'
  (tmp_path / 'mine.py').write_text(
    _leave_after_six('task.is_chief', 'data')
    .replace('session(20)', 'session(10**9)')
    .replace(
      '      whole =',
      f'      if os.path.exists({str(tmp_path / "enough")!r}):'
      ' next(iter(()))\n      whole =',
    )
  )

  def find_step():
    path = checkpoints.find_latest(str(logdir)) if logdir.exists() else None
    return checkpoints.parse_step(path) if path else 0

  with runs.Launch(
    *(tmp_path, (1, 2), [f'--logdir={logdir}', '--save_steps=50']),
    launch_flags=['--max_restarts=2', '--module=mine'],
    env={'PYTHONPATH': str(tmp_path)},
  ) as run:
    chief = tmp_path / 'logs' / 'worker_0.log'
    assert run.wait_until(
      lambda: chief.exists() and 'no more input' in chief.read_text()
    )
    step = find_step()
    assert run.wait_until(lambda: find_step() > step + 50)
    assert run.signal('ps 0', signal.SIGKILL)
    step = find_step()
    assert run.wait_until(lambda: find_step() > step + 50)
    (tmp_path / 'enough').touch()
    run.end()
    text = run.screen
  assert 'restored ' in chief.read_text()
  assert 'worker 0 failed' not in text
  assert find_step() > step + 50


def _count_steps(log):
  """Returns how many steps a worker says that it has begun (int)."""
  return int(re.search(r'begun (\d+) steps', log)[1])


@pytest.mark.daily(but=['ring_allreduce-0'])
@pytest.mark.slow
@pytest.mark.parametrize(
  'rule, num_ps',
  [
    *(('sync_sgd', 1), ('sync_sgd --sync_barrier=shard', 1), ('sagn', 1)),
    *(
      ('bmuf --communication_period=2', 1),
      ('easgd --easgd_sync', 1),
      ('ssp', 1),
    ),
    ('ring_allreduce', 0),
  ],
)
def test_a_hook_that_ends_the_loop_of_one_worker_is_like_a_break(
  run_script, tmp_path, rule, num_ps
):
  text = _SHARED.replace(
    'task.session(20)', 'task.session(200, [Stop()] * task.index)'
  ).replace(
    'def train(task):',
    'class Stop(tf.train.SessionRunHook):\n'
    '  made = 0\n'
    '  def after_run(self, run_context, run_values):\n'
    '    self.made += 1\n'
    '    if self.made == 6: run_context.request_stop()\n\n\n'
    'def train(task):',
  )
  logdir = tmp_path / 'run'
  words = f'--logdir={logdir}', '--stall_fail_secs=40'
  name, *more = rule.split()
  output, errors = run_script(
    text, f'--strategy={name}', *more, *words, num_ps=num_ps
  )
  assert 'given up' not in output + errors
  step = checkpoints.parse_step(checkpoints.find_latest(str(logdir)))
  # Under ssp the others may go on for as long as its bound lets them.
  assert 0 < step <= 200


@pytest.mark.daily
@pytest.mark.slow
def test_as_many_may_leave_as_there_are_backup_workers(run_script, tmp_path):
  text = _leave_after_six('task.index', 'return')
  logdir = tmp_path / 'run'
  words = f'--logdir={logdir}', '--stall_fail_secs=40', '--strategy=sync_sgd'
  run_script(text, *words, '--replicas_to_aggregate=2', num_workers=3)
  path = checkpoints.find_latest(str(logdir))
  assert 6 <= checkpoints.parse_step(path) < 20


def _leave_after_six(condition, how):
  return (
    _SHARED.replace(
      '      whole =',
      '      made = len(list_made); list_made.append(0)\n'
      f'      if made >= 6 and {condition}: {_LEAVES[how]}\n'
      '      whole =',
    )
    .replace('  numbers =', '  list_made = []\n  numbers =')
    .replace(
      '\ndef run',
      "\n  print(f'begun {len(list_made)} steps', flush=True)\n\ndef run",
    )
  )


@pytest.mark.slow
def test_an_exit_with_a_code_is_a_mistake_of_the_script(run_script):
  text = _SHARED.replace(
    '      whole =', '      raise SystemExit(7)\n' + ' ' * 6 + 'whole ='
  )
  output, errors = run_script(text, num_workers=1, num_ps=0, code=1)
  assert 'the loop of worker 0 calls sys.exit(7)' in output + errors


@pytest.mark.slow
def test_a_mistake_of_the_script_is_one_line_and_not_started_again(run_script):
  text = _SHARED.replace('run(train_op, {x:', 'run(train_op, {x: None +')
  output, errors = run_script(text, num_workers=1, num_ps=0, code=1)
  assert re.search(r'mine\.py:\d+, in train\(\): TypeError', output + errors)
  assert 'Traceback' not in output + errors


KEEPER = """
import distmnist.runtime
import tensorflow.compat.v1 as tf

def train(task):
  local = {'collections': [tf.GraphKeys.LOCAL_VARIABLES], 'trainable': False}
  rows = tf.placeholder(tf.float32, [None])
  values = tf.data.Dataset.from_tensor_slices(rows).repeat()
  batches = tf.data.make_initializable_iterator(values)
  x = batches.get_next()
  local['initializer'] = tf.zeros_initializer()
  mask = tf.get_variable('mask', [], **local)
  runs = tf.get_variable('runs', [], **local)
  queue = tf.FIFOQueue(9, tf.float32, [])

  def build_loss():
    with tf.control_dependencies([runs.assign_add(1.0)]):
      return (x * tf.get_variable('w', []) - x) ** 2

  train_op, _ = task.minimize(build_loss)
  put = tf.group(queue.enqueue(1.0), mask.assign(1.0), batches.initializer)
  size = queue.size()
  with task.session(1000000) as session:
    session.run(put, {rows: [1.0, 2.0]})
    num_runs = 0
    while not session.should_stop():
      session.run(train_op)
      num_runs += 1
      if num_runs % 50 == 0:
        kept = session.run([mask, size, runs])
        print('kept', *kept[:2], kept[2] >= num_runs, flush=True)

if __name__ == '__main__':
  distmnist.run_task(train)
"""


@pytest.mark.slow
def test_a_stop_while_it_waits_for_others_is_no_error(tmp_path):
  (tmp_path / 'mine.py').write_text(KEEPER)
  # Nobody listens at the port of its ps.
  with (
    socket.create_server(('127.0.0.1', 0)) as ps,
    socket.create_server(('127.0.0.1', 0)) as worker,
  ):
    hosts = [f'127.0.0.1:{x.getsockname()[1]}' for x in (ps, worker)]
  words = (
    '--task_index=0',
    f'--ps_hosts={hosts[0]}',
    f'--worker_hosts={hosts[1]}',
  )
  command = [sys.executable, 'mine.py', '--job_name=worker', *words]
  env = {**os.environ, 'PYTHONPATH': str(REPO)}
  printed = tmp_path / 'printed'
  with (
    open(printed, 'w') as out,
    background.Running(
      tmp_path, command, stdout=out, cwd=tmp_path, env=env
    ) as run,
  ):
    run.wait_until(lambda: 'waiting for ps 0' in printed.read_text())
    run.send(signal.SIGTERM)
    assert run.process.wait(background.DEADLINE_SECS) == 128 + signal.SIGTERM
  assert 'error' not in printed.read_text() + run.stderr.read_text()


LOST = 'these begin again, as their session was lost:'


def read_after_loss(log):
  return log.read_text().partition(LOST)[2]


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize('rule', ['async_sgd', 'sync_sgd'])
def test_what_a_worker_has_of_its_own_outlives_a_lost_ps(
  tmp_path, monkeypatch, rule
):
  (tmp_path / 'mine.py').write_text(KEEPER)
  monkeypatch.setenv('PYTHONPATH', str(tmp_path))
  logdir, shape = tmp_path / 'run', (1, 2)
  flags = [
    *('--save_steps=200', f'--strategy={rule}', '--learning_rate=0.01'),
    f'--logdir={logdir}',
  ]
  with runs.Launch(
    tmp_path, shape, flags, ['--max_restarts=5', '--module=mine']
  ) as run:
    logs = [run.logs_dir / f'worker_{worker}.log' for worker in (0, 1)]
    # A worker that has not yet begun has no session to lose.
    assert run.wait_until(
      lambda: all(log.exists() and '\nkept ' in log.read_text() for log in logs)
    )
    assert run.wait_until(lambda: find_step(logdir) >= 200)
    assert run.signal('ps 0', signal.SIGKILL)
    assert run.wait_until(
      lambda: all('\nkept ' in read_after_loss(log) for log in logs)
    )
  for log in logs:
    assert set(re.findall(r'^kept .*', log.read_text(), re.M)) == {
      'kept 1.0 1 True'
    }
    assert log.read_text().count(LOST) == 1
