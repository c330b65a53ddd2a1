"""split_curves: what is drawn, from lines as tasks write them."""

from tests.support.runner import import_benchmark

split_curves = import_benchmark('split_curves')


def sample(time, state, **numbers):
  return {'kind': 'sample', 'time': time, 'state': state, **numbers}


def make_lines():
  judged = {'kind': 'evaluation', 'split': 'validation', 'time': 16.0}
  ps = [
    sample(t, 'serving', sent_bytes_per_sec=1e6 * t) for t in (9.0, 12.0, 17.0)
  ]
  lines = {
    'worker 0': [
      {'kind': 'start', 'time': 8.0},
      sample(9.0, 'starting', loss=None),
      sample(10.0, 'training', loss=None),
      sample(12.0, 'training', loss=2.0),
      sample(14.0, 'training', loss=1.0),
      {**judged, 'metrics': {'accuracy': 0.5}},
      sample(18.0, 'ending', loss=0.5),
    ],
    'ps 0': ps,
    'ps 1': ps[:2],
  }
  return [{**x, 'task': task} for task, found in lines.items() for x in found]


def test_curves_begin_at_the_first_step_and_end_with_the_last_judgement():
  assert split_curves.find_curves(make_lines()) == {
    'loss': [(2.0, 2.0), (4.0, 1.0)],
    'validation accuracy': [(6.0, 0.5)],
    'ps 0': [(2.0, 12.0)],
    'ps 1': [(2.0, 12.0)],
  }


def test_each_case_is_a_line_in_each_panel(tmp_path):
  curves = split_curves.find_curves(make_lines())
  figure = split_curves.draw({'before': curves, 'after': curves}, 'title')
  assert [axes.get_title('left') for axes in figure.axes] == [
    *('loss of worker 0', 'validation accuracy'),
    *('ps 0 sends, MB/s', 'ps 1 sends, MB/s'),
  ]
  for axes in figure.axes:
    assert [len(line.get_xdata()) > 0 for line in axes.lines][:2] == [True] * 2
  figure.savefig(tmp_path / 'it.png')
  assert (tmp_path / 'it.png').stat().st_size > 10_000
