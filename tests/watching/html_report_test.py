"""The page of a run: whole, and without a network."""

import base64
import html
import itertools
import re

import pytest

from distmnist.watching import html_report, metrics_file, watched_run


def draw(logdir, **about):
  """Returns the page of a run, and its words (str)."""
  state = watched_run.WatchedRun(str(logdir)).look()
  written = html_report.write(str(logdir), state, **about)
  assert written == f'{logdir}/report.html'
  page = (logdir / 'report.html').read_text('utf-8')
  words = html.unescape(re.sub(r'<[^>]*>', ' ', page))
  return page, ' '.join(words.split())


@pytest.fixture
def logdir(tmp_path, monkeypatch):
  """A run of a ps and two workers, of which one was killed and came back.

  A second passes from one line to the next.
  """
  clock = itertools.count(1000.0)
  monkeypatch.setattr(metrics_file.time, 'time', lambda: next(clock))
  folder = tmp_path / 'a <run>'
  folder.mkdir()
  (folder / 'train.flags').write_text('--model=cnn\n--x=<b>\n')

  def make(task, life, **start):
    return metrics_file.Writer(
      *(str(folder), task, life), host='h', pid=1, **start
    )

  ps = make('ps 0', 'p', versions={'tensorflow': '2.21.0'})
  launcher = make('launcher', 'l', tasks=['ps 0', 'worker 0', 'worker 1'])
  for i in range(2):
    worker = make(f'worker {i}', f'{i}', attempt=1)
    for step in (10, 20, 30):
      worker.write(
        *('sample',),
        state='training',
        step=step,
        loss=1 / step,
        unit='images',
        examples_per_sec=100.0,
        staleness={'0': 3 * step // 10, '2': step // 10},
        staleness_mean=0.5,
        local_steps=step,
      )
      metrics = {'loss': 1 / step, 'accuracy': step / 100}
      worker.write('means', step=step, epoch=1, steps=10, metrics=metrics)
  ps.write('sample', state='serving', waiting=['worker 1'], rss_bytes=5)
  launcher.write(
    'event', event='ended', about='worker 1', code=-9, text='killed by SIGKILL'
  )
  worker.write('event', event='wait', text='no step for 10 s: <ps 0>')
  for split, step in ('validation', 20), ('validation', 30), ('test', 30):
    found = {'accuracy': step / 60, 'loss': 0.25}
    worker.write('evaluation', split=split, step=step, metrics=found)
  return folder


@pytest.mark.slow
def test_the_page_has_all_and_refers_to_nothing(logdir):
  page, words = draw(logdir, flag_changes=[(20, '--x a -> <b>')])
  assert not re.search(r'<(script|link|img|image|iframe)|@import', page)
  links = re.findall(r'(?:href|src)="([^"]*)"|url\(([^)]*)\)', page)
  # Within the page, or what the link itself holds.
  within = '#', 'data:image/svg+xml;base64,'
  assert all((a or b).startswith(within) for a, b in links)
  assert set(re.findall(r'https?:[^"]*', page)) <= {
    *('http://www.w3.org/2000/svg', 'http://www.w3.org/1999/xlink')
  }
  for text in (
    *('a <run>', '--model=cnn --x=<b>', 'worker 1: killed by SIGKILL'),
    *('worker 1: no step for 10 s: <ps 0>', 'tensorflow 2.21.0'),
    'at step 20: --x a -> <b>',
    # The charts.
    *('loss', 'images/s of each worker', 'accuracy', 'pushes by staleness'),
    *('samples of ps in which a worker waited', 'lives of each task'),
    'mean of 2 workers',
  ):
    assert text in words, text
  assert page.count('<svg') == 9
  assert len(page) < 1e6


def test_curves_counts_and_lives_are_those_of_the_lines(logdir):
  history = html_report.History(metrics_file.iterate(str(logdir)))
  workers = 'worker 0', 'worker 1'
  validation, test = [20, 30], [30]
  # A metric of training, validation and test is one chart.
  losses = [(10, 0.1), (20, 0.05), (30, 0.03333333)]
  assert history.curves['loss', 'step'] == {
    **dict.fromkeys(workers, losses),
    'validation': [(step, 0.25) for step in validation],
    'test': [(step, 0.25) for step in test],
  }
  assert history.curves['accuracy', 'step'] == {
    **dict.fromkeys(workers, [(10, 0.1), (20, 0.2), (30, 0.3)]),
    'validation': [(20, 0.3333333), (30, 0.5)],
    'test': [(30, 0.5)],
  }
  assert [
    last['staleness']
    for (task, _), (_, _, last) in history.lives.items()
    if task == 'worker 0'
  ] == [{'0': 9, '2': 3}]
  assert history.waited == {'worker 1': 1}
  assert {task for task, _ in history.lives} == {'ps 0', 'worker 0', 'worker 1'}
  faults = [
    (task, text) for _, task, text, is_mark in history.events if is_mark
  ]
  assert faults == [('worker 1', 'worker 1: killed by SIGKILL')]


def test_times_begin_with_the_first_step_of_the_run(logdir):
  history = html_report.History(metrics_file.iterate(str(logdir)))
  rates = history.curves['examples/s of each worker', 's']
  assert [x for x, _ in rates['worker 0']] == [0.0, 2.0, 4.0]
  # The start of its life was before.
  first, last, _ = history.lives['worker 0', '0']
  assert first < 0 and last == 5.0
  assert history.zero > 0


def test_curves_have_a_gap_where_a_life_has_ended(logdir):
  worker = metrics_file.Writer(str(logdir), 'worker 1', '2', host='h', pid=2)
  for step in 25, 40:
    worker.write(
      'means', step=step, epoch=1, steps=9, metrics={'loss': 1 / step}
    )
  history = html_report.History(metrics_file.iterate(str(logdir)))
  points = history.curves['loss', 'step']['worker 1']
  assert points[2:] == [(30, 0.03333333), None, (25, 0.04), (40, 0.025)]
  assert None not in history.curves['loss', 'step']['worker 0']


@pytest.mark.slow
def test_a_lone_point_has_its_number_and_steps_are_whole(tmp_path):
  worker = metrics_file.Writer(str(tmp_path), 'worker 0', '2', host='h', pid=2)
  worker.write('evaluation', split='test', step=2750, metrics={'auc': 0.8125})
  worker.write(
    'evaluation', split='validation', step=2750, metrics={'auc': 0.75}
  )
  page, words = draw(tmp_path)
  # In the legend, as they lie at the same step.
  assert 'test 0.8125' in words and 'validation 0.75' in words
  assert not re.search(r'\b27[45]\d\.\d', words)
  # Each chart is a file as well.
  [chart] = re.findall(r'download="auc.svg" href="[^,]*,([^"]*)"', page)
  chart = base64.b64decode(chart).decode()
  assert chart.startswith('<svg') and 'xmlns="http://www.w3.org/2000' in chart
  assert '0.8125' in chart


@pytest.mark.slow
def test_of_many_workers_the_legend_has_the_mean_and_the_splits(tmp_path):
  metrics = {'loss': 0.25}
  for i in range(10):
    worker = metrics_file.Writer(str(tmp_path), f'worker {i}', 'x', host='h')
    for step in 10, 20:
      worker.write('means', step=step, epoch=1, steps=9, metrics=metrics)
  worker.write('evaluation', split='test', step=20, metrics=metrics)
  _, words = draw(tmp_path)
  assert 'mean of 10 workers' in words and 'test 0.25' in words


@pytest.mark.slow
def test_pushes_that_all_have_no_staleness_are_no_chart(tmp_path):
  worker = metrics_file.Writer(str(tmp_path), 'worker 0', 'x', host='h', pid=1)
  worker.write('sample', state='training', step=1, staleness={'0': 5})
  assert 'pushes by staleness' not in draw(tmp_path)[1]
  worker.write('sample', state='training', step=2, staleness={'0': 5, '1': 1})
  assert 'pushes by staleness' in draw(tmp_path)[1]


def test_bytes_are_drawn_in_mb(tmp_path):
  ps = metrics_file.Writer(str(tmp_path), 'ps 0', 'x', host='h', pid=1)
  ps.write('sample', state='serving', rss_bytes=3e8, sent_bytes_per_sec=2.5e6)
  curves = html_report.History(metrics_file.iterate(str(tmp_path))).curves
  assert sorted(y for found in curves.values() for _, y in found['ps 0']) == [
    2.5,
    300.0,
  ]


@pytest.mark.parametrize(
  ('flags', 'setup'),
  [
    (
      '--strategy=ssp\n--model=cnn\n--dataset=mnist\n--ps_hosts=a:1\n'
      '--worker_hosts=b:1,b:2\n',
      'ssp, cnn on mnist, 1 ps, 2 workers',
    ),
    (
      '--strategy=ssp\n--model=mlp\n--problem=/a/<b>.py\n--dataset=mnist\n',
      'ssp, <b>.py',
    ),
  ],
)
def test_below_its_title_the_page_says_what_was_trained(tmp_path, flags, setup):
  (tmp_path / 'train.flags').write_text(flags)
  metrics_file.Writer(str(tmp_path), 'ps 0', 'a').write('event', event='x')
  _, words = draw(tmp_path)
  assert words.index(setup) < words.index('Curves')


@pytest.mark.slow
def test_a_name_of_a_metric_may_look_like_a_formula(tmp_path):
  for i in range(2):
    worker = metrics_file.Writer(str(tmp_path), f'worker {i}', 'a', host=f'{i}')
    worker.write('evaluation', split='test', step=1, metrics={'$x_{<': 1.0})
  page, words = draw(tmp_path)
  assert '$x_{<' in words and '$x_{<' not in page
  assert 'by the clock of its host' in words  # There are two.


@pytest.mark.slow
def test_of_a_run_that_has_hardly_begun_there_is_a_page_as_well(tmp_path):
  launcher = metrics_file.Writer(
    *(str(tmp_path), 'launcher', 'x'),
    **{'tasks': ['ps 0'], 'pid': 1},
    host='h',
  )
  launcher.write('event', event='started', about='ps 0', attempt=1)
  assert 'starting' in draw(tmp_path)[1]
  metrics_file.Writer(str(tmp_path), 'ps 0', 'a').write('event', event='x')
  assert 'ps 0' in draw(tmp_path)[1]
