"""sweep: as users run it, most with support/fake_train.py in train's place."""

import csv
import re
import shutil

import pytest

from distmnist import sweep
from distmnist.common import cli
from tests.support import background, sweeps
from tests.support.runner import SMALL

pytestmark = pytest.mark.usefixtures('heed_signals')


@pytest.mark.parametrize(
  'flags, words, train_flags, message',
  [
    ([], ['a=1'], ['--ps_hosts', 'x:1'], '--ps_hosts is not for a trial'),
    (['--sampler=tpe'], ['a=1..2'], [], 'needs the number of trials'),
    (
      ['--sampler=tpe', '--random=2', '--halving=2'],
      ['a=1..2'],
      ['--epochs=1'],
      'and --halving has all trials start before one ends',
    ),
    (
      ['--halving=2'],
      ['a=1,2', 'epochs=1,2'],
      ['--train_steps=9'],
      'do not sweep over them',
    ),
  ],
)
def test_what_cannot_work_is_refused(
  set_flags, flags, words, train_flags, message
):
  set_flags('--num_ps=0', '--num_workers=1', *flags)
  with pytest.raises(cli.UsageError) as error:
    sweep.make_spec(words, train_flags)
  assert message in str(error.value)


def test_a_flagfile_counts_as_given(set_flags, tmp_path):
  set_flags('--num_ps=0', '--num_workers=1', '--halving=2')
  path = tmp_path / 'x.flags'
  path.write_text('# x\n--train_steps=8\n')
  spec = sweep.make_spec(['a=1,2,3,4'], [f'--flagfile={path}', '--b=1'])
  assert spec.flags == ['--train_steps=8', '--b=1']
  assert spec.rungs == [
    (4, '--train_steps=2'),
    (2, '--train_steps=4'),
    (1, '--train_steps=8'),
  ]


@pytest.mark.slow
def test_dry_run_prints_a_command_a_trial_and_leaves_nothing(tmp_path):
  done = sweeps.run(tmp_path, 'a=1,2', 'b=x', '--dry_run', '--', '--c=it s')
  assert (done.returncode, done.stderr) == (0, '')
  first, second = done.stdout.splitlines()
  assert first.startswith('python -m fake_train --intra_op')
  assert f"'--c=it s' --folder={tmp_path} --a=1 --b=x --logdir=" in first
  assert '--a=2' in second
  assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_best_is_first_and_a_failure_stops_no_other(tmp_path):
  words = [
    'x=a,b,c,d',
    f'do=all:report=0.5;all:error=the_disk_is_full;{sweeps.DIVERGES};all:report=0.9',
    '--zip',
  ]
  done = sweeps.run(tmp_path, *words)
  rows = sweeps.read_table(done)
  assert [(row['trial'], row['x']) for row in rows] == [
    ('04', 'd'),
    ('01', 'a'),
    ('02', 'b'),
    ('03', 'c'),
  ]
  assert sweeps.read_states(tmp_path) == ['done', 'failed', 'diverged', 'done']
  assert done.returncode == 1
  folder = tmp_path / 'sweep'
  assert background.last_line(done.stderr) == (
    'distmnist.sweep: error: trial 02 (x=b do=all:error=the_disk_is_full) '
    f'failed: the disk is full; log: {folder}/trials/02/log; once repaired, '
    '--retry_failed runs it again'
  )
  assert 'best by validation accuracy: trial 04' in done.stderr
  with open(folder / 'results.csv', newline='') as file:
    found = list(csv.DictReader(file))
  assert [row['state'] for row in found] == [
    *('done', 'done', 'failed', 'diverged'),
  ]
  assert found[0]['validation'] == '0.9000' and found[0]['test'] == '0.4500'
  assert found[2]['cause'] == 'the disk is full'


@pytest.mark.slow
def test_a_cluster_a_trial(tmp_path):
  sweeps.check_clusters(sweeps.run, tmp_path)


@pytest.mark.slow
def test_what_tells_a_sweep_its_role_is_kept_from_its_trials(
  tmp_path, monkeypatch
):
  config = '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}}'
  monkeypatch.setenv('TF_CONFIG', config)
  monkeypatch.setenv('DISTMNIST_NUM_PS', '1')
  do = 'all:env=TF_CONFIG,env=DISTMNIST_NUM_PS,report=0.5'
  done = sweeps.run(tmp_path, 'a=1', '--', f'--do={do}')
  assert done.returncode == 0, done.stderr
  [log] = (tmp_path / 'sweep' / 'trials').glob('*/log')
  assert log.read_text() == 'TF_CONFIG=None\nDISTMNIST_NUM_PS=None\n'


REAL = ('--', *SMALL, '--optimizer=sgd')


@pytest.mark.slow
def test_what_train_would_refuse_is_refused_before_the_first(tmp_path):
  words = 'learning_rate=0.1', 'batch_size=32,3000'
  done = sweeps.run(tmp_path, *words, *REAL, module='distmnist.train')
  assert done.returncode == 2
  assert background.last_line(done.stderr).startswith(
    'distmnist.sweep: error: no trial was started: with learning_rate=0.1 '
    'batch_size=3000: --batch_size=3000 is larger'
  )
  assert done.stdout == ''
  assert sweeps.read_states(tmp_path) == []


@pytest.mark.slow
def test_six_trials_survive_a_failure_a_divergence_and_a_kill(tmp_path):
  """One cannot write its logdir, one diverges at a rate of 1e38."""
  rates = [f'{0.01 * 3**i:.4f}' for i in range(5)] + ['1e38']
  steps = [str(60 + i) for i in range(6)]
  words = [
    *(f'learning_rate={",".join(rates)}', f'train_steps={",".join(steps)}'),
    *('--zip', '--parallel=2', *REAL),
  ]
  folder = tmp_path / 'sweep' / 'trials'
  (folder / '02').mkdir(parents=True)
  (folder / '02' / 'run').write_text('in the way')
  with sweeps.Running(tmp_path, *words, module='distmnist.train') as running:
    running.wait_until(lambda: len(sweeps.read_states(tmp_path)) >= 4)
    processes = running.all_processes()
    running.process.kill()
    running.process.wait()
    background.assert_gone(processes)
  before = {
    name: outcome
    for name, outcome in sweeps.read_outcomes(tmp_path).items()
    if outcome['state'] != 'running'
  }
  # A training may have ended with no sweep left to note it.
  ended = set(before) | {p.parts[-3] for p in folder.glob('*/run/report.json')}
  assert 2 <= len(ended) < 6
  logs = {name: (folder / name / 'log').read_text() for name in ended}
  done = sweeps.run(tmp_path, *words, module='distmnist.train')
  assert re.search(
    rf'; {6 - len(ended)} (is|are) left to run$', done.stderr, re.M
  )
  after = sweeps.read_outcomes(tmp_path)
  assert before == {name: after[name] for name in before}
  for name, text in logs.items():
    assert (folder / name / 'log').read_text() == text
  rows = sweeps.read_table(done)
  assert len(rows) == 6
  assert [(row['trial'], row['state']) for row in rows[-2:]] == [
    ('02', 'failed'),
    ('06', 'diverged'),
  ]
  assert all(row['state'] == 'done' for row in rows[:-2])
  accuracies = [float(row['validation']) for row in rows[:-2]]
  assert accuracies == sorted(accuracies, reverse=True)
  assert accuracies[0] > accuracies[-1] + 0.1
  assert done.returncode == 1
  line = background.last_line(done.stderr)
  assert 'trial 02 (learning_rate=0.0300 train_steps=61) failed' in line
  assert 'run cannot be written' in line
  pytest.importorskip('matplotlib', reason='extra plots')
  plot = tmp_path / 'sweep' / 'results.png'
  assert plot.read_bytes().startswith(b'\x89PNG')


@pytest.mark.daily
@pytest.mark.slow
def test_halving_continues_each_training_from_its_checkpoint(tmp_path):
  words = ['learning_rate=0.0001,0.1', '--halving=2', '--parallel=2']
  done = sweeps.run(
    *(tmp_path, *words, *REAL, '--train_steps=80'), module='distmnist.train'
  )
  assert done.returncode == 0, done.stderr
  best = sweeps.read_table(done)[0]
  assert (best['state'], best['updates']) == ('done', '80')
  log = tmp_path / 'sweep' / 'trials' / best['trial'] / 'log'
  text = log.read_text()
  assert 'run/model.ckpt-40' in text and 'step 80/80' in text


@pytest.mark.daily
@pytest.mark.slow
def test_trials_may_be_judged_by_their_speed_for_a_while(tmp_path):
  words = ['batch_size=1,100', '--judge=examples_per_sec']
  done = sweeps.run(
    *(tmp_path, *words, *REAL, '--train_secs=3', '--steps_per_run=1'),
    module='distmnist.train',
  )
  assert done.returncode == 0, done.stderr
  best, worst = sweeps.read_table(done)
  assert (best['batch_size'], worst['batch_size']) == ('100', '1')
  assert float(best['examples_per_sec']) > float(worst['examples_per_sec'])
  assert 'best by examples_per_sec: trial 02' in done.stderr


@pytest.mark.daily
@pytest.mark.slow
def test_a_combination_is_compared_by_the_mean_of_its_seeds(tmp_path):
  """Each reports 0.01 more with each seed; a kill comes at the third."""
  words = [
    'do=all:print=ran,report=0.5;all:print=ran,touch=on,wait=go,report=0.6',
    *('--repeats=3', '--', '--seed=1'),
  ]
  with sweeps.Running(tmp_path, *words) as running:
    running.wait_for_files('worker0.on')
    running.kill()
  (tmp_path / 'go').write_text('')
  done = sweeps.run(tmp_path, *words)
  assert done.returncode == 0, done.stderr
  assert '5 are left to run' in done.stderr
  # The first seed of each combination ran first.
  assert sweeps.count_runs(tmp_path) == [1, 1, 1, 2, 1, 1]
  assert 'trials 04-06' in done.stderr and '0.6200 ± 0.0100' in done.stderr
  with open(tmp_path / 'sweep' / 'results.csv', newline='') as file:
    best, worst = csv.DictReader(file)
  assert (best['validation'], best['validation_std']) == ('0.6200', '0.0100')
  assert (best['n'], worst['n'], worst['validation']) == ('3', '3', '0.5200')
  with open(tmp_path / 'sweep' / 'trials.csv', newline='') as file:
    seeds = [row['seed'] for row in csv.DictReader(file)]
  assert seeds == ['3', '2', '1', '3', '2', '1']
  assert 'all have ended' in sweeps.run(tmp_path, *words).stderr
  done = sweeps.run(tmp_path, words[0], '--repeats=2', *words[2:])
  assert done.returncode == 2 and 'repeats were 3 and not 2' in done.stderr


@pytest.mark.slow
def test_halving_goes_on_with_all_seeds_of_the_best(tmp_path):
  words = [
    'do=all:print=ran,report=0.5;all:print=ran,report=0.6',
    *('--repeats=2', '--halving=2', '--parallel=2', '--', '--train_steps=8'),
  ]
  done = sweeps.run(tmp_path, *words)
  assert done.returncode == 0, done.stderr
  assert sweeps.read_states(tmp_path) == ['dropped', 'dropped', 'done', 'done']
  assert sweeps.count_runs(tmp_path) == [1, 1, 2, 2]


def forget_third_trial(folder):
  """Leaves what was there when a kill came while it was proposed."""
  shutil.rmtree(folder / 'trials' / '03')
  journal = folder / 'journal.log'
  lines = journal.read_text().splitlines(keepends=True)
  begun = [i for i, line in enumerate(lines) if '"op_code":4' in line]
  journal.write_text(''.join(lines[: begun[2] + 1]) + lines[-1][:9])


@pytest.mark.slow
def test_optuna_chooses_trials_and_goes_on_with_them(tmp_path):
  words = ['x=1..9', 'do=all:report=0.5', '--random=3', '--sampler=tpe']
  found = {}
  done = sweeps.run(tmp_path, *words, '--dry_run')
  assert (done.returncode, done.stderr) == (0, '')
  for is_again in (False, True):
    if is_again:
      forget_third_trial(tmp_path / 'sweep')
    done = sweeps.run(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    rows = sweeps.read_table(done)
    found[is_again] = {row['trial']: row['x'] for row in rows}
    assert sweeps.read_states(tmp_path) == ['done'] * 3
  assert found[True] == found[False]
  assert '3 trials in' in done.stderr and '1 is left to run' in done.stderr
  for other in 'x=1..8', 'x=100..200':  # Its trials are in the first alone.
    done = sweeps.run(tmp_path, other, *words[1:])
    assert done.returncode == 2 and 'holds another sweep' in done.stderr
