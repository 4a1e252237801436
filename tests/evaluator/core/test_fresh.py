"""Content that no call has seen, and that is still what the problem's inputs are."""

from __future__ import annotations

import pytest
import torch

from kernelevo_evaluator.referee.fresh import SETS, Mixer

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
    mixer = Mixer(real_sets(), elementwise=True)
    seen = {key(mixer.content(mixer.draw())) for _ in range(600)}
    assert len(seen) == 600
    assert not seen & {key(tensors) for tensors in real_sets()}


def test_every_element_comes_from_a_real_set_at_its_own_place():
    sets = real_sets()
    mixer = Mixer(sets, elementwise=True)
    for _ in range(20):
        for index, tensor in enumerate(mixer.content(mixer.draw())):
            possible = torch.stack([tensors[index] for tensors in sets])
            assert bool((possible == tensor).any(dim=0).all())


def test_all_sets_are_used_throughout():
    """No long stretch of a content is one that was seen before."""
    sets = real_sets(4096)
    mixer = Mixer(sets, elementwise=True)
    for _ in range(20):
        content = mixer.content(mixer.draw())[0]
        for rows in zip(*[t[0].split(256) for t in sets], content.split(256), strict=True):
            assert not any(torch.equal(rows[-1], row) for row in rows[:-1])


def test_a_recipe_makes_the_same_content_again():
    mixer = Mixer(real_sets(), elementwise=True)
    recipe = mixer.draw()
    into = [torch.empty_like(t) for t in mixer.content(recipe)]
    mixer.make(recipe, into)
    assert key(into) == key(mixer.content(recipe))


def test_two_mixers_differ():
    recipes = [Mixer(real_sets(), elementwise=True) for _ in range(2)]
    assert recipes[0].draw() != recipes[1].draw()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("numel", [0, 1, 7])
def test_small_and_odd_tensors(dtype, numel):
    sets = [[torch.full((numel,), k).to(dtype)] for k in range(SETS)]
    mixer = Mixer(sets, elementwise=True)
    for _ in range(40):
        assert mixer.content(mixer.draw())[0].shape == (numel,)


def test_whole_tensors_where_elements_cannot_be_mixed():
    sets = real_sets()
    mixer = Mixer(sets, elementwise=False)
    for _ in range(30):
        content = mixer.content(mixer.draw())
        for index, tensor in enumerate(content):
            assert any(torch.equal(tensor, tensors[index]) for tensors in sets)


@pytest.mark.xfail(strict=True, reason="whole tensors come from four sets only: a call may see what an earlier one saw")
def test_contents_never_repeat_where_elements_cannot_be_mixed():
    mixer = Mixer([tensors[:1] for tensors in real_sets()], elementwise=False)
    seen = {key(mixer.content(mixer.draw())) for _ in range(60)}
    assert len(seen) == 60


def test_no_tensors_at_all():
    """A problem without inputs, accepted with a mark: there is nothing to mix, and nothing to wait for."""
    for elementwise in (True, False):
        mixer = Mixer([[] for _ in range(SETS)], elementwise=elementwise)
        assert [mixer.content(mixer.draw()) for _ in range(50)] == [[]] * 50
