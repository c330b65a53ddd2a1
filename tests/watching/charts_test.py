"""Charts: what is drawn where, as SVG."""

import re
from xml.etree import ElementTree

import pytest

from distmnist.watching import charts


def parse(text):
  """Returns the elements of the SVG in `text`, a list."""
  svg = text[: text.index('</svg>') + len('</svg>')]
  return list(ElementTree.fromstring(svg).iter())


def find(text, tag):
  return [each for each in parse(text) if each.tag == tag]


def test_a_line_a_series_with_a_place_a_point():
  text = charts.make_lines(
    'cost <1>', {'worker 0': [(0, 2.0), (10, 1.0)], 'b': [], 'c': [(5, 0)]}, 's'
  )
  first, second = find(text, 'polyline')
  assert first.get('data-name') == 'worker 0'
  (x0, y0), (x1, y1) = [
    tuple(map(float, place.split(','))) for place in first.get('points').split()
  ]
  assert (x0, x1) == (56, 448)
  assert y0 == 28 < y1 == pytest.approx((28 + 206) / 2)
  assert second.get('data-name') == 'c'
  assert len(find(text, 'circle')) == 1  # A line of one point is not seen.
  texts = [each.text for each in find(text, 'text')]
  assert texts[0] == 'cost <1>' and texts[-1] == 's'
  assert {'0', '2', '4', '10'} <= set(texts)
  assert 'b</span>' not in text


def test_without_a_point_there_is_no_chart():
  assert charts.make_lines('x', {'a': []}, 's') == ''
  assert charts.make_bars('x', {}, 's') == ''


def test_many_points_are_thinned_and_the_last_one_stays():
  points = [(i, i) for i in range(1001)]
  thin = charts.thin(points)
  assert len(thin) <= 400 and thin[-1] == (1000, 1000)
  assert charts.thin(points[:7]) == points[:7]


@pytest.mark.parametrize('y', [0, 5, -3])
def test_a_flat_line_can_be_drawn(y):
  (line,) = find(charts.make_lines('x', {'a': [(1, y)] * 2}, 's'), 'polyline')
  assert 'nan' not in line.get('points')


def test_a_bar_a_number_and_the_rest_in_one():
  text = charts.make_bars('staleness', {0: 4, 2: 2}, 'updates')
  heights = [float(bar.get('height')) for bar in find(text, 'rect')]
  assert heights == [178, 89]
  text = charts.make_bars('staleness', dict.fromkeys(range(100), 1), 'updates')
  bars = find(text, 'rect')
  assert len(bars) == 30
  assert bars[-1][0].text == '≥29: 71'


def test_spans_and_marks_stand_in_the_row_of_their_task():
  text = charts.make_spans(
    'lives',
    {'ps 0': [(0, 10, 'a')], 'worker 0': [(0, 4, 'b'), (6, 10, 'c')]},
    [('worker 0', 4, 'killed'), (None, 9, 'asked to stop')],
    10,
  )
  rects = find(text, 'rect')
  assert [rect[0].text for rect in rects] == ['a', 'b', 'c']
  assert rects[1].get('y') == rects[2].get('y') != rects[0].get('y')
  killed, stop = [p for p in find(text, 'path') if p.get('class') == 'mark']
  end_of_b = float(rects[1].get('x')) + float(rects[1].get('width'))
  assert float(re.match(r'M([\d.]+)', killed.get('d'))[1]) == pytest.approx(
    end_of_b, abs=0.2
  )
  assert stop[0].text == 'asked to stop'
