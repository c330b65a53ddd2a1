import dataclasses

import pytest

from tests.support.manifests import make_options


def test_options_are_chosen_once():
  options = make_options()
  with pytest.raises(dataclasses.FrozenInstanceError):
    options.gpus = 1


def test_what_a_cluster_asks_for_is_asked_for_by_nobody_at_first():
  options = make_options()
  assert options.pod_fields == {}
  assert options.tmp_size == '2Gi'
  assert options.patches == ()
  assert (options.queue, options.egress, options.pull_policy) == (None,) * 3
