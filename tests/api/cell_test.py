"""cell: plain lines where there is no notebook, and a curve where there is."""

import sys
import types

import pytest

from distmnist.api import cell
from distmnist.api import curve as curve_lib


def make_ipython(shell):
  return types.SimpleNamespace(get_ipython=lambda: shell)


@pytest.mark.parametrize('shell', [None, types.SimpleNamespace()])
def test_a_terminal_has_plain_lines(monkeypatch, shell):
  monkeypatch.setitem(sys.modules, 'IPython', make_ipython(shell))
  assert cell.make_on_line(curve_lib.Curve()) is print


def test_a_cell_has_one_picture_that_grows(monkeypatch, capsys):
  pytest.importorskip('matplotlib')
  drawn = []

  class Handle:
    def update(self, figure):
      drawn.append(('update', len(figure.axes[0].lines[0].get_xdata())))

  def show(figure, display_id):
    drawn.append(('new', len(figure.axes[0].lines[0].get_xdata())))
    return Handle()

  ipython = make_ipython(types.SimpleNamespace(kernel=True))
  ipython.version_info = 9, 0  # Matplotlib looks at it.
  ipython.display = types.SimpleNamespace(display=show)
  monkeypatch.setitem(sys.modules, 'IPython', ipython)
  monkeypatch.setattr(cell, '_SECS', 0)
  curve = curve_lib.Curve()
  on_line = cell.make_on_line(curve)
  lines = [
    *('starting', 'step 1/9  cost 3', 'step 5/9  cost 2', 'step 9/9  cost 1'),
    'report  here',
  ]
  for line in lines:
    curve.take(line)
    on_line(line)
  # One point is not yet a curve.
  assert drawn == [('new', 2), ('update', 3)]
  assert capsys.readouterr().out.splitlines() == lines
