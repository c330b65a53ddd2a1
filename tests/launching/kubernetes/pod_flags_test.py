import pytest
from absl import flags

from distmnist.launching.kubernetes import pod_flags


def test_what_a_cluster_asks_for_is_written_as_kubernetes_has_it(set_flags):
  set_flags(
    '--kube_node_selector=pool=gpu,example.com/zone=',
    '--kube_tolerations=nvidia.com/gpu,team=a:NoExecute,x=:NoSchedule,y=1',
    '--kube_priority_class=high',
    '--kube_pull_secrets=one,two',
  )
  assert pod_flags.make_pod_fields() == {
    'nodeSelector': {'pool': 'gpu', 'example.com/zone': ''},
    'tolerations': [
      {'key': 'nvidia.com/gpu', 'operator': 'Exists'},
      {'key': 'team', 'operator': 'Equal', 'value': 'a', 'effect': 'NoExecute'},
      {'key': 'x', 'operator': 'Equal', 'value': '', 'effect': 'NoSchedule'},
      {'key': 'y', 'operator': 'Equal', 'value': '1'},
    ],
    'priorityClassName': 'high',
    'imagePullSecrets': [{'name': 'one'}, {'name': 'two'}],
  }


@pytest.mark.parametrize(
  ('word', 'expected'),
  [('none', ()), ('10.0.0.0/8,fd00::/8', ('10.0.0.0/8', 'fd00::/8'))],
)
def test_egress_is_none_or_networks(set_flags, word, expected):
  set_flags(f'--kube_egress={word}')
  assert pod_flags.choose()['egress'] == expected


def test_the_other_rules_are_passed_on(set_flags, tmp_path):
  pytest.importorskip('yaml')
  (tmp_path / 'p.yaml').write_text('kind: Pod')
  set_flags(
    *('--kube_pull_policy=Never', '--kube_tmp_size=1Gi', '--kube_queue=team'),
    *('--kube_ttl_secs=0', '--kube_deadline_secs=60'),
    f'--kube_patch={tmp_path}/p.yaml',
  )
  chosen = pod_flags.choose()
  assert chosen['pull_policy'] == 'Never'
  assert chosen['tmp_size'] == '1Gi'
  assert chosen['queue'] == 'team'
  assert (chosen['ttl_secs'], chosen['deadline_secs']) == (0, 60)
  assert [patch.kind for patch in chosen['patches']] == ['Pod']


@pytest.mark.parametrize(
  'word',
  [
    *('--kube_node_selector=pool', '--kube_node_selector=pool=a b'),
    *('--kube_tolerations=a:Never', '--kube_tolerations==a'),
    *('--kube_priority_class=High', '--kube_pull_secrets=a_b'),
    *('--kube_pull_policy=never', '--kube_queue=a/b', '--kube_ttl_secs=-1'),
    *('--kube_deadline_secs=0', '--kube_tmp_size=0'),
    *('--kube_egress=10.0.0.1/8', '--kube_egress=everything'),
    *('--kube_egress=none,10.0.0.0/8', '--kube_egress='),
  ],
)
def test_what_kubernetes_would_refuse_is_refused_here(set_flags, word):
  name = word.removeprefix('--').partition('=')[0]
  with pytest.raises(flags.IllegalFlagValueError, match=name):
    set_flags(word)
