"""The Ray engine on a cluster of this machine: the same bytes as a local run."""

from __future__ import annotations

import gzip

import pytest

from accel_bridge.pretrain.preprocess import planner as blocks_module
from accel_bridge.pretrain.preprocess import ray_engine as ray_engine_module

from .support import TEXTS, assert_same_pair, write_jsonl

pytestmark = pytest.mark.slow  # starts Ray
FLAGS = ["--append-eod", "--workers", 2, "--block-bytes", 2000]
RAY = ["--engine", "ray", "--ray-address", "local", "--workers", 1000]
ROWS = [{"text": f"{i} {TEXTS[i % len(TEXTS)]}"} for i in range(300)]


@pytest.fixture(autouse=True)
def _no_variable_of_ray_stays(monkeypatch):
    """Ray sets it in this process; a later test would pass it on."""
    monkeypatch.setenv("PYTHONBREAKPOINT", "0")


def test_the_same_bytes_in_the_same_order(tmp_path, gpt2, run):
    source = write_jsonl(tmp_path / "a.jsonl", ROWS)
    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress(source.read_bytes()))
    for prefix, engine in (("ref", []), ("ours", RAY)):
        result = run(
            "--input", source, packed, "--output-prefix", tmp_path / prefix, *gpt2.flags, *FLAGS,
            *engine,
        )  # fmt: skip
        assert result.code == 0, result.err
        assert "documents  600" in result.out
        assert "gigatoken" in result.out
    assert_same_pair(tmp_path / "ours", tmp_path / "ref")
    import ray

    assert not ray.is_initialized()


@pytest.mark.parametrize(("asked", "cpus", "started"), [(1, 4, 1), (4, 4, 4), (10**9, 4, 4)])
def test_not_more_workers_than_the_cluster_has_cpus(capsys, asked, cpus, started):
    """Those without a CPU would never start, and the run would wait for them."""
    assert ray_engine_module._sensible_workers(asked, cpus) == started
    assert ("more than the cluster's 4 CPUs" in capsys.readouterr().err) == (asked > cpus)


def test_no_cluster(tmp_path, prepare):
    source = write_jsonl(tmp_path / "a.jsonl", ROWS[:2])
    result = prepare(source, "--engine", "ray", "--ray-address", "127.0.0.1:1", prefix="o")
    assert result.code == 2
    assert "no Ray cluster can be reached" in result.err


def test_a_dead_actor_is_an_error(monkeypatch):
    class Dead(ray_engine_module._Actor):
        def encode(self, block):
            import os

            os._exit(1)

    monkeypatch.setattr(ray_engine_module, "_Actor", Dead)
    ray_engine_module.connect("local")
    pool = ray_engine_module.RayPool(None, 1)
    task = ray_engine_module.Task(0, 0, blocks_module.LinesBlock(b"{}\n"))
    try:
        with pytest.raises(ray_engine_module.WorkerError, match="Ray cluster died"):
            list(pool.run(iter([task])))
    finally:
        pool.close()
