"""The page of a run: whole, without a network, and as a browser shows it."""

import html.parser
import itertools
import json
import re
import shutil
import subprocess

import pytest

from distmnist.watching import html_report, metrics_file


class Page(html.parser.HTMLParser):
  """What a page has: its words, its curves, and all that it refers to."""

  def __init__(self, text):
    super().__init__()
    self.words, self.curves, self.links, self.tags = [], {}, [], []
    self.feed(text)

  def handle_starttag(self, tag, attributes):
    found = dict(attributes)
    self.tags.append(tag)
    self.links += [found[n] for n in ('src', 'href') if n in found]
    if tag == 'polyline':
      name, points = found['data-name'], found['points'].split()
      self.curves.setdefault(name, []).append(len(points))

  def handle_data(self, data):
    self.words.append(data)

  @property
  def text(self):
    return ' '.join(' '.join(self.words).split())


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
        cost=1 / step,
        unit='images',
        examples_per_sec=100.0,
        staleness={'0': 3, '2': 1},
        staleness_mean=0.5,
        local_steps=step,
      )
  ps.write('sample', state='serving', waiting=['worker 1'], rss_bytes=5)
  launcher.write(
    'event', event='ended', about='worker 1', code=-9, text='killed by SIGKILL'
  )
  worker.write('event', event='wait', text='no step for 10 s: <ps 0>')
  worker.write('evaluation', split='test', step=30, metrics={'accuracy': 0.5})
  return folder


def test_the_page_has_all_and_refers_to_nothing(logdir):
  path = html_report.write(str(logdir))
  text = (logdir / 'report.html').read_text('utf-8')
  assert path == f'{logdir}/report.html'
  page = Page(text)
  assert page.links == [] and not {'script', 'link', 'img'} & set(page.tags)
  assert not re.search(r'https?:|url\(|@import', text)
  # Cost over steps, and cost, images/s, staleness over time.
  assert page.curves['worker 0'] == page.curves['worker 1'] == [3] * 4
  assert page.curves['test'] == [1]
  for words in (
    *('a <run>', '--model=cnn --x=<b>', 'killed by SIGKILL'),
    *('worker 1: no step for 10 s: <ps 0>', 'staleness of worker 1'),
    *('tensorflow 2.21.0; on h; begun ', 'worker 1 100 %'),
  ):
    assert words in page.text, words


def test_a_live_task_whose_clock_is_behind_is_not_silent(tmp_path):
  own = {'task': 'worker 0', 'life': 'a', 'time': 5.0}
  lines = (
    own | {'kind': 'start', 'host': 'h', 'pid': 1},
    own | {'kind': 'sample', 'state': 'training', 'step': 3},
  )
  (tmp_path / 'metrics' / 'worker_0').mkdir(parents=True)
  text = ''.join(f'{json.dumps(line)}\n' for line in lines)
  (tmp_path / 'metrics' / 'worker_0' / 'metrics.jsonl').write_text(text)
  html_report.write(str(tmp_path))
  text = Page((tmp_path / 'report.html').read_text('utf-8')).text
  assert 'training' in text and 'silent' not in text


def test_of_several_hosts_the_page_says_whose_clock_counts(logdir):
  said = 'by the clock of its host, one of h, other: if a clock is wrong'
  lines = metrics_file.read(logdir)
  assert said not in Page(html_report.make(logdir, lines, '')).text
  lines[0]['host'] = 'other'
  assert said in Page(html_report.make(logdir, lines, '')).text


def test_where_nothing_ran_there_is_no_page(tmp_path):
  assert html_report.write(str(tmp_path)) is None
  assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_browser_shows_its_words_and_draws_its_curves(logdir, tmp_path):
  browser = shutil.which('chromium') or shutil.which('google-chrome')
  if not browser:
    pytest.skip('no Chromium on this machine')
  pyplot = pytest.importorskip('matplotlib.image')
  html_report.write(str(logdir))
  picture = tmp_path / 'page.png'
  flags = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm']
  flags += [f'--user-data-dir={tmp_path}/profile', '--window-size=1000,2400']
  at = (logdir / 'report.html').as_uri()

  def run(*more):
    done = subprocess.run(
      [browser, *flags, *more, at], capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    return done.stdout

  page = Page(run('--dump-dom'))
  assert page.curves['worker 1'] == [3] * 4
  assert 'staleness of worker 0' in page.text
  run(f'--screenshot={picture}')
  pixels = (pyplot.imread(str(picture))[:, :, :3] * 255).round().astype(int)

  def count(colour):
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return int((abs(pixels - wanted).sum(2) < 30).sum())

  assert count('#1f77b4') > 500  # Lines of worker 0, and bars.
  assert count('#d62728') > 100  # Lines of worker 1, and the mark of its end.
  assert count('#9ecae1') > 500  # Lives.
