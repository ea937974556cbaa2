"""What must hold inside a radix tree at any time."""

from __future__ import annotations

from router_radix_cache.segments import Segment
from router_radix_cache.trajectory import TRAJECTORY_BYTES
from router_radix_cache.tree import RadixTree


def check_structure(tree: RadixTree) -> None:
    """Every account and pointer of the tree is what walking over it gives."""
    size, runs = 0, {}
    for paths in (tree._texted, tree._untexted):
        segments = list(below(paths.root))
        assert len(segments) == paths.segments
        assert sum(segment.token_count for segment in segments) == paths.tokens
        assert sum(segment.byte_count for segment in segments) == paths.bytes
        size += paths.bytes
        for segment in segments:
            assert segment.children or segment.trajectories
            assert segment.trajectories or sum(1 for _ in segment.each_child()) > 1
            assert {len(key) for key in segment.children} == set(segment.key_lengths)
            assert len(segment.ids) == 4 * len(segment.ends)
            newest = max(trajectory.serial for part in [segment, *below(segment)] for trajectory in part.trajectories)
            assert segment.newest is not None
            assert segment.newest.serial == newest
            if not segment.children and not segment.is_held:
                assert segment.entry is not None
            for child in segment.each_child():
                assert child.parent is segment
    for trajectory in tree._registry:
        for block in trajectory.runs.chain():
            runs[id(block)] = block
    assert tree.byte_count >= size
    assert tree._own_bytes == TRAJECTORY_BYTES * len(tree._registry) + sum(block.byte_count for block in runs.values())


def below(segment: Segment):
    for child in segment.each_child():
        yield child
        yield from below(child)
