"""The identity of a task: long texts are cut short."""

from distmnist.cluster import identity


def test_who_is_told_nothing_is_alone():
  nobody = identity.Identity('TF_CONFIG')
  assert not nobody.ps_hosts and not nobody.worker_hosts


def test_what_is_long_is_shown_cut():
  assert identity.short.repr('a') == "'a'"
  assert len(identity.short.repr('a' * 1000)) < 100
