"""Clicks: a net comes near the best AUC that there can be."""

import json

import pytest

from tests.support import programs


@pytest.mark.daily
@pytest.mark.slow
def test_dlrm_comes_near_the_best_auc(tmp_path):
  # In lock-step, as a busy machine makes gradients late. The seed matters: 0
  # draws first weights with which dlrm stays 0.009 below the best.
  programs.run(
    *('distmnist.launch', '--num_ps=1', '--num_workers=2', '--'),
    *('--problem=clicks', '--clicks_rows=10', '--clicks_examples=600000'),
    *('--optimizer=adam', '--learning_rate=0.01', '--epochs=1'),
    *('--lr_schedule=exponential', '--lr_schedule_unit=epochs'),
    *('--lr_decay_steps=1', '--lr_decay_rate=0.02', '--batch_size=128'),
    *('--strategy=sync_sgd', '--seed=1', f'--logdir={tmp_path}'),
  )
  metrics = json.loads((tmp_path / 'report.json').read_text())['test_metrics']
  assert 0.8 < metrics['best_auc'] < 0.9
  # 0.0026 was measured; 0.0022 and 0.0019 with seeds 2 and 3. 3,000,000
  # examples, and async_sgd: docs/sparse_tables.md.
  assert metrics['best_auc'] - metrics['auc'] < 0.006
