"""Each file of configs/ is understood, and says what it is for."""

import pytest

from tests.support.paths import REPO

FOLDER = REPO / 'configs'
CONFIGS = sorted(FOLDER.rglob('*.flags'))


@pytest.mark.parametrize(
  'path', CONFIGS, ids=lambda path: str(path.relative_to(FOLDER))
)
def test_a_config_is_understood(tasks, tmp_path, path):
  assert path.read_text().startswith('# ')
  task = tasks.run(tmp_path / 'log', f'--flagfile={path}', '--help')
  assert task.code == 0, task.output
