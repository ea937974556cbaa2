from __future__ import annotations

import random
from array import array
from itertools import pairwise

import pytest
from router_radix_cache.tokens import PackedTokens
from router_radix_cache.tree import RadixTree

from .rollout import Rollout, ends_from_pieces, remaining_text, tokens_from_lists
from .structure import check_structure

PROMPT = "Question: say hello.\nAnswer:"


def tokens_of(pieces: list[str], sampled_from: int = 0, version: str | None = "v1", first_id: int = 1) -> PackedTokens:
    tokens = PackedTokens()
    ids = list(range(first_id, first_id + len(pieces)))
    ends = ends_from_pieces(piece.encode() for piece in pieces)
    tokens.add_context(ids[:sampled_from], ends[:sampled_from])
    base = tokens.byte_length
    tokens.add_sampled(
        ids[sampled_from:], [end - base for end in ends[sampled_from:]], [-0.5] * (len(ids) - sampled_from), version
    )
    return tokens


def test_a_trajectory_comes_back_with_the_sampled_ids() -> None:
    rollout = Rollout()
    rollout.generate(PROMPT, [" he", "llo wor", "ld"])
    assert rollout.retrieve(PROMPT + " hello world") == rollout.expected(("p", PROMPT), ("g", [" he", "llo wor", "ld"]))


def test_a_second_turn_reuses_the_ids_of_the_first_and_encodes_only_what_is_new() -> None:
    rollout = Rollout()
    rollout.generate(PROMPT, [" he", "llo"])
    rollout.encoded.clear()
    tail = "\nQuestion: again?\nAnswer:"
    sent = rollout.generate(PROMPT + " hello" + tail, [" ye", "s"])
    assert rollout.encoded == [tail]
    parts = [("p", PROMPT), ("g", [" he", "llo"]), ("p", tail)]
    assert sent == rollout.expected(*parts)[0]
    assert rollout.retrieve(PROMPT + " hello" + tail + " yes") == rollout.expected(*parts, ("g", [" ye", "s"]))


def test_each_of_eight_outputs_of_one_prompt_is_found_whole() -> None:
    rollout = Rollout()
    for number in range(8):
        rollout.generate(PROMPT, [" ans", "wer ", str(number)])
    for number in range(8):
        pieces = [" ans", "wer ", str(number)]
        assert rollout.retrieve(f"{PROMPT} answer {number}") == rollout.expected(("p", PROMPT), ("g", pieces))


@pytest.mark.parametrize("order", [1, -1])
def test_a_text_that_is_a_prefix_of_another_keeps_its_own_tokens(order: int) -> None:
    rollout = Rollout()
    outputs = [[" go"], [" goi", "ng ", "home"]][::order]
    for out in outputs:
        rollout.generate(PROMPT, out)
    for out in outputs:
        assert rollout.retrieve(PROMPT + "".join(out)) == rollout.expected(("p", PROMPT), ("g", out))
        assert not rollout.tree.match(PROMPT + "".join(out)).is_ambiguous


def test_equal_texts_of_different_ids_are_told_apart_by_rid_and_session_and_never_mixed() -> None:
    rollout = Rollout()
    rollout.generate(PROMPT, [" he", "llo"], rid="a", session_id="s1")
    rollout.generate(PROMPT, [" hel", "lo"], rid="b", session_id="s2", logprobs=[-0.01, -0.02])
    text = PROMPT + " hello"
    first = rollout.expected(("p", PROMPT), ("g", [" he", "llo"]))
    second = rollout.expected(("p", PROMPT), ("g", [" hel", "lo"]))
    assert rollout.retrieve(text, rid="a") == rollout.retrieve(text, session_id="s1") == first
    assert rollout.retrieve(text, rid="b") == rollout.retrieve(text, session_id="s2") == second
    assert rollout.retrieve(text) == second
    assert rollout.tree.match(text).is_ambiguous
    assert not rollout.tree.match(text, rid="a").is_ambiguous


def test_a_prompt_that_ends_inside_a_token_inherits_no_half_of_it() -> None:
    rollout = Rollout()
    rollout.generate("The cat sat", [" down"])
    assert rollout.generate("The ca", ["r st", "ops"]) == rollout.ids(["The", " ca"])
    assert rollout.retrieve("The car stops") == rollout.expected(("p", "The ca"), ("g", ["r st", "ops"]))
    assert rollout.retrieve("The cat sat down") == rollout.expected(("p", "The cat sat"), ("g", [" down"]))


def test_a_prompt_that_goes_on_inside_a_word_of_a_known_prompt_is_encoded_afresh() -> None:
    rollout = Rollout()
    rollout.generate("The cat sat", [" down"])
    assert rollout.generate("The cat satisfied", ["."]) == rollout.ids(["The", " cat", " satisfied"])


def test_a_prompt_that_is_sent_again_is_not_encoded_again() -> None:
    rollout = Rollout()
    rollout.generate(PROMPT, [" a"])
    rollout.encoded.clear()
    rollout.generate(PROMPT, [" b"])
    assert rollout.encoded == [""]


def test_text_that_splits_inside_characters_comes_back_exactly() -> None:
    rollout = Rollout()
    prompt = "写一个问候:"
    crab = "🦀".encode()
    rollout.generate(prompt, ["你", "好🦀", "é"])
    rollout.generate(prompt, ["你", "们好"])
    rollout.generate(prompt, ["你", crab[:1], crab[1:3], crab[3:] + b"!"], rid="crab")
    for out in (["你", "好🦀", "é"], ["你", "们好"]):
        assert rollout.retrieve(prompt + "".join(out)) == rollout.expected(("p", prompt), ("g", out))
    out = ["你", crab[:1], crab[1:3], crab[3:] + b"!"]
    assert rollout.retrieve(prompt + "你🦀!") == rollout.expected(("p", prompt), ("g", out))
    match = rollout.tree.match(prompt + "你🦀?")
    assert remaining_text(match) == "🦀?"
    assert match.matched_characters == len(prompt) + 1


def test_an_unknown_text_matches_nothing() -> None:
    match = Rollout().tree.match("never seen")
    assert (match.token_ids, match.loss_mask, match.logprobs, match.weight_versions) == ([], [], [], [])
    assert (match.matched_characters, match.is_complete, remaining_text(match)) == (0, False, "never seen")
    assert match.reusable().token_ids == match.packed().ids.tolist() == []


def test_a_sample_without_tokens_stores_nothing_and_raises_nothing() -> None:
    tree = RadixTree()
    assert tree.insert("", PackedTokens(), rid="r") is None
    assert tree.stats().trajectories == 0


def test_fewer_logprobs_than_ids_are_refused_and_leave_the_sequence_as_it_was() -> None:
    tokens = PackedTokens()
    tokens.add_context([1], [3])
    with pytest.raises(ValueError, match="1 logprobs for 2 sampled tokens"):
        tokens.add_sampled([2, 3], [2, 4], [-0.1])
    assert (len(tokens), tokens.spans, tokens.byte_length) == (1, [], 3)


def test_a_weight_version_may_be_missing() -> None:
    rollout = Rollout(keep_weight_versions=1)
    rollout.generate(PROMPT, [" ok"], version=None)
    rollout.generate("another", [" yes"], version="v9")
    assert rollout.retrieve(PROMPT + " ok")[3] == [None] * len(rollout.expected(("p", PROMPT), ("g", [" ok"]))[0])


def test_tokens_that_do_not_cover_the_text_are_refused() -> None:
    tree = RadixTree()
    with pytest.raises(ValueError, match="cover 3 of 4 bytes"):
        tree.insert("abcd", tokens_of(["ab", "c"]))
    assert tree.stats().segments == 0


def test_a_sequence_without_text_is_found_by_rid_alone() -> None:
    tree = RadixTree()
    tree.insert(None, tokens_from_lists([5, 6], [0, 0], [0, 1], [9.0, -0.5], [None, "v1"]), rid="r")
    match = tree.by_rid("r")
    assert match is not None
    assert (match.token_ids, match.loss_mask, match.logprobs) == ([5, 6], [0, 1], [0.0, -0.5])
    assert match.matched_characters == 0
    assert tree.match("").trajectory is None
    assert tree.by_rid("other") is None


def test_a_token_without_text_stays_with_the_output_it_ended() -> None:
    tree = RadixTree()
    tree.insert("ab", tokens_of(["a", "b", ""], 1), rid="r")
    assert tree.match("ab").token_ids == tree.match("ab and more").token_ids == [1, 2, 3]
    assert tree.match("ab and more").reusable().packed().ids.tolist() == [1, 2, 3]


def test_a_group_of_64_siblings_with_eight_equal_texts_comes_back_exactly_by_rid() -> None:
    source = random.Random(3)
    tree = RadixTree()
    words = [f" w{number}" for number in range(50)]
    prompt = [source.choice(words) for _ in range(300)]
    same = "".join(source.choice(words) for _ in range(200))
    wanted = {}
    for number in range(64):
        text = same if number % 8 == 0 else "".join(source.choice(words) for _ in range(200))
        cuts = sorted({0, len(text), *(source.randrange(len(text)) for _ in range(60))})
        pieces = [text[start:end] for start, end in pairwise(cuts)]
        tokens = PackedTokens()
        tokens.add_context(range(300), ends_from_pieces(piece.encode() for piece in prompt))
        ids = [source.randrange(150_000) for _ in pieces]
        logprobs = [-source.random() for _ in pieces]
        tokens.add_sampled(ids, ends_from_pieces(piece.encode() for piece in pieces), logprobs, f"v{number % 3}")
        tree.insert("".join(prompt) + text, tokens, rid=f"r{number}", session_id=f"s{number}")
        wanted[f"r{number}"] = ("".join(prompt) + text, [*range(300), *ids], [0.0] * 300 + logprobs, f"v{number % 3}")
    for rid, (text, ids, logprobs, version) in wanted.items():
        match = tree.match(text, rid=rid)
        assert (match.token_ids, match.logprobs, match.is_complete) == (ids, logprobs, True)
        assert match.loss_mask == [0] * 300 + [1] * (len(ids) - 300)
        assert match.weight_versions == [None] * 300 + [version] * (len(ids) - 300)
        assert tree.match(text).is_ambiguous == (int(rid[1:]) % 8 == 0)
        assert tree.match(text, session_id=f"s{rid[1:]}").token_ids == ids
    assert tree.token_count == 300 + sum(len(ids) - 300 for _, ids, _, _ in wanted.values())
    newest = tree.match(wanted["r56"][0], weight_version="v1")
    assert newest.trajectory is not None
    assert newest.trajectory.rid == "r40"


def test_siblings_of_equal_ids_share_them_and_keep_their_own_logprobs() -> None:
    rollout = Rollout()
    rollout.generate(PROMPT, [" a", " b"], rid="one", logprobs=[-0.1, -0.2])
    before = rollout.tree.stats()
    rollout.generate(PROMPT, [" a", " b"], rid="two", logprobs=[-0.1, -0.3], version="v2")
    assert rollout.tree.stats().segments == before.segments
    assert rollout.tree.stats().tokens == before.tokens
    assert rollout.retrieve(PROMPT + " a b", rid="one")[2][-2:] == [-0.1, -0.2]
    assert rollout.retrieve(PROMPT + " a b", rid="two")[2][-2:] == [-0.1, -0.3]
    assert rollout.retrieve(PROMPT + " a b", weight_version="v1")[3][-2:] == ["v1", "v1"]
    assert rollout.tree.match(PROMPT + " a b").is_ambiguous


def test_equal_samples_are_not_ambiguous() -> None:
    rollout = Rollout()
    for rid in ("one", "two"):
        rollout.generate(PROMPT, [" a", " b"], rid=rid)
    assert not rollout.tree.match(PROMPT + " a b").is_ambiguous


def test_a_session_stores_each_token_once_over_its_turns() -> None:
    rollout = Rollout()
    text = PROMPT
    for turn in range(30):
        out = [f" out{turn}", " and", " more"]
        rollout.generate(text, out, session_id="s", version=f"v{turn // 10}")
        text += "".join(out) + f"\ntool {turn}\n"
    match = rollout.tree.match(text, session_id="s")
    assert match.is_whole
    assert rollout.tree.token_count == match.token_count
    runs = [trajectory.runs for trajectory in rollout.tree._registry]
    assert sum(len(block.logprobs) for block in runs) == sum(match.loss_mask) == 90
    assert {version for version in match.weight_versions if version} == {"v0", "v1", "v2"}


def test_an_output_that_goes_on_without_new_context_joins_its_spans() -> None:
    rollout = Rollout()
    rollout.generate(PROMPT, [" one", " two"])
    rollout.generate(PROMPT + " one two", [" three"], logprobs=[-0.03])
    match = rollout.tree.match(PROMPT + " one two three")
    assert len(match.spans) == 1
    assert match.logprobs[-3:] == [-0.01, -0.02, -0.03]
    assert len(match.trajectory.runs.logprobs) == 1


def test_a_small_budget_evicts_the_first_turn_and_the_second_is_encoded_afresh() -> None:
    rollout = Rollout(max_tokens=64)
    rollout.generate(PROMPT, [" he", "llo"])
    for number in range(20):
        rollout.generate(f"filler {number}" + " x" * 45, [" y"])
        assert 0 <= rollout.tree.token_count <= 64
    rollout.encoded.clear()
    prompt = PROMPT + " hello\nQuestion: more?\nAnswer:"
    rollout.generate(prompt, [" fine"])
    assert rollout.encoded == [prompt]
    assert rollout.retrieve(prompt + " fine") == rollout.expected(("p", prompt), ("g", [" fine"]))


def test_a_trajectory_larger_than_the_bounds_is_not_kept() -> None:
    tree = RadixTree(max_tokens=3)
    assert tree.insert("abcd", tokens_of(list("abcd")), rid="r") is None
    assert (tree.token_count, tree.byte_count, tree.by_rid("r")) == (0, 0, None)


def test_bytes_are_bounded_too() -> None:
    tree = RadixTree(max_bytes=50_000)
    for number in range(100):
        tree.insert(f"{number:03}" + "x" * 997, tokens_of([f"{number:03}"] + ["x"] * 997), rid=str(number))
        assert tree.byte_count <= 50_000
    assert tree.by_rid("99") is not None
    assert tree.by_rid("0") is None
    assert tree.stats().dropped["lru"] > 90


def test_what_a_running_request_uses_is_not_evicted() -> None:
    tree = RadixTree(max_tokens=8, keep_weight_versions=1)
    tree.insert("abcd", tokens_of(list("abcd")), rid="held")
    hold = tree.hold(tree.match("abcd and more"))
    for number in range(5):
        tree.insert(f"{number}xyz", tokens_of([f"{number}", "x", "yz"], first_id=10 * number + 10), rid=f"r{number}")
        assert tree.by_rid("held") is not None
    tree.insert("zz", tokens_of(["z", "z"], version="v2", first_id=90), rid="new")
    assert tree.clear() == 1
    assert tree.match("abcd").is_complete
    hold.release()
    hold.release()
    assert tree.by_rid("held") is None
    assert tree.stats().dropped == {"lru": 4, "weight_version": 2, "cleared": 1}


def test_a_hold_of_nothing_and_a_hold_as_a_block() -> None:
    tree = RadixTree()
    with tree.hold(tree.match("nothing")):
        tree.insert("ab", tokens_of(["a", "b"]), rid="r")
    with tree.hold(tree.match("ab")):
        assert tree.clear() == 0
    assert tree.clear() == 1


def test_what_was_not_used_for_its_time_goes() -> None:
    now = [0.0]
    tree = RadixTree(ttl_s=10.0, clock=lambda: now[0])
    tree.insert("ab", tokens_of(["a", "b"]), rid="one")
    now[0] = 6.0
    tree.insert("ac", tokens_of(["a", "c"], first_id=5), rid="two")
    tree.match("ab", rid="one")
    now[0] = 17.0
    tree.expire()
    assert tree.stats().trajectories == 0
    assert tree.stats().dropped == {"ttl": 2}


def test_only_the_newest_weight_versions_are_kept_and_a_late_old_answer_is_not() -> None:
    tree = RadixTree(keep_weight_versions=2)
    for number in range(4):
        version = f"step-{10 * number}"
        tree.insert(f"{number}", tokens_of([f"{number}"], version=version, first_id=number), rid=version)
    assert [tree.by_rid(f"step-{10 * number}") is not None for number in range(4)] == [False, False, True, True]
    assert tree.insert("late", tokens_of(["late"], version="step-0", first_id=9), rid="late") is None
    assert tree.match("late").trajectory is None


def test_a_first_turn_goes_with_its_weight_version_and_the_second_keeps_its_tokens() -> None:
    rollout = Rollout(keep_weight_versions=1)
    rollout.generate(PROMPT, [" one"], rid="first")
    rollout.generate(PROMPT + " one\nmore", [" two"], rid="second", version="v2", logprobs=[-0.5])
    assert rollout.tree.by_rid("first") is None
    match = rollout.tree.by_rid("second")
    assert match.logprobs[-1] == -0.5
    assert [version for version in match.weight_versions if version] == ["v1", "v2"]
    check_structure(rollout.tree)


def test_long_segments_that_are_split_again_and_again_stay_exact_and_are_not_copied_each_time() -> None:
    tree = RadixTree()
    long = [f"{number:04}" for number in range(4000)]
    tree.insert("".join(long), tokens_of(long), rid="long")
    for count in range(1, 400):
        branch = [*long[:count], "zz"]
        tokens = tokens_from_lists(
            [*range(1, count + 1), 99_999],
            ends_from_pieces(p.encode() for p in branch),
            [1] * (count + 1),
            [-0.5] * (count + 1),
            ["v1"] * (count + 1),
        )
        tree.insert("".join(branch), tokens, rid=f"r{count}")
    check_structure(tree)
    leaf = next(t for t in tree._registry if t.rid == "long").segment
    assert isinstance(leaf.label, memoryview)
    assert len(leaf.label.obj) < 1.2 * len(leaf.label)
    match = tree.match("".join(long) + "and more")
    assert match.token_ids == list(range(1, 4001))
    for count in range(1, 400):
        assert tree.match("".join(long[:count]) + "zz").token_ids[-2:] == [count, 99_999]


def test_segments_are_joined_again_when_their_branches_are_gone() -> None:
    now = [0.0]
    tree = RadixTree(ttl_s=10.0, clock=lambda: now[0])
    tree.insert("abcdef", tokens_of(list("abcdef")), rid="stays")
    for number, text in enumerate(["abx", "abcdy", "az"]):
        ids = [*range(1, len(text)), 50 + number]
        tree.insert(
            text,
            tokens_from_lists(ids, range(1, len(text) + 1), [1] * len(ids), [-0.5] * len(ids), ["v1"] * len(ids)),
        )
    assert tree.stats().segments == 7
    now[0] = 6.0
    match = tree.match("abcdef")
    now[0] = 12.0
    tree.expire()
    assert tree.stats().segments == 1
    assert match.token_ids == tree.match("abcdef").token_ids == [1, 2, 3, 4, 5, 6]


def test_a_match_reads_the_same_after_its_trajectory_is_gone() -> None:
    tree = RadixTree()
    tree.insert("abcd", tokens_of(list("abcd")), rid="r")
    match = tree.match("abcd")
    tree.clear()
    tree.insert("abx", tokens_of(["ab", "x"], first_id=7))
    assert match.token_ids == [1, 2, 3, 4]
    assert match.logprobs == [-0.5] * 4


def test_logprobs_come_back_bit_by_bit() -> None:
    values = [-1e-05, -0.1 - 2**-50, float("-inf"), -9999.0]
    tokens = PackedTokens()
    tokens.add_sampled([1, 2, 3, 4], [1, 2, 3, 4], values, None)
    tree = RadixTree()
    tree.insert("abcd", tokens)
    assert array("d", tree.match("abcd").logprobs).tobytes() == array("d", values).tobytes()
