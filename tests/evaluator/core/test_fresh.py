"""Content that no call has seen, and that is still what the problem's inputs are."""

from __future__ import annotations

import contextlib

import pytest
import torch

from kernelevo_evaluator.referee.fresh import RUN, SETS, Drawn, Mixer, Unseen

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]


def real_sets(numel=500):
    generator = torch.Generator().manual_seed(5)
    return [
        [
            torch.randn(numel, generator=generator),
            torch.randint(0, 1000, (numel,), generator=generator),
            torch.randn(3, generator=generator).to(torch.bfloat16),
        ]
        for _ in range(SETS)
    ]


def key(content):
    return tuple(bytes(t.view(torch.uint8).numpy().data) for t in content)


def test_contents_never_repeat():
    mixer = Mixer(real_sets())
    seen = {key(mixer.content(mixer.draw(1)[0])) for _ in range(600)}
    assert len(seen) == 600
    assert not seen & {key(tensors) for tensors in real_sets()}


def test_every_element_comes_from_a_real_set_at_its_own_place():
    sets = real_sets()
    mixer = Mixer(sets)
    for _ in range(20):
        for index, tensor in enumerate(mixer.content(mixer.draw(1)[0])):
            possible = torch.stack([tensors[index] for tensors in sets])
            assert bool((possible == tensor).any(dim=0).all())


def test_all_sets_are_used_throughout():
    """No long stretch of a content is one that was seen before."""
    sets = real_sets(4096)
    mixer = Mixer(sets)
    for _ in range(20):
        content = mixer.content(mixer.draw(1)[0])[0]
        for rows in zip(*[t[0].split(256) for t in sets], content.split(256), strict=True):
            assert not any(torch.equal(rows[-1], row) for row in rows[:-1])


def test_a_recipe_makes_the_same_content_again():
    mixer = Mixer(real_sets())
    recipe = mixer.draw(1)[0]
    into = [torch.empty_like(t) for t in mixer.content(recipe)]
    mixer.fill([(recipe, into)])
    assert key(into) == key(mixer.content(recipe))


def test_two_mixers_differ():
    recipes = [Mixer(real_sets()) for _ in range(2)]
    assert recipes[0].draw(1) != recipes[1].draw(1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("numel", [0, 1, 7])
def test_small_and_odd_tensors(dtype, numel):
    sets = [[torch.full((numel,), k).to(dtype)] for k in range(SETS)]
    mixer = Mixer(sets)
    for _ in range(40):
        assert mixer.content(mixer.draw(1)[0])[0].shape == (numel,)


class Drawing:
    """A reference's side of `Drawn`: an ordered tensor for every seed, taken only while it runs."""

    def __init__(self):
        self.running = False
        self.runs = 0

    def take(self, seed):
        assert self.running, "a frozen runner was asked"
        return [torch.randn(40, generator=torch.Generator().manual_seed(seed)).sort().values]

    @contextlib.contextmanager
    def run(self):
        before, self.running = self.running, True
        self.runs += 1
        yield
        self.running = before


def test_contents_never_repeat_where_elements_cannot_be_mixed():
    drawing = Drawing()
    drawn = Drawn(drawing.take, drawing.run, 0.0)
    recipes = [drawn.draw(1)[0] for _ in range(60)]
    targets = [[torch.empty(40)] for _ in recipes]
    drawn.fill(zip(recipes, targets, strict=True))
    assert drawing.runs == 1, "the reference is let run once for a whole block"
    assert len({key(target) for target in targets}) == 60
    for recipe, target in zip(recipes, targets, strict=True):
        assert key(drawn.content(recipe)) == key(target)
        assert torch.equal(target[0], target[0].sort().values)


def test_no_tensors_at_all():
    """A problem without inputs, accepted with a mark: there is nothing to mix, and nothing to wait for."""
    mixer = Mixer([[] for _ in range(SETS)])
    assert [mixer.content(mixer.draw(1)[0]) for _ in range(50)] == [[]] * 50


@pytest.mark.parametrize("woven", [False, True])
def test_contents_of_few_elements_repeat_only_when_there_are_no_more(woven: bool):
    """Of 10 elements from two sets or four there are at least 1024 contents; of one element as many as there are sets."""
    mixer = Mixer([[torch.rand(10) + number] for number in range(SETS)], woven=woven)
    assert len({key(mixer.content(mixer.draw(1)[0])) for _ in range(300)}) == 300
    single = Mixer([[torch.rand(1) + number] for number in range(SETS)], woven=woven)
    assert len({key(single.content(single.draw(1)[0])) for _ in range(100)}) == SETS


class TestWoven:
    """What a GPU's contents are made by, on the processor."""

    @staticmethod
    def mixer(*lengths: int) -> Mixer:
        return Mixer([[torch.rand(length) + number for length in lengths] for number in range(SETS)], woven=True)

    @pytest.mark.parametrize("numel", [4096, 5001, 8192, 12])
    def test_a_ring_is_filled_with_what_the_recipes_say(self, numel: int):
        mixer = self.mixer(numel, 64)
        slot = numel + 64 + 8
        memory = torch.full((20 * slot,), -1.0)
        views = [[memory[i * slot :][:numel], memory[i * slot + numel + 8 :][:64]] for i in range(20)]
        recipes = mixer.draw(20)
        mixer.fill(zip(recipes, views, strict=True))
        for recipe, written in zip(recipes, views, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mixer.content(recipe), written, strict=True))
        # Of the whole content: a tensor of few elements may be alike where another one differs.
        assert len({key(view) for view in views}) == 20
        gaps = [memory[i * slot + numel :][:8] for i in range(20)]
        assert all(bool((gap == -1).all()) for gap in gaps)

    def test_slots_in_any_order_are_filled_too(self):
        mixer = self.mixer(4096)
        memory = torch.zeros(8, 4096)
        order = [3, 0, 7, 1]
        recipes = mixer.draw(4)
        mixer.fill((recipe, [memory[slot]]) for recipe, slot in zip(recipes, order, strict=True))
        for recipe, slot in zip(recipes, order, strict=True):
            assert torch.equal(mixer.content(recipe)[0], memory[slot])

    def test_no_content_comes_twice_in_a_whole_session(self):
        mixer = self.mixer(4096)
        seen = [recipe for _ in range(100) for recipe in mixer.draw(1024)]
        assert len(set(seen)) == len(seen)

    def test_blocks_are_made_of_other_sets(self):
        mixer = self.mixer(4096)
        kinds = {frozenset(mixer.content(mixer.draw(1)[0])[0].floor().int().tolist()) for _ in range(100)}
        assert len(kinds) == SETS * (SETS - 1) // 2


def runs_of(content):
    return {(at, bytes(run.numpy().data)) for at, run in enumerate(content[0].split(RUN))}


def test_parts_of_mixtures_repeat_and_those_of_unseen_sets_do_not():
    """Why lone calls get sets of their own: after a few calls every run of a mixture was seen, at its own place."""
    sets = real_sets(4096)
    mixer = Mixer(sets)
    seen = set()
    for _ in range(40):
        seen |= runs_of(mixer.content(mixer.draw(1)[0]))
    following = runs_of(mixer.content(mixer.draw(1)[0]))
    assert len(following - seen) < 0.01 * len(following)
    drawing = Drawing()
    generator = torch.Generator().manual_seed(7)

    def take():
        assert drawing.running
        return [torch.randn(4096, generator=generator)]

    unseen = Unseen(take, drawing.run, most=3)
    for content in unseen.draw(60.0):
        assert not runs_of(content) & seen
        seen |= runs_of(content)


@pytest.mark.parametrize(("seconds", "count"), [(60.0, 3), (0.0, 1)])
def test_as_many_unseen_sets_as_there_is_time_for(seconds, count):
    drawing = Drawing()
    unseen = Unseen(lambda: drawing.take(3), drawing.run, most=3)
    assert len(unseen.draw(seconds)) == count
    assert drawing.runs == 1 and not drawing.running
