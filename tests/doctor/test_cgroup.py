"""Control groups that limit RDMA, of both versions."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("limit", "level", "what"),
    [
        ("hca_object=100", "warning", "room for 30 remote ranks"),
        ("hca_object=10", "problem", "room for 0 remote ranks"),
        ("hca_handle=2", "warning", "processes of this job can open mlx5_0"),
        ("hca_handle=0", "problem", "processes of this job can open mlx5_0"),
    ],
)
def test_few_objects(healthy, limit, level, what):
    file = "sys/fs/cgroup/user.slice/rdma.max"
    healthy.write(f"mlx5_0 {limit}", file)
    found = healthy.ill("cgroup", level)
    assert (found.where, found.got, found.wanted) == (f"/{file}", limit, "max")
    assert what in found.what
    assert found.cure == f"echo 'mlx5_0 {limit.split('=')[0]}=max' > /{file}"


def test_enough_objects(healthy):
    healthy.write("mlx5_0 hca_handle=5000 hca_object=100000", "sys/fs/cgroup/user.slice/rdma.max")
    assert healthy.examine("cgroup") == []


def test_the_first_version_of_control_groups(healthy):
    healthy.write("9:memory:/a\n4:rdma:/job/1", "proc/self/cgroup")
    healthy.write("mlx5_0 hca_object=20", "sys/fs/cgroup/rdma/job/rdma.max")
    healthy.write("mlx5_0 hca_object=20", "sys/fs/cgroup/rdma/a/rdma.max")
    assert healthy.ill("cgroup", "warning").where == "/sys/fs/cgroup/rdma/job/rdma.max"
