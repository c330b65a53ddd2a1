"""Clicks: a net comes near the best AUC that there can be."""

import json

import pytest

from tests.support import programs


@pytest.mark.slow
@pytest.mark.parametrize(
  'words', [['--strategy=sync_sgd', '--batch_size=128'], ['--batch_size=256']]
)
def test_dlrm_comes_near_the_best_auc(tmp_path, words):
  programs.run(
    *('distmnist.launch', '--num_ps=1', '--num_workers=2', '--'),
    *('--problem=clicks', '--clicks_rows=10', '--clicks_examples=600000'),
    *('--optimizer=adam', '--learning_rate=0.01', '--epochs=1'),
    *('--lr_schedule=exponential', '--lr_schedule_unit=epochs'),
    *('--lr_decay_steps=1', '--lr_decay_rate=0.02', *words),
    f'--logdir={tmp_path}',
  )
  metrics = json.loads((tmp_path / 'report.json').read_text())['test_metrics']
  assert 0.8 < metrics['best_auc'] < 0.9
  # 0.0021 and 0.0029 were measured: with 3,000,000 examples it is half that.
  assert metrics['best_auc'] - metrics['auc'] < 0.006
